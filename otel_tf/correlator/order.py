"""The causal order: by corrected time, then timeline, then program order."""

from __future__ import annotations

import numpy as np

from otel_tf.correlator.columns import Int
from otel_tf.correlator.edges import Events
from otel_tf.correlator.program import Program

__all__ = ["linear_order"]


def linear_order(corrected: Int, program: Program) -> Events:
    """Returns the rank of every event (2N,): a linear extension of program order and of every edge.

    Corrected times do not decrease along a timeline and grow along every edge, so that sorting by them,
    and at equal times by (timeline, position), puts every cause before its effect.

    Args:
        corrected: Corrected times by position, ns (2N,).
        program: The layout; positions are already sorted by (timeline, program order).
    """
    ranked = program.event[np.argsort(corrected, kind="stable")]
    rank = np.empty_like(ranked)
    rank[ranked] = np.arange(len(ranked), dtype=rank.dtype)
    return rank
