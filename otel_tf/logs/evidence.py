"""The order of log records without clocks that could be compared: as far as the evidence goes, and how far.

By their own times, where they have one: clocks of different machines may disagree, and nothing here can tell.
Without, by their steps, against the times at which others were at that step; else right behind the line
before in the same file, which is the order in which one process wrote them or a collector got them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from otel_tf.correlator.columns import Int, integers
from otel_tf.correlator.log_tables import PLACED

__all__ = ["arrange"]

EVIDENCE = ("time", "step", "position")
_TIME, _STEP, _POSITION = range(3)
_NONE = -1


def arrange(logs: pa.Table, file: Int) -> tuple[pa.Table, dict[str, int]]:
    """Returns the records in order, rows of `PLACED`, and how many were placed by which evidence.

    Args:
        logs: Rows of `LOGS`, file by file, in the order of each.
        file: Of each row, the number of its file.
    """
    time, step = integers(logs["time_ns"]), integers(logs["global_step"])
    key = np.where(time >= 0, time, _NONE)
    evidence = np.where(time >= 0, _TIME, _POSITION).astype(np.int32)
    by_step = _times_by_step(time, step, file)
    if by_step is not None:
        placed = (key == _NONE) & (step >= 0)
        # Only where a file has no times at all: elsewhere its own neighbours say more.
        placed &= ~_has(time >= 0, file)[file]
        key = np.where(placed, np.interp(step, *by_step).astype(np.int64), key)
        evidence[placed] = _STEP
    elif not (time >= 0).any():
        # Nobody has times: the step is all there is.
        placed = step >= 0
        key = np.where(placed, step, key)
        if len(np.unique(file)) > 1:
            evidence[placed] = _STEP
    filled = _filled(key, file)
    order = np.lexsort((np.arange(len(key)), filled))
    # What has only its place has no time of its own; without any times, steps are no times either.
    timed = (evidence != _POSITION) & bool((time >= 0).any())
    table = logs.take(pa.array(order))
    extra = {
        "order": pa.array(np.arange(len(order), dtype=np.int64)),
        "corrected_ns": pa.array(filled[order], mask=~timed[order]),
        "error_ns": pa.nulls(len(order), pa.int64()),
        "evidence": pa.DictionaryArray.from_arrays(pa.array(evidence[order]), pa.array(EVIDENCE)),
    }
    for name, values in extra.items():
        table = table.append_column(name, values)
    counts = np.bincount(evidence, minlength=len(EVIDENCE)).tolist()
    return table.cast(PLACED), dict(zip(EVIDENCE, counts, strict=True))


def _has(mask: npt.NDArray[np.bool_], file: Int) -> npt.NDArray[np.bool_]:
    """Returns for each file whether any of its rows is in ``mask``."""
    found = np.zeros(int(file.max(initial=-1)) + 1, np.bool_)
    found[file[mask]] = True
    return found


def _times_by_step(
    time: Int, step: Int, file: Int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None:
    """Returns when the files with times were at which step: the median over them, never back in time."""
    rows = np.flatnonzero((time >= 0) & (step >= 0))
    if not len(rows):
        return None
    order = rows[np.lexsort((time[rows], step[rows]))]
    cuts = np.flatnonzero(np.diff(step[order])) + 1
    steps = step[order][np.r_[0, cuts]]
    medians = [int(np.median(part)) for part in np.split(time[order], cuts)]
    return steps.astype(np.float64), np.maximum.accumulate(np.array(medians, np.float64))


def _filled(key: Int, file: Int) -> Int:
    """Returns the keys, where there is none that of the row before in the same file, else of the next."""
    count = len(key)
    rows = np.arange(count)
    starts = np.searchsorted(file, file)  # of each row, where its file begins
    last = np.maximum.accumulate(np.where(key != _NONE, rows, -1)) if count else rows
    forward = np.where(last >= starts, key[np.maximum(last, 0)], _NONE)
    following = np.minimum.accumulate(np.where(key != _NONE, rows, count)[::-1])[::-1] if count else rows
    ends = np.searchsorted(file, file, side="right")
    reachable = (forward == _NONE) & (following < ends)
    return np.where(reachable, key[np.minimum(following, max(count - 1, 0))], forward)
