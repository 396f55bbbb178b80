"""Which worker's bar ends last in a synchronous step, where the clocks alone cannot tell."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from otel_tf import semconv
from otel_tf.correlator.sinks import layout

__all__ = ["straggler_last"]

Int = npt.NDArray[np.int64]

_NEVER = np.iinfo(np.int64).max


def straggler_last(spans: pa.Table, group: Int, parent: Int, end_ns: Int) -> Int:
    """Returns ends in which, of the workers whose ends are tied, the one that waited least ends last.

    All workers leave a barrier together, so who ends a step last is a matter of microseconds and of the
    error bars. But Jaeger's critical path runs through whoever does. The one that was waited for is known
    without any clock: it waited least itself. Its end moves by no more than the bars allow, and 2 µs.

    Args:
        spans: Spans sorted by trace, with ``wait_ns`` of collectives.
        group: Number of each one's trace.
        parent: Row of each one's parent, or -1; without cycles.
        end_ns: Corrected ends.
    """
    if "wait_ns" not in spans.column_names or spans["wait_ns"].null_count == spans.num_rows:
        return end_ns
    code, names = layout.codes(spans["name"])
    is_step = code == layout.code_of(names, semconv.SPAN_TRAIN_STEP)
    wait = _waits_of_steps(spans, parent, is_step)
    rows = np.flatnonzero(wait < _NEVER)
    if not len(rows):
        return end_ns
    # The straggler of each trace is the first of its rows by wait.
    rows = rows[np.lexsort([rows, wait[rows], group[rows]])]
    first = np.flatnonzero(np.diff(group[rows], prepend=-1))
    straggler = rows[first]
    error = spans["error_ns"].fill_null(_NEVER // 4).to_numpy()
    # Tied with the straggler are all that end before it or within both bars after it.
    others = np.repeat(straggler, np.diff(np.append(first, len(rows))))
    tied = end_ns[rows] - end_ns[others] <= error[rows] + error[others]
    last = np.maximum.reduceat(np.where(tied, end_ns[rows], 0), first)
    all_tied = np.logical_and.reduceat(tied, first)
    result = end_ns.copy()
    moved = all_tied & (last >= end_ns[straggler]) & (np.diff(np.append(first, len(rows))) > 1)
    # Shown are whole microseconds, and durations are rounded up to those: one alone might not show.
    result[straggler[moved]] = last[moved] + 2000
    return result


def _waits_of_steps(spans: pa.Table, parent: Int, is_step: npt.NDArray[np.bool_]) -> Int:
    """Returns how long each ``train_step`` waited in the collectives below it, ns; the largest for others."""
    wait = spans["wait_ns"]
    rows = np.flatnonzero(wait.is_valid().to_numpy())
    owner = parent[rows]
    while (below := np.flatnonzero((owner >= 0) & ~is_step[owner])).size:
        owner[below] = parent[owner[below]]
    there = owner >= 0
    total = np.zeros(spans.num_rows, np.int64)
    np.add.at(total, owner[there], wait.drop_null().to_numpy()[there])
    has_wait = np.zeros(spans.num_rows, np.bool_)
    has_wait[owner[there]] = True
    return np.where(has_wait, total, _NEVER)
