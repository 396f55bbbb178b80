"""The process's clocks: one lock makes sequence numbers and monotonic times agree in their order."""

from __future__ import annotations

import os
import threading
import time
from typing import NamedTuple

__all__ = ["Now", "Snapshot", "now", "snapshot"]


class Now(NamedTuple):
    """An instant: sequence number (from 1, strictly growing in a process), monotonic ns, wall ns."""

    seq: int
    mono_ns: int
    wall_ns: int


class Snapshot(NamedTuple):
    """The same instant on both clocks; the wall time is right to ± ``max_error_ns``."""

    mono_ns: int
    wall_ns: int
    max_error_ns: int


class _State:
    __slots__ = ("lock", "seq")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.seq = 0


_state = _State()


def now(
    # Bound once: this runs several times a training step.
    _mono: type = time.monotonic_ns,  # type: ignore[assignment]
    _wall: type = time.time_ns,  # type: ignore[assignment]
) -> tuple[int, int, int]:
    """Returns (seq, mono_ns, wall_ns); seq and mono_ns grow together over all threads."""
    state = _state
    with state.lock:
        state.seq += 1
        return state.seq, _mono(), _wall()


def snapshot() -> Snapshot:
    """Reads both clocks as close together as a few tries allow."""
    best = None
    for _ in range(5):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        # The wall clock was read somewhere in between: half the gap, rounded up, is the error.
        candidate = Snapshot((before + after) // 2, wall, (after - before + 1) // 2 + 1)
        if best is None or candidate.max_error_ns < best.max_error_ns:
            best = candidate
    assert best is not None
    return best


def _restart_in_child() -> None:
    # The lock may have been held by a thread that does not exist here.
    global _state  # noqa: PLW0603
    _state = _State()


os.register_at_fork(after_in_child=_restart_in_child)
