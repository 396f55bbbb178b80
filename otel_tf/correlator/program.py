"""Program order: the total order of a timeline's events by their own clock and sequence numbers."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import numpy.typing as npt

from otel_tf.correlator import pieces
from otel_tf.correlator.columns import Columns, Int
from otel_tf.correlator.edges import NESTED, Edges, Events, event_type

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

    event: Events
    position: Events
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
    start, end = local[0::2], local[1::2]
    event = _sorted(columns, start, np.maximum(end, start), edges)
    if _against_sequence(columns, event):
        start = _by_sequence(columns, start)
        event = _sorted(columns, start, np.maximum(end, start), edges)
    position = np.empty_like(event)
    position[event] = np.arange(len(event), dtype=event.dtype)
    sizes = np.bincount(columns.timeline, minlength=len(columns.timeline_process))
    return Program(event, position, np.concatenate([[0], 2 * np.cumsum(sizes)]).astype(np.int64))


def _sorted(columns: Columns, start: Int, end: Int, edges: Edges) -> Events:
    """Returns events sorted by (timeline, time, what decides between equal times)."""
    lanes = len(columns.timeline_process)
    first = np.full(lanes, np.iinfo(np.int64).max, dtype=np.int64)
    last = np.full(lanes, np.iinfo(np.int64).min, dtype=np.int64)
    np.minimum.at(first, columns.timeline, start)
    np.maximum.at(last, columns.timeline, end)
    bits = int((last - first).max(initial=0)).bit_length()
    one_word = lanes.bit_length() + bits < 63  # sorts twice as fast
    key = np.empty(2 * columns.count, dtype=np.int64)

    def fill(span: slice) -> None:
        lane = columns.timeline[span]
        zero = first[lane]
        if one_word:
            zero = zero - (lane.astype(np.int64) << bits)
        key[2 * span.start : 2 * span.stop : 2] = start[span] - zero
        key[2 * span.start + 1 : 2 * span.stop : 2] = end[span] - zero

    pieces.each(columns.count, fill)
    if one_word:
        # Stable, since that one makes use of what is in order already: every process's spans nearly are.
        event = np.argsort(key, kind="stable").astype(event_type(columns.count), copy=False)
        sorted_key = key[event]
        tied = sorted_key[1:] == sorted_key[:-1]
    else:
        lane = np.repeat(columns.timeline, 2)
        event = np.lexsort((key, lane)).astype(event_type(columns.count), copy=False)
        tied = (np.diff(key[event]) == 0) & (np.diff(lane[event]) == 0)
    if tied.any():
        _settle_ties(columns, start, edges, event, tied)
    return event


def _settle_ties(
    columns: Columns, start: Int, edges: Edges, event: Events, tied: npt.NDArray[np.bool_]
) -> None:
    """Sorts what stands at equal times, in place."""
    among = np.flatnonzero(np.r_[tied, False] | np.r_[False, tied])
    group = np.cumsum(np.r_[True, ~tied])[among]
    some = event[among]
    row, ends = some >> 1, (some & 1).astype(bool)
    depth = _depth_of_ties(columns, start, edges)
    sign = np.where(ends, -1, 1)
    span_id = columns.span_id[row]
    order = np.lexsort(
        (
            np.where(ends, ~span_id, span_id),
            sign * columns.seq[row],
            sign * depth[row] if depth is not None else sign,
            np.where(ends, -start[row], 0),
            ends,
            group,
        )
    )
    event[among] = some[order]


def _against_sequence(columns: Columns, event: Events) -> bool:
    """Returns whether a timeline's starts are in another order than their sequence numbers."""
    missing = columns.spans["seq"].null_count
    if missing == columns.count:
        return False
    row = event[event & 1 == 0] >> 1
    seq = columns.seq[row]
    if missing:
        row, seq = row[seq >= 0], seq[seq >= 0]
    falls = np.flatnonzero(seq[1:] < seq[:-1])
    lane = columns.timeline
    return bool((lane[row[falls]] == lane[row[falls + 1]]).any())


def _by_sequence(columns: Columns, start: Int) -> Int:
    """Returns local starts, raised where a smaller ``seq`` of the timeline started later by the clock."""
    seq, span_id = columns.seq, columns.span_id
    rows = np.flatnonzero(seq >= 0)
    if not len(rows):
        return start
    order = rows[np.lexsort((span_id[rows], seq[rows], columns.timeline[rows]))]
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
