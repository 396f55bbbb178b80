"""Waits at barriers: own duration less the shortest, no clocks needed; beside it lateness by the clocks."""

from __future__ import annotations

import numpy as np

from otel_tf.correlator.columns import Int
from otel_tf.correlator.edges import Barriers
from otel_tf.correlator.solver import UNBOUNDED

__all__ = ["disagreements", "lateness", "waits"]


def waits(met: Barriers, duration_ns: Int) -> Int:
    """Returns how long each member waited for the last: its duration − the barrier's shortest, ns (members,).

    Args:
        met: The barriers.
        duration_ns: Duration of each member by its own clock, ns (members,).
    """
    return duration_ns - _least(met, duration_ns)


def lateness(met: Barriers, entered_ns: Int) -> Int:
    """Returns how long after the first each member entered, by corrected clocks, ns (members,)."""
    return entered_ns - _least(met, entered_ns)


def disagreements(met: Barriers, duration_ns: Int, left_ns: Int, error_ns: Int) -> tuple[int, int]:
    """Tests clocks and waits against each other: in how many barriers they differ, and by how much, ns.

    That the last to enter waited least is told without clocks; by the clocks all must then have left when
    that one did, to within both bars and what the news of it took. Members without a bar are left out.

    Args:
        met: The barriers.
        duration_ns: Duration of each member by its own clock, ns (members,).
        left_ns: When each member left, by corrected clocks, ns (members,).
        error_ns: Half-width of its bar (members,).
    """
    order = np.lexsort((duration_ns, met.number))
    last = order[np.searchsorted(met.number[order], np.arange(met.count))][met.number]
    bar = np.minimum(error_ns, UNBOUNDED) + np.minimum(error_ns[last], UNBOUNDED)
    beyond = np.abs(left_ns - left_ns[last]) - bar
    wrong = np.unique(met.number[beyond > 0])
    return len(wrong), max(int(beyond.max(initial=0)), 0)


def _least(met: Barriers, values: Int) -> Int:
    least = np.full(met.count, np.iinfo(np.int64).max, dtype=np.int64)
    np.minimum.at(least, met.number, values)
    return least[met.number]
