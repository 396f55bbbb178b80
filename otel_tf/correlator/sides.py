"""On which side of a clock's step each event is: certain for witnesses, inferred for the rest."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from otel_tf.correlator.columns import Columns, Int

__all__ = ["AFTER", "BEFORE", "sides"]

BEFORE, AFTER = 1, 2


def sides(
    columns: Columns, local: Int, events: Int, label: npt.NDArray[np.int8], size: int
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.bool_]]:
    """Returns on which side of a step each event is, and where that is not certain."""
    side = label[events].copy()
    told = side > 0
    reading = local[events]
    unsure = np.zeros(len(events), dtype=bool)
    before, after = reading[side == BEFORE], reading[side == AFTER]
    if not len(before) or not len(after):
        return side, unsure
    last, first = int(before.max()), int(after.min())
    if size > 0 or first > last:
        cut, clear = _widest_gap(reading, last, first, size)
        open_ = side == 0
        side[open_] = np.where(reading[open_] <= cut, BEFORE, AFTER)
        if not clear:
            unsure = open_ & (reading > last) & (reading < first)
    else:
        _by_sequence(columns, events, side, reading=reading, first=first, last=last)
        open_ = side == 0
        # What is read beyond the last reading before the step comes after it; in between, both are possible.
        side[open_] = np.where(reading[open_] > last, AFTER, BEFORE)
        unsure = open_ & (reading >= first) & (reading <= last)
    # A span cannot end before the step and start after it.
    place = np.full(2 * columns.count, -1, dtype=np.int64)
    place[events] = np.arange(len(events))
    ends = np.flatnonzero(events & 1)
    start = place[events[ends] - 1]
    both = start >= 0
    ends, start = ends[both], start[both]
    turned = ~told[ends] & ((side[start] == AFTER) | (reading[ends] < reading[start]))
    side[ends[turned]] = AFTER
    unsure[ends[turned & ~unsure[start]]] = False
    return side, unsure


def _widest_gap(reading: Int, last: int, first: int, size: int) -> tuple[int, bool]:
    """Returns the reading that the clock jumped over, and whether only one gap is wide enough to be it."""
    within = np.sort(reading[(reading >= last) & (reading <= first)])
    gaps = np.diff(within)
    if not len(gaps):
        return last, True
    widest = int(np.argmax(gaps))
    return int(within[widest] + gaps[widest] // 2), int((gaps >= abs(size) // 2).sum()) <= 1


def _by_sequence(
    columns: Columns, events: Int, side: npt.NDArray[np.int8], *, reading: Int, first: int, last: int
) -> None:
    """Places starts on either side of a step backwards by their sequence numbers, where they have some."""
    starts = np.flatnonzero((events & 1 == 0) & (columns.seq[events >> 1] >= 0))
    lanes = columns.timeline[events[starts] >> 1]
    for lane in np.unique(lanes):
        mine = starts[lanes == lane]
        mine = mine[np.argsort(columns.seq[events[mine] >> 1], kind="stable")]
        known = side[mine]
        begin = int(np.flatnonzero(known == BEFORE).max(initial=-1)) + 1
        end = int(np.flatnonzero(known == AFTER).min(initial=len(mine)))
        if begin > end:
            continue
        # Where readings fall along the numbers, the clock stepped; where they do not, half-way.
        falls = np.diff(reading[mine[max(begin - 1, 0) : end + 1]])
        if len(falls) and falls.min() < 0:
            at = max(begin - 1, 0) + int(np.argmin(falls)) + 1
        else:
            at = begin + int((reading[mine[begin:end]] <= (first + last) // 2).sum())
        side[mine[:at]] = BEFORE
        side[mine[at:]] = AFTER
