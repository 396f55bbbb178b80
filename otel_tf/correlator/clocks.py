"""Clock models fitted to causes: hard bounds on every clock at every window, and a best estimate within.

Every epoch (a clock between two of its steps) has an origin as a function of its own local time: corrected
= local + shift. Edges between clocks bound differences of shifts; the drift that may have happened between
an edge and its window's centre is paid for in the bound, so bounds are hard whenever the latency is at
least min_ns and the drift, beyond the epoch's median slope, at most `HARD_DRIFT`. Within them the estimate
also assumes `SOFT_DRIFT`, wherever that contradicts nothing.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from otel_tf.correlator import solver
from otel_tf.correlator.columns import Int, median
from otel_tf.correlator.slopes import Slopes, slopes
from otel_tf.correlator.solver import UNBOUNDED, Constraints, InfeasibleError

if TYPE_CHECKING:
    from otel_tf.correlator.engines.duckdb import Engine

__all__ = ["HARD_DRIFT", "SOFT_DRIFT", "Crossings", "Epochs", "Fit", "Together", "fit", "rough_slopes"]

#: Drift in units of 2^-30. Hard: the kernel's limit for slewing a clock, 500 ppm, and a crystal beside it.
HARD_DRIFT = round(600e-6 * 2**30)
#: What a clock's rate does within seconds when nobody slews it.
SOFT_DRIFT = round(10e-6 * 2**30)
#: Edges a pair of clocks should have in one window, and the windows' limits (2^bits ns: 1 ms … 8.6 s).
_EDGES_PER_WINDOW, _MIN_BITS, _MAX_BITS, _MAX_NODES = 64, 20, 33, 1 << 20
#: Windows that may each be given up to the hard drift before their whole epoch is.
_SOFT_ATTEMPTS = 32
_PIECE = 1 << 17
#: How far apart the leaves of a barrier are for reasons of their own, at least.
_TOGETHER_NS, _TOGETHER_FEWEST = 1_000, 8


@dataclasses.dataclass(frozen=True)
class Epochs:
    """Clocks between steps, arrays (E,): the domain, and the first and last local time, ns."""

    domain: Int
    first_ns: Int
    last_ns: Int


@dataclasses.dataclass(frozen=True)
class Crossings:
    """Edges between two epochs, arrays (C,): local times of both ends and the least time between them.

    ``min_ns`` has the blur of both readings taken off already; ``unsure_ns`` is what a hard bound has to
    allow beside it, since an end may be on the other side of a step. ``edge`` indexes the caller's edges,
    ``src`` and ``dst`` are its events.
    """

    src_epoch: npt.NDArray[np.int32]
    dst_epoch: npt.NDArray[np.int32]
    src_ns: Int
    dst_ns: Int
    min_ns: Int
    unsure_ns: Int
    edge: npt.NDArray[np.signedinteger[Any]]
    src: npt.NDArray[np.signedinteger[Any]]
    dst: npt.NDArray[np.signedinteger[Any]]

    def take(self, index: npt.NDArray[np.bool_]) -> Crossings:
        """Returns the crossings at ``index``."""
        return Crossings(*(getattr(self, field.name)[index] for field in dataclasses.fields(self)))


@dataclasses.dataclass(frozen=True)
class Together:
    """Pairs of events believed to be simultaneous, arrays (P,): the leaves of one barrier."""

    src_epoch: Int
    dst_epoch: Int
    src_ns: Int
    dst_ns: Int


@dataclasses.dataclass(frozen=True)
class Fit:
    """Shifts at the centres of windows.

    Attributes:
        bits: A window is 2^bits ns of local time.
        base_ns: Local time at which an epoch's window 0 begins (E,).
        shift_ns: Best estimate of corrected − local (E, K).
        low_ns, high_ns: Bounds of the truth, against the component's anchor (E, K); void where not bounded.
        component: Epochs connected by edges share a number; 0 is the reference's.
        bounded: Epochs bounded from both sides against their component's anchor (E,).
        known: Those of them in the reference's component (E,).
        drift: By how much an epoch's rate may differ from its median, in units of 2^-30 (E,).
        contradictions: Edges that were left out because no clocks could satisfy them with the others.
    """

    bits: int
    base_ns: Int
    shift_ns: Int
    low_ns: Int
    high_ns: Int
    component: Int
    bounded: npt.NDArray[np.bool_]
    known: npt.NDArray[np.bool_]
    drift: Int
    contradictions: Int

    def at(self, epoch: npt.NDArray[np.integer], local_ns: Int) -> tuple[Int, Int]:
        """Returns shift and half-width of the bar for events; half-width `UNBOUNDED` where unknown, ns."""
        shift = np.empty(len(local_ns), dtype=np.int64)
        width = np.empty(len(local_ns), dtype=np.int64)
        # In pieces that stay in the processor's cache.
        for begin in range(0, len(local_ns), _PIECE):
            part = slice(begin, begin + _PIECE)
            shift[part], width[part] = self._at(epoch[part], local_ns[part])
        return shift, width

    def _at(self, epoch: npt.NDArray[np.integer], local_ns: Int) -> tuple[Int, Int]:
        since = local_ns - self.base_ns[epoch] - (1 << (self.bits - 1))
        node = epoch * np.int64(self.shift_ns.shape[1]) + (since >> self.bits)
        part = since & ((1 << self.bits) - 1)
        value = self._between(self.shift_ns, node, part)
        high = self._between(self.high_ns, node, part)
        low = self._between(self.low_ns, node, part)
        # Between two centres the truth may leave the straight line between their bounds by the drift of
        # the way there and back: 2ρ·p·(Δ−p)/Δ, from a table of 1,024 steps rounded up.
        cell = np.arange(1025, dtype=np.int64)
        tent = np.minimum((cell + 1) * (1024 - cell), 1 << 18)
        drift = self.drift[epoch]
        drifts = (2 * drift * tent[part >> (self.bits - 10)]) >> (50 - self.bits)
        drifts += np.where(drift > 0, 2, 0)
        width = np.maximum(high - value, value - low) + drifts
        return value, np.where(self.bounded[epoch], width, UNBOUNDED)

    def _between(self, grid: Int, node: Int, part: Int) -> Int:
        """Interpolates between the centres of a window and the next."""
        flat = grid.reshape(-1)
        left = flat[node]
        return left + (((flat[node + 1] - left) * part) >> self.bits)


def fit(
    crossings: Crossings,
    together: Together,
    epochs: Epochs,
    *,
    reference: int,
    engine: Engine,
    rows: dict[str, Int] | None = None,
) -> Fit:
    """Fits every epoch's shift to the reference epoch's clock.

    Args:
        crossings: Edges between epochs.
        together: Events of different epochs that are believed to be simultaneous: an estimate may follow
            them, a bar never does.
        epochs: The epochs.
        reference: The epoch whose clock is kept.
        engine: Runs `sql/aggregate.sql`.
        rows: What `rough_slopes` returned for the same crossings and epochs.
    """
    grid, component, anchors = _grid(crossings, epochs, reference, engine)
    base, bits = grid.base, grid.bits
    grid.use(slopes(grid.aggregate() if rows is None else rows, anchors, len(base), bits=bits, share=3))
    low, high = grid.hard_bounds()
    # Corrected = local + origin + (base of the anchor − own base): what the clocks were set to drops out.
    set_to = (base[anchors[component]] - base)[:, None]
    bounded = np.all((low > -(UNBOUNDED // 2)) & (high < UNBOUNDED // 2), axis=1)
    estimate = grid.estimate(low, high, together)
    if not bounded.all():
        estimate = grid.place_one_sided(estimate, high < UNBOUNDED // 2, bounded, -set_to)
    shift = estimate + set_to
    shift[anchors] = 0
    return Fit(
        bits=bits,
        base_ns=base,
        shift_ns=shift,
        low_ns=np.where(bounded[:, None], low + set_to, shift),
        high_ns=np.where(bounded[:, None], high + set_to, shift),
        component=component,
        bounded=bounded,
        known=bounded & (component == 0),
        drift=grid.hard,
        contradictions=np.array(grid.contradictions, dtype=np.int64),
    )


def rough_slopes(
    crossings: Crossings, epochs: Epochs, reference: int, engine: Engine
) -> tuple[Slopes, dict[str, Int]]:
    """Returns each epoch's slope as far as it can be told while clocks may still step, and its basis."""
    grid, _, anchors = _grid(crossings, epochs, reference, engine)
    rows = grid.aggregate()
    return slopes(rows, anchors, len(grid.base), bits=grid.bits, share=16), rows


