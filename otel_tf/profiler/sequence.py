"""Two clocks' accounts of the same calls in the same order, laid against each other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

__all__ = ["aligned"]

Int = npt.NDArray[np.int64]

#: Calls that are tried for every position.
_PROBE = 256
#: Less than this share of calls that fit is no answer, and as little as this many are none either.
_ENOUGH, _FEWEST = 0.9, 3
#: Positions where less than this share of the shorter sequence has a partner are not tried.
_OVERLAP = 0.5
#: How much more than the least the differences of the next position must vary.
_CLEARLY = 1.5


def aligned(start: Int, end: Int, outer_start: Int, outer_end: Int) -> Iterator[tuple[int, int]]:
    """Yields (run, call) for runs that the n-th call caused, by another clock.

    Each run lies inside its call. So the difference of the clocks lies, for every pair, between the pair's
    differences of starts and of ends; at the right position one difference suits nearly all pairs. Where it
    does at several positions, the one is taken where the pairs' differences vary clearly least; calls that
    are evenly spaced and all take the same time look alike everywhere, and then none is.

    Args:
        start: When each run began, ns, in their order (R,).
        end: When it ended.
        outer_start: When each call began, by the other clock (C,).
        outer_end: When it ended.
    """
    few = min(len(start), len(outer_start)) < _FEWEST
    position = None if few else _position(start, end, outer_start, outer_end)
    if position is None:
        return
    shift, low, high = position
    for run in range(max(0, -shift), min(len(start), len(outer_start) - shift)):
        call = run + shift
        # A call without a run, or one that was cut off, shows by not fitting.
        if outer_start[call] - start[run] <= low and high <= outer_end[call] - end[run]:
            yield run, call


def _position(start: Int, end: Int, outer_start: Int, outer_end: Int) -> tuple[int, int, int] | None:
    """Returns which call the first run is of, and what the difference of the clocks is."""
    runs, calls = len(start), len(outer_start)
    found: list[tuple[float, int, int]] = []
    for shift in range(-runs + _FEWEST, calls - _FEWEST + 1):
        first, last = max(0, -shift), min(runs, calls - shift)
        if last - first < _OVERLAP * min(runs, calls):
            continue
        some = np.unique(np.linspace(first, last - 1, min(_PROBE, last - first)).astype(np.int64))
        least = outer_start[some + shift] - start[some]
        most = outer_end[some + shift] - end[some]
        fitting, at = _common(least, most)
        if fitting >= max(_ENOUGH * len(some), _FEWEST):
            quarters = np.percentile(least // 2 + most // 2, [25, 75])
            found.append((float(quarters[1] - quarters[0]), shift, at))
    found.sort()
    if not found or (len(found) > 1 and found[1][0] < _CLEARLY * (found[0][0] + 1)):
        return None
    _, shift, at = found[0]
    return shift, at, at


def _common(least: Int, most: Int) -> tuple[int, int]:
    """Returns how many of the ranges one value is in, at most, and a value that is in as many."""
    good = least <= most
    if not good.any():
        return 0, 0
    edges = np.concatenate([least[good], most[good]])
    change = np.repeat([1, -1], int(good.sum()))
    order = np.lexsort((-change, edges))
    depth = np.cumsum(change[order])
    deepest = int(np.argmax(depth))
    low = int(edges[order[deepest]])
    high = int(edges[order[min(deepest + 1, len(order) - 1)]])
    return int(depth[deepest]), low + (high - low) // 2
