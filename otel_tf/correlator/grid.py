"""Bounds by windows of every clock: aggregated, solved, and freed of what contradicts them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from otel_tf.correlator import solver
from otel_tf.correlator.columns import Int, median
from otel_tf.correlator.crossings import HARD_DRIFT, SOFT_DRIFT, Crossings, Epochs, Together
from otel_tf.correlator.slopes import Slopes
from otel_tf.correlator.solver import Constraints, InfeasibleError

if TYPE_CHECKING:
    from otel_tf.correlator.engines.duckdb import Engine

__all__ = ["Grid", "grid"]

#: Edges a pair of clocks should have in one window, and the windows' limits (2^bits ns: 1 ms … 8.6 s).
_EDGES_PER_WINDOW, _MIN_BITS, _MAX_BITS, _MAX_NODES = 64, 20, 33, 1 << 20
#: Windows as long as the limit of nodes makes them, but so that products of drifts and times fit 64 bits.
_WIDEST_BITS = 42
#: Windows that may each be given up to the hard drift before their whole epoch is.
_SOFT_ATTEMPTS = 32
#: How far apart the leaves of a barrier are for reasons of their own, at least; and how few tell nothing.
_TOGETHER_NS, _TOGETHER_FEWEST = 1_000, 8


def grid(crossings: Crossings, epochs: Epochs, reference: int, engine: Engine) -> tuple[Grid, Int, Int]:
    """Returns an unsolved grid, each epoch's component, and each component's anchor."""
    count = len(epochs.domain)
    component, anchors = _components(crossings, count, reference)
    first, last = _reach(crossings, epochs)
    bits = _window_bits(crossings, int((last - first).max()) + 1, count)
    base = first - (1 << bits)  # one window to spare on either side: no edge lies outside
    windows = int(((last - base).max() >> bits) + 3)
    fixed = np.zeros(count, dtype=bool)
    fixed[anchors] = True
    made = Grid(crossings, base, bits=bits, windows=windows, fixed=fixed, engine=engine)
    return made, component, anchors


def _reach(crossings: Crossings, epochs: Epochs) -> tuple[Int, Int]:
    """Returns the first and last reading of every epoch at an edge; of one without edges its first twice.

    What lies beyond may be a stray stamp from another century, and must not set the windows' size.
    """
    first = np.full(len(epochs.domain), np.iinfo(np.int64).max, dtype=np.int64)
    last = np.full(len(epochs.domain), np.iinfo(np.int64).min, dtype=np.int64)
    for epoch, reading in ((crossings.src_epoch, crossings.src_ns), (crossings.dst_epoch, crossings.dst_ns)):
        np.minimum.at(first, epoch, reading)
        np.maximum.at(last, epoch, reading)
    lone = first > last
    return np.where(lone, epochs.first_ns, first), np.where(lone, epochs.first_ns, last)


def _window_bits(crossings: Crossings, length: int, count: int) -> int:
    """Returns log2 of a window in ns that holds enough edges of each pair, within the node limit."""
    pairs = len(_pairs(crossings, count)[0])
    wanted = length * _EDGES_PER_WINDOW * max(pairs, 1) // max(len(crossings.edge), 1)
    bits = min(max(wanted.bit_length(), _MIN_BITS), _MAX_BITS)
    while (length >> bits) * count > _MAX_NODES and bits < _WIDEST_BITS:
        bits += 1
    return bits


def _pairs(crossings: Crossings, count: int) -> tuple[Int, Int]:
    """Returns the ordered pairs of epochs that have edges between them."""
    pair = crossings.src_epoch * np.int64(count) + crossings.dst_epoch
    # Counting beats sorting, but not for millions of possible pairs.
    distinct = np.flatnonzero(np.bincount(pair)) if count < 1 << 11 else np.unique(pair)
    return distinct // count, distinct % count


def _components(crossings: Crossings, count: int, reference: int) -> tuple[Int, Int]:
    """Returns each epoch's component (0 has the reference) and each component's anchor epoch."""
    left, right = _pairs(crossings, count)
    label = np.arange(count, dtype=np.int64)
    while True:
        before = label.copy()
        lower = np.minimum(label[left], label[right])
        np.minimum.at(label, left, lower)
        np.minimum.at(label, right, lower)
        label = label[label]
        if np.array_equal(before, label):
            break
    busy = np.bincount(crossings.src_epoch, minlength=count) + np.bincount(
        crossings.dst_epoch, minlength=count
    )
    component = np.full(count, -1, dtype=np.int64)
    component[label == label[reference]] = 0
    anchors = [reference]
    for number in np.unique(label[component < 0]):
        members = np.flatnonzero(label == number)
        component[members] = len(anchors)
        anchors.append(int(members[np.argmax(busy[members])]))
    return component, np.array(anchors, dtype=np.int64)


class Grid:
    """The aggregated bounds of one fit, and what was given up to make them satisfiable."""

    def __init__(
        self,
        crossings: Crossings,
        base: Int,
        *,
        bits: int,
        windows: int,
        fixed: npt.NDArray[np.bool_],
        engine: Engine,
    ) -> None:
        self._crossings = crossings
        self.base = base
        self.bits = bits
        self._windows = windows
        self.fixed = fixed
        self._engine = engine
        self.slope: Int = np.zeros(len(base), dtype=np.int64)
        self.soft: Int = np.where(fixed, 0, SOFT_DRIFT)
        self.hard: Int = np.where(fixed, 0, HARD_DRIFT)
        self.contradictions: list[int] = []
        self._rows: dict[str, Int] = {}

    def use(self, found: Slopes) -> None:
        """Takes slopes off from now on; what they may be off by is added to the drift allowed."""
        self.slope = found.slope
        self.soft = np.where(self.fixed, 0, np.minimum(SOFT_DRIFT + found.doubt, HARD_DRIFT))
        self.hard = np.where(self.fixed, 0, HARD_DRIFT + found.doubt)

    def aggregate(self) -> dict[str, Int]:
        """Returns the tightest bound of every pair of windows, in a fixed order."""
        used = self._crossings
        source = used.src_ns - self.base[used.src_epoch]
        target = used.dst_ns - self.base[used.dst_epoch]
        rows = self._engine.query(
            "aggregate",
            crossings={
                "src_epoch": used.src_epoch,
                "dst_epoch": used.dst_epoch,
                "x": source,
                "y": target,
                "gap": target - source - used.min_ns,
                "unsure": used.unsure_ns,
            },
            epochs={
                "epoch": np.arange(len(self.base), dtype=np.int64),
                "slope": self.slope,
                "soft": self.soft,
                "hard": self.hard,
            },
            settings={"bits": np.array([self.bits], dtype=np.int64)},
        )
        keys = ("dst_window", "src_window", "dst_epoch", "src_epoch")
        order = np.lexsort(tuple(rows[key] for key in keys))
        return {name: values[order].astype(np.int64) for name, values in rows.items()}

    def _over_a_window(self, rate: Int) -> Int:
        """Returns what a rate in units of 2^-30 makes in one window, ns."""
        return rate << (self.bits - 30) if self.bits > 30 else rate >> (30 - self.bits)

    def _constraints(self, soft: npt.NDArray[np.bool_], aligned: dict[str, Int] | None = None) -> Constraints:
        rows = self._rows
        src = rows["src_epoch"] * self._windows + rows["src_window"]
        dst = rows["dst_epoch"] * self._windows + rows["dst_window"]
        flat = soft.reshape(-1)
        step = self._over_a_window(self.slope)
        drift = np.where(soft[:, 1:] & soft[:, :-1], self.soft[:, None], self.hard[:, None])
        slack = self._over_a_window(drift) + 1
        slack[self.fixed] = 0
        bound = np.where(flat[src] & flat[dst], rows["soft"], rows["hard"])
        if aligned is not None:
            src, dst = np.concatenate([src, aligned["src"]]), np.concatenate([dst, aligned["dst"]])
            bound = np.concatenate([bound, aligned["bound"]])
        return Constraints(
            src=src,
            dst=dst,
            bound=bound,
            up=step[:, None] + slack,
            down=slack - step[:, None],
            fixed=self.fixed,
        )

    def place_one_sided(
        self, estimate: Int, from_above: npt.NDArray[np.bool_], bounded: npt.NDArray[np.bool_], raw: Int
    ) -> Int:
        """Returns ``estimate`` with the epochs that are not bounded from both sides placed as well.

        They keep the time they were set to where that contradicts nothing, and otherwise move as a whole,
        no further than needed; since nothing is known of their drift, none is assumed.
        """
        wish = np.where(bounded[:, None], estimate, raw)
        rows = self._rows
        for downwards in (True, False):
            movable = ~bounded & (from_above.all(axis=1) == downwards)
            constraints = dataclasses.replace(
                self._constraints(np.ones_like(from_above)), bound=rows["gap"], fixed=~movable
            )
            step = self._over_a_window(self.slope)[:, None]
            constraints.up[:], constraints.down[:] = step, -step
            # What cannot be satisfied like this is left to the repair.
            settled = solver.settle(constraints, wish, downwards=downwards)
            wish = wish if settled is None else settled
        return wish

    def hard_bounds(self) -> tuple[Int, Int]:
        """Returns lowest and highest origins (E, K); edges that contradict the rest are taken out first."""
        while True:
            self._rows = self.aggregate()
            constraints = self._constraints(np.zeros((len(self.base), self._windows), dtype=bool))
            try:
                return solver.lowest(constraints), solver.highest(constraints)
            except InfeasibleError as error:
                self._give_up(error)

    def _give_up(self, error: InfeasibleError) -> None:
        """Takes the least trusted edge of a contradiction out: the one furthest below its pair's habit."""
        rows = self._rows
        pair = rows["src_epoch"] * len(self.base) + rows["dst_epoch"]

        def oddness(row: int) -> tuple[int, int]:
            usual = median(rows["hard"][pair == pair[row]])
            return usual - int(rows["hard"][row]), -int(rows["edges"][row])

        worst = max((int(row) for row in error.rows), key=oddness)
        used = self._crossings
        source = used.src_ns - self.base[used.src_epoch]
        target = used.dst_ns - self.base[used.dst_epoch]
        inside = np.flatnonzero(
            (used.src_epoch == rows["src_epoch"][worst])
            & (used.dst_epoch == rows["dst_epoch"][worst])
            & (source >> self.bits == rows["src_window"][worst])
            & (target >> self.bits == rows["dst_window"][worst])
        )
        gap = (target - source - used.min_ns)[inside]
        loser = inside[np.argmin(gap)]
        self.contradictions.append(int(used.edge[loser]))
        keep = np.ones(len(used.edge), dtype=bool)
        keep[loser] = False
        self._crossings = used.take(keep)

    def estimate(self, low: Int, high: Int, together: Together) -> Int:
        """Returns the middle of what is possible when assumptions are kept to as far as they can be.

        They are that clocks keep to the soft drift and that barriers are left together. On a contradiction
        first the drift is given up where it is, then what was left together there.
        """
        soft = np.ones((len(self.base), self._windows), dtype=bool)
        aligned = self._alignments(together)
        used = np.ones(len(aligned["bound"]), dtype=bool)
        for attempt in range(2 * _SOFT_ATTEMPTS + len(self.base)):
            constraints = self._constraints(soft, {name: column[used] for name, column in aligned.items()})
            try:
                low, high = solver.lowest(constraints), solver.highest(constraints)
                break
            except InfeasibleError as error:
                epoch, window = error.nodes // self._windows, error.nodes % self._windows
                blamed = error.rows[error.rows >= len(self._rows["hard"])] - len(self._rows["hard"])
                if len(blamed) and not (soft[epoch, window] & ~self.fixed[epoch]).any():
                    used[np.flatnonzero(used)[blamed]] = False
                elif attempt < _SOFT_ATTEMPTS:
                    soft[epoch, window] = False
                else:
                    soft[epoch] = False
        return (low + high) >> 1

    def _alignments(self, together: Together) -> dict[str, Int]:
        """Returns, per pair of windows, bounds around the median difference of what happened together."""
        x = together.src_ns - self.base[together.src_epoch]
        y = together.dst_ns - self.base[together.dst_epoch]
        half = 1 << (self.bits - 1)
        dx = x - (x >> self.bits << self.bits) - half
        dy = y - (y >> self.bits << self.bits) - half
        gap = (
            y - x - (self.slope[together.src_epoch] * dx >> 30) + (self.slope[together.dst_epoch] * dy >> 30)
        )
        src = together.src_epoch * self._windows + (x >> self.bits)
        dst = together.dst_epoch * self._windows + (y >> self.bits)
        order = np.lexsort((gap, dst, src))
        src, dst, gap = src[order], dst[order], gap[order]
        new = np.flatnonzero(np.r_[True, (np.diff(src) != 0) | (np.diff(dst) != 0)][: len(src)])
        size = np.diff(np.r_[new, len(src)])
        new, size = new[size >= _TOGETHER_FEWEST], size[size >= _TOGETHER_FEWEST]
        median = gap[new + size // 2]
        # The distance of the quartiles, less the more there are; and what drift may do meanwhile.
        spread = (gap[new + 3 * size // 4] - gap[new + size // 4]) // np.sqrt(size).astype(np.int64)
        drift = self.soft[src[new] // self._windows] + self.soft[dst[new] // self._windows]
        spread = spread + (self._over_a_window(drift) >> 1) + _TOGETHER_NS
        src, dst = src[new], dst[new]
        return {
            "src": np.concatenate([src, dst]),
            "dst": np.concatenate([dst, src]),
            "bound": np.concatenate([median + spread, spread - median]),
        }
