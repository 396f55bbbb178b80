"""The ports of one Jaeger, all on 127.0.0.1."""

from __future__ import annotations

import dataclasses
import socket

from otel_tf import _local_ports
from otel_tf._local_ports import HOST

__all__ = ["DEFAULT_PORTS", "HOST", "Ports", "free_ports"]


@dataclasses.dataclass(frozen=True)
class Ports:
    """TCP ports of one Jaeger; the defaults are Jaeger's own."""

    ui: int = 16686
    query_grpc: int = 16685
    otlp_grpc: int = 4317
    otlp_http: int = 4318
    health: int = 13133

    def taken(self) -> dict[str, int]:
        """Returns those of the ports that something already listens on, by field name."""
        return {name: port for name, port in dataclasses.asdict(self).items() if not _can_bind(port)}


DEFAULT_PORTS = Ports()


def free_ports() -> Ports:
    """Returns ports nobody listens on now. Another process may still take one before it is used."""
    return Ports(*_local_ports.free_ports(len(dataclasses.fields(Ports))))


def _can_bind(port: int) -> bool:
    with socket.socket() as listener:
        # What Go's listeners set too: a port whose last connections are in TIME_WAIT is free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
    return True
