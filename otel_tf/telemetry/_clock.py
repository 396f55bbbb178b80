"""The process's clocks: sequence numbers and times of one instant, taken together."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Snapshot", "now", "snapshot"]


class Snapshot(NamedTuple):
    """The same instant on both clocks; the wall time is right to ± ``max_error_ns``."""

    mono_ns: int
    wall_ns: int
    max_error_ns: int


def _ticker() -> Callable[[], tuple[int, int, int]]:
    # One C call from end to end: the interpreter's own lock is held from the number to the times, so
    # that their orders agree over all threads, and neither a signal handler nor a finalizer that asks
    # for an instant of its own can find a lock of ours taken.
    return zip(
        itertools.count(1), iter(time.monotonic_ns, None), iter(time.time_ns, None), strict=False
    ).__next__


_next = _ticker()


def now() -> tuple[int, int, int]:
    """Returns (seq, mono_ns, wall_ns); over all threads, seq grows by one and mono_ns with it."""
    return _next()


def snapshot() -> Snapshot:
    """Reads both clocks as close together as a few tries allow."""
    tries = []
    for _ in range(5):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        # The wall clock was read somewhere in between: half the gap, rounded up, is the error.
        tries.append(Snapshot((before + after) // 2, wall, (after - before) // 2 + 1))
    return min(tries, key=lambda one: one.max_error_ns)


def _restart_in_child() -> None:
    global _next  # noqa: PLW0603 - a process counts for itself
    _next = _ticker()


os.register_at_fork(after_in_child=_restart_in_child)
