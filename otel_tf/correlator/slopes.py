"""Median drift of every epoch against the others, before anything is solved."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from otel_tf.correlator.columns import Int

__all__ = ["Slopes", "slopes"]

#: A slope below so many standard errors is not one.
_SIGNIFICANT = 3.0
#: No crystal is further off; what looks like more doubt than that is a step or a latency.
_MOST_DOUBT = round(200e-6 * 2**30)


@dataclasses.dataclass(frozen=True)
class Slopes:
    """Slopes d(shift)/d(local) in units of 2^-30, and how far off each may be; arrays (E,)."""

    slope: Int
    doubt: Int


def slopes(rows: dict[str, Int], anchors: Int, count: int, *, bits: int, share: int) -> Slopes:
    """Returns each epoch's median slope, by a tree of pairs from the anchors, which have none.

    Of an ordered pair the lower envelope of (dst − src) rises with slope(src) − slope(dst): the median of
    its rises over ``1/share`` of its length (after Theil and Sen). A long lag is precise; a short one
    passes over (share − 1)/2 steps.

    Args:
        rows: Tightest bounds per pair of windows, as `sql/aggregate.sql` returns them.
        anchors: Epochs whose slope is 0 by definition.
        count: Number of epochs E.
        bits: A window is 2^bits ns.
        share: The lag as a share of a pair's length.
    """
    order = np.lexsort((rows["hard"], rows["src_window"], rows["dst_epoch"], rows["src_epoch"]))
    src, dst, window = (rows[name][order] for name in ("src_epoch", "dst_epoch", "src_window"))
    # An edge's ends may lie in neighbouring windows: of a source window's rows the tightest.
    new = np.r_[True, (np.diff(src) != 0) | (np.diff(dst) != 0) | (np.diff(window) != 0)][: len(src)]
    order, src, dst, window = order[new], src[new], dst[new], window[new]
    bound, edges = rows["hard"][order], rows["edges"][order]
    change = np.flatnonzero((np.diff(src) != 0) | (np.diff(dst) != 0)) + 1
    relative: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for begin, end in itertools.pairwise([0, *change.tolist(), len(src)]):
        found = _rise(window[begin:end], bound[begin:end], bits, share)
        if found is not None:
            a, b = int(src[begin]), int(dst[begin])
            sign = 1 if a < b else -1
            item = (int(edges[begin:end].sum()), sign * found[0], found[1])
            relative.setdefault((min(a, b), max(a, b)), []).append(item)
    return _along_tree(relative, anchors, count)


def _rise(window: Int, bound: Int, bits: int, share: int) -> tuple[int, int] | None:
    """Returns the median slope of one pair's envelope and its doubt, in units of 2^-30."""
    lag = max(len(window) // share, 1)
    if len(window) <= lag:
        return None
    run = ((window[lag:] - window[:-lag]) << bits).astype(np.float64)
    rise = (bound[lag:] - bound[:-lag]).astype(np.float64)
    slope = float(np.median(rise / run))
    noise = 1.4826 * float(np.median(np.abs(rise - slope * run)))
    if len(run) < 3:
        noise = max(noise, abs(float(rise[0])))  # two points lie on a line whatever they are
    error = noise / float(np.median(run)) / np.sqrt(max(len(window) / lag, 1.0))
    if abs(slope) < _SIGNIFICANT * error:
        return 0, min(int(abs(slope) * 2**30), _MOST_DOUBT)
    return int(slope * 2**30), min(int(error * 2**30), _MOST_DOUBT)


def _along_tree(
    relative: dict[tuple[int, int], list[tuple[int, int, int]]], anchors: Int, count: int
) -> Slopes:
    """Adds slopes up along a maximum spanning tree: pairs with many edges know theirs best."""
    slope: Int = np.zeros(count, dtype=np.int64)
    doubt: Int = np.zeros(count, dtype=np.int64)
    pairs = {
        pair: (
            sum(edges for edges, _, _ in items),
            sum(value for _, value, _ in items) // len(items),
            max(error for _, _, error in items),
        )
        for pair, items in relative.items()
    }
    done = {int(anchor) for anchor in anchors}
    while True:
        reach = [(edges, -a, -b) for (a, b), (edges, _, _) in pairs.items() if (a in done) != (b in done)]
        if not reach:
            return Slopes(slope, doubt)
        _, a, b = max(reach)
        a, b = -a, -b
        _, difference, error = pairs[a, b]
        known, other, sign = (a, b, -1) if a in done else (b, a, 1)
        slope[other] = slope[known] + sign * difference
        doubt[other] = doubt[known] + error
        done.add(other)
