"""Program order: the total order of a timeline's events by their own clock and sequence numbers."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import numpy.typing as npt

from otel_tf.correlator.columns import Columns, Int
from otel_tf.correlator.edges import NESTED, Edges

__all__ = ["Program", "program_order"]

#: How often a timeline's clock may run against its sequence numbers before these are not believed.
_FEW_DESCENTS = 3


@dataclasses.dataclass(frozen=True)
class Program:
    """Events laid out timeline after timeline, each in program order.

    Attributes:
        event: The event at each position (2N,).
        position: The position of each event (2N,), the inverse.
        first: Position at which each timeline begins, and the end of the last (T+1,).
    """

    event: Int
    position: Int
    first: Int

    def segment_starts(self) -> npt.NDArray[np.bool_]:
        """Marks the first position of every timeline (2N,)."""
        marks = np.zeros(len(self.event), dtype=bool)
        marks[self.first[:-1][self.first[:-1] < len(marks)]] = True
        return marks


def program_order(columns: Columns, local: Int, edges: Edges) -> Program:
    """Returns the program order of all events.

    Starts follow ``seq`` where spans have one, and local time otherwise; ends follow local time. At equal
    times starts come before ends, parents start before and end after their children.

    Args:
        columns: The spans.
        local: Local time of every event, ns (2N,).
        edges: Their nested edges decide between equal times where there is no ``seq``.
    """
    count = columns.count
    start, end = local[0::2], local[1::2]
    timeline = columns.timeline
    key_start = _by_sequence(columns, start)
    depth = _depth_of_ties(columns, key_start, edges)
    keys: list[npt.NDArray[np.integer]] = [columns.span_id, columns.seq]
    if depth is not None:
        keys.append(depth)
    starts = np.lexsort((*keys, key_start, timeline))
    key = np.empty(2 * count, dtype=np.int64)
    key[0::2] = key_start
    key[1::2] = np.maximum(end, key_start)
    candidates = np.concatenate([2 * starts, 2 * starts[::-1] + 1])
    candidates = candidates[np.argsort(key[candidates], kind="stable")]
    lanes = timeline if len(columns.timeline_process) > 1 << 15 else timeline.astype(np.int16)
    event = candidates[np.argsort(lanes[candidates >> 1], kind="stable")]
    position = np.empty_like(event)
    position[event] = np.arange(2 * count)
    sizes = np.bincount(timeline, minlength=len(columns.timeline_process))
    return Program(event, position, np.concatenate([[0], 2 * np.cumsum(sizes)]).astype(np.int64))


def _by_sequence(columns: Columns, start: Int) -> Int:
    """Returns local starts, raised where a smaller ``seq`` of the timeline started later by the clock."""
    rows = np.flatnonzero(columns.seq >= 0)
    if not len(rows):
        return start
    order = rows[np.lexsort((columns.span_id[rows], columns.seq[rows], columns.timeline[rows]))]
    times = start[order]
    lane = columns.timeline[order]
    same = lane[1:] == lane[:-1]
    if not ((times[1:] < times[:-1]) & same).any():
        return start
    raised = start.copy()
    bounds = np.r_[0, np.flatnonzero(~same) + 1, len(order)]
    for begin, stop in itertools.pairwise(bounds):
        part = times[begin:stop]
        # A clock steps now and then. Numbers that disagree with it all the time are no program order.
        if (part[1:] < part[:-1]).sum() <= max(_FEW_DESCENTS, len(part) // 100):
            raised[order[begin:stop]] = np.maximum.accumulate(part)
    return raised


def _depth_of_ties(columns: Columns, start: Int, edges: Edges) -> Int | None:
    """Returns nesting depth per span, or None where no child starts in the same tick as its parent."""
    nested = (edges.kind == NESTED) & (edges.src & 1 == 0)
    parent, child = edges.src[nested] >> 1, edges.dst[nested] >> 1
    tied = start[parent] >= start[child]
    if not tied.any():
        return None
    above = np.full(columns.count, -1, dtype=np.int64)
    above[child] = parent
    depth = np.zeros(columns.count, dtype=np.int64)
    level = above[child]
    rows = child
    # Parents form a forest, so this ends after its height; a cycle of parents ends at the span count.
    for _ in range(columns.count):
        alive = level >= 0
        if not alive.any():
            break
        rows, level = rows[alive], level[alive]
        depth[rows] += 1
        level = above[level]
    return depth
