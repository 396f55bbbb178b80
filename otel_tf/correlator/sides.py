"""On which side of a clock's step each event is: certain for witnesses, inferred for the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from otel_tf.correlator.columns import Columns, Int

__all__ = ["AFTER", "BEFORE", "Evidence", "sides"]

BEFORE, AFTER = 1, 2


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What one partner's edges say about a clock near its step. All times common drift taken off, ns.

    Attributes:
        event: Event of the clock at each edge (R,); ``no_earlier`` where the edge leads to it, so that it
            happened at ``at_ns`` of the partner's clock or later, else then or earlier (R,).
        stray: Edges that contradict those around them: false, or late news from before the step.
        before_ns, after_ns: Least and largest (partner − clock) before the step, and after it.
        drift: How fast that may change, in units of 2^-30, from ``pivot_reading_ns`` of the clock on.
    """

    event: Int
    no_earlier: npt.NDArray[np.bool_]
    stray: npt.NDArray[np.bool_]
    at_ns: Int
    before_ns: tuple[int, int]
    after_ns: tuple[int, int]
    drift: int
    pivot_reading_ns: int


def sides(
    columns: Columns, events: Int, reading: Int, evidence: Sequence[Evidence], size: int
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.bool_]]:
    """Returns on which side of a step each event is (`BEFORE`, `AFTER`), and where that is not certain.

    Args:
        columns: The spans.
        events: Events of the clock (M,).
        reading: Their readings, common drift taken off, ns (M,).
        evidence: What partners say.
        size: By how much the clock jumped, forward > 0, ns.
    """
    votes = np.zeros((2, len(events)), dtype=bool)
    place = np.full(2 * columns.count, -1, dtype=np.int64)
    place[events] = np.arange(len(events))
    for item in evidence:
        before, after = _certain(item, place, reading)
        votes[0] |= before
        votes[1] |= after
    side = np.where(votes[0] & ~votes[1], BEFORE, np.where(votes[1] & ~votes[0], AFTER, 0)).astype(np.int8)
    told = side > 0
    unsure = np.zeros(len(events), dtype=bool)
    if not (side == BEFORE).any() or not (side == AFTER).any():
        return side, unsure
    last, first = int(reading[side == BEFORE].max()), int(reading[side == AFTER].min())
    if size > 0:
        open_ = side == 0
        cut, clear = _widest_gap(reading, last, first, size)
        side[open_] = np.where(reading[open_] <= cut, BEFORE, AFTER)
        if not clear:
            unsure = open_
    else:
        _by_sequence(columns, events, side, reading=reading)
        last, first = int(reading[side == BEFORE].max()), int(reading[side == AFTER].min())
        # Nothing before the step reads later than where the clock fell from, nothing after it earlier than
        # where it fell to; the jump is known to within what the partners leave open.
        open_ = side == 0
        vague = min(
            item.before_ns[1] - item.before_ns[0] + item.after_ns[1] - item.after_ns[0] for item in evidence
        )
        side[open_ & (reading > first - size + vague)] = AFTER
        side[open_ & (reading < last + size - vague)] = BEFORE
        open_ = side == 0
        side[open_] = BEFORE
        unsure = open_
    # A span cannot end before the step and start after it.
    ends = np.flatnonzero(events & 1)
    start = place[events[ends] - 1]
    both = start >= 0
    ends, start = ends[both], start[both]
    turned = (side[start] == AFTER) & ~unsure[start] | ~told[ends] & (
        (side[start] == AFTER) | (reading[ends] < reading[start])
    )
    side[ends[turned]] = AFTER
    unsure[ends[turned & ~unsure[start]]] = False
    # Where durations are monotonic, an end is its start's reading plus that: a step in between is not in it.
    steady = columns.mono_ns[events[ends] >> 1] >= 0
    side[ends[steady]], unsure[ends[steady]] = side[start[steady]], unsure[start[steady]]
    return side, unsure


def _certain(item: Evidence, place: Int, reading: Int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Returns which events one partner knows to be before the step, and which after it."""
    # The partner's time of an event, were it before the step or after it; drift makes it vaguer far away.
    vague = ((np.abs(reading - item.pivot_reading_ns) >> 20) + 1) * item.drift >> 10
    early = {BEFORE: reading + item.before_ns[0] - vague, AFTER: reading + item.after_ns[0] - vague}
    late = {BEFORE: reading + item.before_ns[1] + vague, AFTER: reading + item.after_ns[1] + vague}
    at = place[item.event]
    fits, possible = {}, {}
    for side in (BEFORE, AFTER):
        fits[side] = np.where(item.no_earlier, late[side][at] >= item.at_ns, early[side][at] <= item.at_ns)
        possible[side] = np.ones(len(reading), dtype=bool)
        np.logical_and.at(possible[side], at, fits[side] | item.stray)
    before, after = possible[BEFORE] & ~possible[AFTER], possible[AFTER] & ~possible[BEFORE]
    # From them, when the step was: everything that must have happened earlier or later is certain too.
    least_at = early[BEFORE][before].max(initial=np.iinfo(np.int64).min)
    most_at = late[AFTER][after].min(initial=np.iinfo(np.int64).max)
    before, after = before | (late[AFTER] < least_at), after | (early[BEFORE] > most_at)
    news = at[item.stray & fits[BEFORE] & ~fits[AFTER]]
    before[news[(late[BEFORE][news] <= most_at) & ~after[news]]] = True
    return before, after


def _widest_gap(reading: Int, last: int, first: int, size: int) -> tuple[int, bool]:
    """Returns the reading that the clock jumped over, and whether only one gap is wide enough to be it."""
    within = np.sort(reading[(reading >= last) & (reading <= first)])
    gaps = np.diff(within)
    if not len(gaps):
        return last, True
    widest = int(np.argmax(gaps))
    return int(within[widest] + gaps[widest] // 2), int((gaps >= abs(size) // 2).sum()) <= 1


def _by_sequence(columns: Columns, events: Int, side: npt.NDArray[np.int8], *, reading: Int) -> None:
    """Places starts on either side of a step backwards by their sequence numbers, where they have some."""
    seq = columns.seq[events >> 1]
    starts = np.flatnonzero((events & 1 == 0) & (seq >= 0))
    lanes = columns.timeline[events[starts] >> 1]
    for lane in np.unique(lanes):
        mine = starts[lanes == lane]
        mine = mine[np.argsort(seq[mine], kind="stable")]
        known = side[mine]
        begin = int(np.flatnonzero(known == BEFORE).max(initial=-1)) + 1
        end = int(np.flatnonzero(known == AFTER).min(initial=len(mine)))
        if begin > end:
            continue
        falls = np.diff(reading[mine[max(begin - 1, 0) : end + 1]])
        if begin < end and not falls.min(initial=0) < 0:
            continue  # nothing started in between on either side of it, or no clock says where
        at = max(begin - 1, 0) + int(np.argmin(falls)) + 1 if begin < end else begin
        side[mine[:at]] = BEFORE
        side[mine[at:]] = AFTER
