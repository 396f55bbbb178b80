"""Ports on this machine for servers that start late."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

__all__ = ["HOST", "free_ports"]

HOST = "127.0.0.1"

_LOWEST = 20_000
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Returns ports that nobody listens on now, and that the kernel gives to no outgoing connection.

    A port of the kernel's own choice (port 0) is one of those that outgoing connections get: it may be gone
    before a server that takes seconds to start binds it.

    Raises:
        OSError: There are not so many.
    """
    try:
        highest = int(_EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        highest = 0
    if highest < _LOWEST + 1000:
        highest = 32_768
    # Not the shared generator: choosing a port must not disturb a seeded program.
    candidates = random.SystemRandom().sample(range(_LOWEST, highest), 500)
    found: list[int] = []
    for port in candidates:
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind((HOST, port))
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"no {count} free ports between {_LOWEST} and {highest}")
