"""Which event encloses which, for whole columns at a time.

Events of one line nest, as the calls of one thread do. How deep an event lies is how many had begun before it
less how many had ended; its enclosing event is the last one before it that lies one level higher.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["Intervals", "enclosing", "roots"]

Int = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Intervals:
    """Events ordered by (line, start, longest first), on one axis: lines lie one after another on it.

    Args:
        line: Of each event (N,), ascending.
        start, end: Of each event (N,), at least 0.
    """

    def __init__(self, line: npt.NDArray[np.signedinteger], start: Int, end: Int) -> None:
        lines = int(line[-1]) + 1 if len(line) else 1
        span = int(end.max(initial=0)) + 1
        # Lines of hours with nanoseconds fit; of damaged files, what is closer than that coincides.
        coarse = max(0, (lines * span).bit_length() - 62)
        base = line.astype(np.int64) * ((span >> coarse) + 1)
        self.start: Int = base + (start >> coarse)
        self.end: Int = base + (end >> coarse)
        self.length: Int = end - start
        self.line = line

    def __len__(self) -> int:
        return len(self.line)


def enclosing(events: Intervals, outer: Mask, inner: Int) -> Int:
    """Returns the innermost event of ``outer`` around each of ``inner``, -1 for none (len(inner),).

    An event encloses another of its line that begins no earlier, comes later in the order, and ends no
    later. Of events that overlap without nesting, which threads do not do, none encloses the other.

    Args:
        events: All events.
        outer: Which of them may enclose others (N,).
        inner: Rows of those that are asked about.
    """
    rows = np.flatnonzero(outer & (events.length > 0))
    found = np.full(len(inner), -1, np.int64)
    if not len(rows) or not len(inner):
        return found
    begin, end = events.start[rows], events.end[rows]
    # How many of `rows` come before each event.
    before = np.zeros(len(events) + 1, np.int64)
    np.cumsum(outer & (events.length > 0), out=before[1:])

    if (end[:-1] <= begin[1:]).all():
        # None lies in another: the last that began before is the only one that can be around.
        last = before[inner] - 1
        row = rows[np.maximum(last, 0)]
        hit = (last >= 0) & (events.end[row] > events.start[inner])
    else:
        row, hit = _by_depth(events, rows, before, inner)
    hit &= (events.line[row] == events.line[inner]) & (events.end[row] >= events.end[inner])
    hit &= events.start[row] <= events.start[inner]
    found[hit] = row[hit]
    return found


def _by_depth(events: Intervals, rows: Int, before: Int, inner: Int) -> tuple[Int, Mask]:
    """Returns the last of ``rows`` a level above each of ``inner``, and where there is one."""
    ends = np.sort(events.end[rows])

    def depth(of: Int) -> Int:
        level: Int = before[of] - np.searchsorted(ends, events.start[of], side="right")
        return level

    level = depth(rows)
    # By depth, and within it in order; damage can make depths below 0.
    width = len(rows) + 1
    order = np.argsort(level, kind="stable")
    key = level[order] * width + order
    wanted = depth(inner) - 1
    at = np.searchsorted(key, wanted * width + before[inner]) - 1
    candidate = order[np.maximum(at, 0)]
    return rows[candidate], (at >= 0) & (level[candidate] == wanted)


def roots(parent: Int) -> Int:
    """Returns the outermost ancestor of each row, itself where it has no parent; parents are rows, or -1.

    What goes round in a circle, which only damage makes, ends somewhere in it.
    """
    top = np.where(parent < 0, np.arange(len(parent)), parent)
    for _ in range(len(parent).bit_length() + 1):
        further = top[top]
        if (further == top).all():
            break
        top = further
    return top
