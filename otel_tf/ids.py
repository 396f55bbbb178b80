"""Trace and span ids: deterministic where processes must agree, private randomness elsewhere.

Every process of a run computes the same trace id for the same step without talking to another:
``H(run_id, "step", n)``. H is BLAKE2b, so all bits are uniform, the low 56 included, and a ratio
sampler keeps the same steps on every worker. Random ids come from the operating system, never from
``random``: a seeded ``random`` would repeat ids between processes, and drawing from it would disturb
the training program's own stream.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

__all__ = [
    "new_run_id",
    "random_span_id",
    "random_trace_id",
    "span_id",
    "span_ids",
    "trace_id",
    "trace_ids",
]

_SEPARATOR = "\x1f"


def _digest(size: int, parts: tuple[str | int, ...]) -> int:
    # The separator cannot occur in a part that is a number, and run ids are checked to be printable.
    text = "\x1f".join(map(str, parts))
    value = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=size).digest(), "big")
    return value or 1  # zero is OpenTelemetry's invalid id


def trace_id(*parts: str | int) -> int:
    """Returns the 128-bit trace id that names ``parts``, the same in every process."""
    return _digest(16, parts)


def span_id(*parts: str | int) -> int:
    """Returns the 64-bit span id that names ``parts``, the same in every process."""
    return _digest(8, ("span", *parts))


def _digests(size: int, parts: tuple[str | int, ...]) -> Callable[..., int]:
    begun = hashlib.blake2b(digest_size=size)
    begun.update("".join(f"{part}{_SEPARATOR}" for part in parts).encode())

    def of(*rest: str | int) -> int:
        state = begun.copy()
        state.update(_SEPARATOR.join([str(part) for part in rest]).encode())
        return int.from_bytes(state.digest(), "big") or 1

    return of


def trace_ids(*parts: str | int) -> Callable[..., int]:
    """Returns a function of the remaining parts that gives what `trace_id` gives for all; twice as fast."""
    return _digests(16, parts)


def span_ids(*parts: str | int) -> Callable[..., int]:
    """Returns a function of the remaining parts that gives what `span_id` gives for all; twice as fast."""
    return _digests(8, ("span", *parts))


def random_trace_id() -> int:
    """Returns a 128-bit trace id from the operating system's randomness."""
    return int.from_bytes(os.urandom(16), "big") or 1


def random_span_id() -> int:
    """Returns a 64-bit span id from the operating system's randomness."""
    return int.from_bytes(os.urandom(8), "big") or 1


def new_run_id() -> str:
    """Returns a new run id: time-sortable, unique, safe as a folder name."""
    import time

    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + os.urandom(4).hex()
