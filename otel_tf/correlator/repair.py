"""Exact repair: the least forward shifts that make every edge hold, and smooth motion before them.

The controlled logical clock (Rabenseifner, "The controlled logical clock, a global time for trace-based
software monitoring of parallel applications in workstation clusters", 1997; Becker, Rabenseifner, Wolf,
"Scalable timestamp synchronization for event traces", 2009) in integers: an event's shift is the largest of
what its incoming edges need and of the shift before it on its timeline, which fades by 1 ns every
2^`FADE_BITS` ns. Both are monotone, so alternating them ends in the least fixpoint.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from otel_tf.correlator import pieces
from otel_tf.correlator.columns import Int

__all__ = ["FADE_BITS", "CycleError", "Layout", "repair", "smooth"]

#: A shift fades at 1/128: faster than clocks drift, so that a bar that held before the jump holds after it.
FADE_BITS = 7
#: Rounds after which a repair that still moves is searched for a cycle.
_PATIENCE = 64


class CycleError(Exception):
    """The edges and the program order form a cycle: no times can satisfy them.

    Attributes:
        edges: Indices of the edges on the cycle.
    """

    def __init__(self, edges: Int) -> None:
        super().__init__(f"a cycle of {len(edges)} edges")
        self.edges = edges


@dataclasses.dataclass(frozen=True)
class Layout:
    """Events by position: timelines one after another, each in program order, then the barriers.

    Attributes:
        segment: Marks the first position of each timeline; every barrier is its own (P,).
        src, dst: Positions of the edges' ends (E,).
        min_ns: Least time between them, ns (E,).
    """

    segment: npt.NDArray[np.bool_]
    src: npt.NDArray[np.signedinteger[Any]]
    dst: npt.NDArray[np.signedinteger[Any]]
    min_ns: npt.NDArray[np.signedinteger[Any]]

    def too_soon(self, time_ns: Int) -> Int:
        """Returns the edges whose end comes less than their least time after their begin, by ``time_ns``."""
        src, dst, least = self.src, self.dst, self.min_ns
        return pieces.flatnonzero(
            len(src), lambda piece: time_ns[src[piece]] + least[piece] > time_ns[dst[piece]]
        )


def repair(time_ns: Int, layout: Layout) -> Int:
    """Returns the least times ≥ ``time_ns`` that satisfy every edge and the fading program order.

    Args:
        time_ns: Corrected times by position, not decreasing within a timeline, ns (P,).
        layout: The events.

    Raises:
        CycleError: The edges contradict the program order or each other.
    """
    late = layout.too_soon(time_ns)
    if not len(late):
        return time_ns
    moved = time_ns.copy()
    starts = np.flatnonzero(layout.segment)
    bounds = np.r_[starts, len(moved)]
    fades: dict[int, Int] = {}
    edge_lane = (np.searchsorted(starts, layout.src, side="right") - 1).astype(np.int32)
    # Two bytes are sorted by counting, eight by comparing.
    by_lane = np.argsort(edge_lane.astype(np.int16) if len(starts) < 1 << 15 else edge_lane, kind="stable")
    first = np.searchsorted(edge_lane[by_lane], np.arange(len(starts) + 1))
    for round_number in range(1 << 30):
        if round_number and round_number % _PATIENCE == 0:
            cycle = _cycle(moved, time_ns, _fading(time_ns, layout), layout)
            if cycle is not None:
                raise CycleError(cycle)
        targets = layout.dst[late]
        np.maximum.at(moved, targets, moved[layout.src[late]] + layout.min_ns[late])
        # Only timelines that changed need their shifts carried on, and only edges from them looked at again.
        changed = np.unique(np.searchsorted(starts, targets, side="right") - 1).tolist()
        for number in changed:
            part = slice(bounds[number], bounds[number + 1])
            time = time_ns[part]
            fade = fades.setdefault(number, (time - time[:1]) >> FADE_BITS)
            moved[part] = time + np.maximum.accumulate(moved[part] - time + fade) - fade
        edges = np.concatenate([by_lane[first[number] : first[number + 1]] for number in changed])
        late = edges[moved[layout.src[edges]] + layout.min_ns[edges] > moved[layout.dst[edges]]]
        if not len(late):
            return moved
    raise AssertionError("unreachable")


def smooth(time_ns: Int, moved: Int, layout: Layout) -> Int:
    """Returns ``moved`` with the events before each jump moved up to it gradually.

    A jump of s at one event becomes a slope of 1/128 before it, as far as no edge that leaves an event on
    the way would be violated. Two suffix windows, the wanted shift (MAX) and what is allowed (MIN); events
    only move forward, and never past their successors.
    """
    if np.array_equal(time_ns, moved):
        return moved
    limit = np.full(len(moved), np.iinfo(np.int64).max, dtype=np.int64)
    np.minimum.at(limit, layout.src, moved[layout.dst] - layout.min_ns)
    result = moved.copy()
    starts = np.r_[np.flatnonzero(layout.segment), len(moved)]
    for begin, end in itertools.pairwise(starts):
        part = slice(begin, end)
        shift = moved[part] - time_ns[part]
        if shift.max() < 1 << FADE_BITS:
            continue  # what would fade within a tick of its clock is no jump
        fade = (time_ns[part] - time_ns[begin]) >> FADE_BITS
        wanted = np.maximum.accumulate((shift - fade)[::-1])[::-1] + fade
        allowed = np.minimum.accumulate(limit[part][::-1])[::-1]
        result[part] = np.maximum(moved[part], np.minimum(time_ns[part] + wanted, allowed))
    return result


def _fading(time_ns: Int, layout: Layout) -> Int:
    """Returns how much a shift at the begin of its timeline has faded by each position, ns (P,)."""
    starts = np.flatnonzero(layout.segment)
    since = time_ns - np.repeat(time_ns[starts], np.diff(np.r_[starts, len(time_ns)]))
    return since >> FADE_BITS


def _cycle(moved: Int, time_ns: Int, fade: Int, layout: Layout) -> Int | None:
    """Returns the edges of a cycle among the constraints that hold with equality or not yet, or None."""
    shift = moved - time_ns
    tight = np.flatnonzero(moved[layout.src] + layout.min_ns >= moved[layout.dst])
    cause = np.full(len(moved), -1, dtype=np.int64)
    via = np.full(len(moved), -1, dtype=np.int64)
    carried = np.flatnonzero((shift > 0) & ~layout.segment)
    carried = carried[shift[carried] == shift[carried - 1] + fade[carried - 1] - fade[carried]]
    cause[carried] = carried - 1
    cause[layout.dst[tight]] = layout.src[tight]
    via[layout.dst[tight]] = tight
    jump = np.r_[cause, -1]
    for _ in range(len(moved).bit_length()):
        jump = jump[jump]
        jump[-1] = -1
    ends = jump[:-1][jump[:-1] >= 0]
    if not len(ends):
        return None
    start = node = int(ends.min())
    found = []
    while True:
        if via[node] >= 0:
            found.append(int(via[node]))
        node = int(cause[node])
        if node == start:
            return np.array(found[::-1], dtype=np.int64)
