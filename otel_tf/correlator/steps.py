"""Certified clock steps: moments after which a pair of clocks cannot be what it was before.

An edge from A to B bounds D = shift(A) − shift(B) from above, an edge from B to A from below, each at its
own time. Between them D may drift. Walking along a pair's edges, all bounds so far leave an interval of
possible values; when the next bound misses it, either that edge is false or one of the clocks has stepped.
The edges after it decide: if they side with it, the clock stepped; if they side with the past, the edge is
an outlier and left to the solver. This needs no threshold: it is the running intersection of what two
round trips prove about each other, |θᵢ − θⱼ| > (RTTᵢ + RTTⱼ)/2 + ρΔt, over all i < j and not only neighbours.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from otel_tf.correlator.columns import Int

__all__ = ["Bounds", "Step", "first_step"]

#: How many edges after a contradiction are asked, growing until one side has a majority.
_JURIES = (16, 64, 256)
_CHUNK = 4096
#: Contradictions after which a pair's order of edges is known to be a bad one.
_TOO_MANY = 1000
_OPEN = np.int64(1) << np.int64(61)


@dataclasses.dataclass(frozen=True)
class Bounds:
    """What a pair's edges say about D = shift(A) − shift(B), in the order of one clock; arrays (R,).

    Attributes:
        upper: Whether the bound is from above (an edge A → B) or from below.
        value: The bound, ns, common drift taken off.
        at_ns: When, by the clock that orders them, not decreasing.
        drift: How fast D may change beyond the common drift, in units of 2^-30.
    """

    upper: npt.NDArray[np.bool_]
    value: Int
    at_ns: Int
    drift: int


@dataclasses.dataclass(frozen=True)
class Step:
    """A certified step.

    Attributes:
        before: The last bound that must be from before it (index).
        after: The first that must be from after it; those in between may be either.
        old_ns, new_ns: What D could be just before it, and after it.
    """

    before: int
    after: int
    old_ns: tuple[int, int]
    new_ns: tuple[int, int]

    @property
    def size_ns(self) -> int:
        """By how much D jumped, from the middle of what was possible to that of what is."""
        return sum(self.new_ns) // 2 - sum(self.old_ns) // 2


def first_step(bounds: Bounds) -> tuple[Step | None, int]:
    """Returns the first certified step of a pair, if any, and how many contradictions there are in all."""
    count = len(bounds.value)
    # Spread backwards and forwards in time, a bound loses by the drift: kept as value ∓ ρ·t.
    lost = _drift(bounds.at_ns - (bounds.at_ns[0] if count else 0), bounds.drift)
    high = np.where(bounds.upper, bounds.value - lost, _OPEN)
    low = np.where(bounds.upper, -_OPEN, bounds.value + lost)
    top, bottom = _OPEN, -_OPEN
    first: Step | None = None
    begin = contradictions = 0
    while begin < count and contradictions < _TOO_MANY:
        part = slice(begin, begin + _CHUNK)
        tops = np.minimum(np.minimum.accumulate(high[part]), top)
        bottoms = np.maximum(np.maximum.accumulate(low[part]), bottom)
        wrong = np.flatnonzero(bottoms - tops > 2 * lost[part])
        if not len(wrong):
            top, bottom = tops[-1], bottoms[-1]
            begin += _CHUNK
            continue
        at = begin + int(wrong[0])
        if at > begin:
            top, bottom = tops[wrong[0] - 1], bottoms[wrong[0] - 1]
        if _stepped(bounds, high, low, lost, at=at, top=top, bottom=bottom):
            first = first or _located(bounds, lost, at, top=int(top), bottom=int(bottom))
            top, bottom, begin = _OPEN, -_OPEN, at
        else:
            begin = at + 1
        contradictions += 1
    return first, contradictions


def _drift(duration: Int, drift: int) -> Int:
    """Returns drift × duration, ns; rounded up."""
    return ((np.abs(duration) >> 10) + 1) * drift >> 20


def _stepped(
    bounds: Bounds, high: Int, low: Int, lost: Int, *, at: int, top: np.int64, bottom: np.int64
) -> bool:
    """Returns whether the bounds after ``at`` side with it against those before it."""
    for size in _JURIES:
        jury = slice(at + 1, at + 1 + size)
        against_past = (high[jury] + 2 * lost[jury] < bottom) | (low[jury] - 2 * lost[jury] > top)
        apart = _drift(bounds.at_ns[jury] - bounds.at_ns[at], bounds.drift)
        differs = bounds.upper[jury] != bounds.upper[at]
        gap = bounds.value[jury] - bounds.value[at]
        against_it = differs & (np.where(bounds.upper[at], gap, -gap) > apart)
        for_step, for_outlier = int(against_past.sum()), int(against_it.sum())
        if for_step != for_outlier:
            return for_step > for_outlier
    return False


def _located(bounds: Bounds, lost: Int, at: int, *, top: int, bottom: int) -> Step:
    """Returns the step whose first certain witness is ``at``, and its last one before."""
    jury = slice(at, at + _JURIES[1])
    value, upper = bounds.value[jury], bounds.upper[jury]
    spread = _drift(bounds.at_ns[jury] - bounds.at_ns[at], bounds.drift)
    bottoms = np.maximum.accumulate(np.where(upper, -_OPEN, value - spread))
    tops = np.minimum.accumulate(np.where(upper, value + spread, _OPEN))
    agree = max(int((bottoms <= tops).sum()) - 1, 0)  # until the next contradiction
    new = _closed(int(bottoms[agree]), int(tops[agree]))
    old = _closed(bottom - int(lost[at]), top + int(lost[at]))
    # Walk back: bounds that do not contradict the new interval may be from after the step.
    back = slice(max(at - _JURIES[-1], 0), at)
    apart = _drift(bounds.at_ns[back] - bounds.at_ns[at], bounds.drift)
    against = np.where(
        bounds.upper[back], bounds.value[back] + apart < new[0], bounds.value[back] - apart > new[1]
    )
    witnesses = np.flatnonzero(against)
    before = back.start + int(witnesses[-1]) if len(witnesses) else at - 1
    return Step(before, at, old, new)


def _closed(low: int, high: int) -> tuple[int, int]:
    """Returns an interval; a side that nothing bounds is put where the other is."""
    if low < -(_OPEN // 2):
        low = high
    elif high > _OPEN // 2:
        high = low
    return min(low, high), max(low, high)
