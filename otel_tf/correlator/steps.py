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

__all__ = ["Bounds", "Finding", "Step", "first_step"]

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
        old_ns, new_ns: Least and largest D just before it, and after it; ∓2^61 or so where open.
    """

    before: int
    after: int
    old_ns: tuple[int, int]
    new_ns: tuple[int, int]

    @property
    def size_ns(self) -> int:
        """By how much D jumped, from the middle of what was possible to that of what is."""
        return _middle(self.new_ns) - _middle(self.old_ns)


@dataclasses.dataclass(frozen=True)
class Finding:
    """What a walk along a pair's edges found.

    Attributes:
        step: The first certified step, if any.
        outliers: Bounds that contradict those around them (indices).
        contradictions: How many steps and outliers there are in all, up to a limit.
    """

    step: Step | None
    outliers: Int
    contradictions: int


def first_step(bounds: Bounds) -> Finding:
    """Walks along a pair's edges and returns its first certified step and its outliers."""
    return _Walk(bounds).run()


class _Walk:
    """One walk. Spread in time, a bound loses by the drift: kept as value ∓ ρ·t, to be compared as one."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._lost = _drift(bounds.at_ns - bounds.at_ns[:1], bounds.drift)
        self._high = np.where(bounds.upper, bounds.value - self._lost, _OPEN)
        self._low = np.where(bounds.upper, -_OPEN, bounds.value + self._lost)

    def run(self) -> Finding:
        count = len(self._bounds.value)
        top, bottom = _OPEN, -_OPEN
        first: tuple[int, int, tuple[int, int]] | None = None
        outliers: list[int] = []
        segment = begin = steps = 0
        until = count
        while begin < count and steps + len(outliers) < _TOO_MANY:
            part = slice(begin, begin + _CHUNK)
            tops = np.minimum(np.minimum.accumulate(self._high[part]), top)
            bottoms = np.maximum(np.maximum.accumulate(self._low[part]), bottom)
            wrong = np.flatnonzero(bottoms - tops > 2 * self._lost[part])
            if not len(wrong):
                top, bottom = tops[-1], bottoms[-1]
                begin += _CHUNK
                continue
            at = begin + int(wrong[0])
            if at > begin:
                top, bottom = tops[wrong[0] - 1], bottoms[wrong[0] - 1]
            if not self._future_sides_with(at, top, bottom):
                outliers.append(self._drop(at))
                begin = at + 1
                continue
            new = self._from(at)
            witnesses = self._against(new, segment, at)
            if len(witnesses) == 1:
                # All that comes later against a single edge: that one is false, and no clock stepped.
                outliers.append(self._drop(int(witnesses[0])))
                top, bottom, begin = _OPEN, -_OPEN, segment
                continue
            if first is None:
                old = int(bottom - self._lost[at]), int(top + self._lost[at])
                first = int(witnesses[-1]) if len(witnesses) else at - 1, at, old
            elif steps == 1:
                until = at
            steps += 1
            top, bottom, segment, begin = _OPEN, -_OPEN, at, at
        step = None if first is None else Step(*first, self._interval(first[1], until))
        return Finding(step, np.array(sorted(outliers), dtype=np.int64), steps + len(outliers))

    def _drop(self, index: int) -> int:
        self._high[index], self._low[index] = _OPEN, -_OPEN
        return index

    def _future_sides_with(self, at: int, top: np.int64, bottom: np.int64) -> bool:
        """Returns whether the bounds after ``at`` side with it against those before it."""
        bounds, lost = self._bounds, self._lost
        for size in _JURIES:
            jury = slice(at + 1, at + 1 + size)
            against_past = (self._high[jury] + 2 * lost[jury] < bottom) | (
                self._low[jury] - 2 * lost[jury] > top
            )
            apart = _drift(bounds.at_ns[jury] - bounds.at_ns[at], bounds.drift)
            differs = bounds.upper[jury] != bounds.upper[at]
            gap = bounds.value[jury] - bounds.value[at]
            against_it = differs & (np.where(bounds.upper[at], gap, -gap) > apart)
            for_step, for_outlier = int(against_past.sum()), int(against_it.sum())
            if for_step != for_outlier:
                return for_step > for_outlier
        return False

    def _from(self, at: int) -> tuple[int, int]:
        """Returns what D can be at ``at`` by the bounds from there until the next contradiction."""
        jury = slice(at, at + _JURIES[1])
        value, upper = self._bounds.value[jury], self._bounds.upper[jury]
        spread = _drift(self._bounds.at_ns[jury] - self._bounds.at_ns[at], self._bounds.drift)
        bottoms = np.maximum.accumulate(np.where(upper, -_OPEN, value - spread))
        tops = np.minimum.accumulate(np.where(upper, value + spread, _OPEN))
        agree = max(int((bottoms <= tops).sum()) - 1, 0)
        return _closed(int(bottoms[agree]), int(tops[agree]))

    def _interval(self, at: int, until: int) -> tuple[int, int]:
        """Returns what D can be at ``at`` by the bounds from there on, outliers left out."""
        part = slice(at, min(at + _JURIES[-1], until))
        lost = self._lost[part]
        spread = _drift(self._bounds.at_ns[part] - self._bounds.at_ns[at], self._bounds.drift)
        low = int((self._low[part] - lost - spread).max())
        high = int((self._high[part] + lost + spread).min())
        return low, high

    def _against(self, new: tuple[int, int], segment: int, at: int) -> Int:
        """Returns which bounds between ``segment`` and ``at`` cannot hold together with D at ``at``."""
        back = slice(segment, at)
        apart = _drift(self._bounds.at_ns[back] - self._bounds.at_ns[at], self._bounds.drift)
        lost = self._lost[back]
        high, low = self._high[back] + lost, self._low[back] - lost
        return segment + np.flatnonzero((high + apart < new[0]) | (low - apart > new[1]))


def _drift(duration: Int, drift: int) -> Int:
    """Returns drift × duration, ns; rounded up."""
    return ((np.abs(duration) >> 20) + 1) * drift >> 10


def _closed(low: int, high: int) -> tuple[int, int]:
    """Returns an interval; a side that nothing bounds is put where the other is."""
    if low < -(_OPEN // 2):
        low = high
    elif high > _OPEN // 2:
        high = low
    return min(low, high), max(low, high)


def _middle(interval: tuple[int, int]) -> int:
    return sum(_closed(*interval)) // 2
