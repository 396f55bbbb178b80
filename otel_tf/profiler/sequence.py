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


def aligned(start: Int, end: Int, outer_start: Int, outer_end: Int) -> Iterator[tuple[int, int]]:
    """Yields (run, call) for runs that the n-th call caused, by another clock.

    Each run lies inside its call. So the difference of the clocks lies, for every pair, between the pair's
    differences of starts and of ends; the right position is the one where one difference suits most pairs.
    It is taken only if it suits nearly all and no other position suits as many: evenly spaced calls that
    all take the same time look alike everywhere.

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
    best: list[tuple[float, int, int]] = []
    for shift in range(-runs + _FEWEST, calls - _FEWEST + 1):
        first, last = max(0, -shift), min(runs, calls - shift)
        some = np.unique(np.linspace(first, last - 1, min(_PROBE, last - first)).astype(np.int64))
        least = outer_start[some + shift] - start[some]
        most = outer_end[some + shift] - end[some]
        fitting, at = _common(least, most)
        if fitting >= max(_ENOUGH * len(some), _FEWEST):
            best.append((fitting * (last - first) / len(some), shift, at))
    best.sort(reverse=True)
    if not best or (len(best) > 1 and best[1][0] >= _ENOUGH * best[0][0]):
        return None
    _, shift, at = best[0]
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