def _grid(crossings: Crossings, epochs: Epochs, reference: int, engine: Engine) -> tuple[_Grid, Int, Int]:
    """Returns an unsolved grid, each epoch's component, and each component's anchor."""
    count = len(epochs.domain)
    component, anchors = _components(crossings, count, reference)
    bits = _window_bits(crossings, epochs)
    base = epochs.first_ns - (1 << bits)  # one window to spare on either side: no event lies outside
    windows = int(((epochs.last_ns - base).max() >> bits) + 3)
    fixed = np.zeros(count, dtype=bool)
    fixed[anchors] = True
    grid = _Grid(crossings, base, bits=bits, windows=windows, fixed=fixed, engine=engine)
    return grid, component, anchors


def _window_bits(crossings: Crossings, epochs: Epochs) -> int:
    """Returns log2 of a window in ns that holds enough edges of each pair, within the node limit."""
    length = int((epochs.last_ns - epochs.first_ns).max()) + 1 if len(epochs.domain) else 1
    pairs = len(_pairs(crossings, len(epochs.domain))[0])
    wanted = length * _EDGES_PER_WINDOW * max(pairs, 1) // max(len(crossings.edge), 1)
    bits = min(max(wanted.bit_length(), _MIN_BITS), _MAX_BITS)
    while (length >> bits) * max(len(epochs.domain), 1) > _MAX_NODES:
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


class _Grid:
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

    def _constraints(self, soft: npt.NDArray[np.bool_], aligned: dict[str, Int] | None = None) -> Constraints:
        rows = self._rows
        src = rows["src_epoch"] * self._windows + rows["src_window"]
        dst = rows["dst_epoch"] * self._windows + rows["dst_window"]
        flat = soft.reshape(-1)
        step = (self.slope << self.bits) >> 30
        drift = np.where(soft[:, 1:] & soft[:, :-1], self.soft[:, None], self.hard[:, None])
        slack = ((drift << self.bits) >> 30) + 1
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
            step = ((self.slope << self.bits) >> 30)[:, None]
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
        spread = spread + ((drift << self.bits) >> 31) + _TOGETHER_NS
        src, dst = src[new], dst[new]
        return {
            "src": np.concatenate([src, dst]),
            "dst": np.concatenate([dst, src]),
            "bound": np.concatenate([median + spread, spread - median]),
        }
