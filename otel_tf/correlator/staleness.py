"""Staleness of asynchronous steps: how many other steps were applied between its read and its own apply."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from otel_tf.correlator.columns import Int
from otel_tf.correlator.edges import Events

__all__ = ["applied_between", "asynchronous", "told_by_ops"]


def asynchronous(
    trace_hi: Int, trace_lo: Int, worker: npt.NDArray[np.integer], served: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Marks the steps that shared no trace with another worker's step.

    A synchronous step is one trace of all workers; a parameter-server closure or a between-graph step has a
    trace of its own. A single worker's steps count only when a coordinator dispatched them.

    Args:
        trace_hi: High half of the steps' trace ids (S,).
        trace_lo: Low half.
        worker: Worker number of the steps (S,).
        served: Steps that are the server side of a dispatch (S,).
    """
    if not len(worker):
        return np.zeros(0, dtype=bool)
    order = np.argsort(trace_lo, kind="stable")
    if (trace_hi != trace_hi[0]).any() and (np.diff(trace_lo[order]) == 0).any():
        order = np.lexsort((trace_lo, trace_hi))
    hi, lo, who = trace_hi[order], trace_lo[order], worker[order]
    first = np.flatnonzero(np.r_[True, (np.diff(lo) != 0) | (np.diff(hi) != 0)])
    several = np.minimum.reduceat(who, first) != np.maximum.reduceat(who, first)
    alone = np.empty(len(worker), dtype=bool)
    alone[order] = ~np.repeat(several, np.diff(np.r_[first, len(order)]))
    return alone if (worker != worker[0]).any() else alone & served


def applied_between(read: Events, applied: Events, counts: npt.NDArray[np.bool_]) -> Int:
    """Returns, per step, how many other steps were applied between its read and its own apply (S,).

    Args:
        read: Rank of each step's start in the causal order (S,).
        applied: Rank of each step's end (S,).
        counts: Steps whose apply counts for others: those that did not fail (S,).
    """
    # How many applies there were up to each rank: one pass, where looking each step up would be a search.
    upto = np.zeros(int(applied.max(initial=0)) + 1, dtype=np.int8)
    upto[applied[counts]] = 1
    total = np.cumsum(upto, dtype=np.int32)
    between: Int = (total[applied] - upto[applied] - total[read]).astype(np.int64)
    return between


def told_by_ops(trace_hi: Int, trace_lo: Int, steps: Int, ops: Int, staleness: Int) -> Int:
    """Returns, per step, the largest staleness of the gradients of its trace, -1 where none is told (S,).

    Args:
        trace_hi: High half of all spans' trace ids.
        trace_lo: Low half.
        steps: Rows of asynchronous steps, each of which has a trace of its own (S,).
        ops: Rows of ops that apply gradients.
        staleness: Of each of ``ops``.
    """
    rows = np.concatenate([steps, ops])
    traces = np.stack([trace_hi[rows], trace_lo[rows]], axis=1)
    number = np.unique(traces, axis=0, return_inverse=True)[1].reshape(-1)
    largest = np.full(int(number.max(initial=-1)) + 1, -1, np.int64)
    np.maximum.at(largest, number[len(steps) :], staleness)
    found: Int = largest[number[: len(steps)]]
    return found
