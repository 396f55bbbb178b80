"""Waits at barriers: own duration less the shortest, no clocks needed; beside it lateness by the clocks."""

from __future__ import annotations

import numpy as np

from otel_tf.correlator.columns import Int
from otel_tf.correlator.edges import Barriers

__all__ = ["lateness", "waits"]


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


def _least(met: Barriers, values: Int) -> Int:
    least = np.full(met.count, np.iinfo(np.int64).max, dtype=np.int64)
    np.minimum.at(least, met.number, values)
    return least[met.number]
