"""Clock models fitted to causes: hard bounds on every clock at every window, and a best estimate within.

Every epoch (a clock between two of its steps) has an origin as a function of its own local time: corrected
= local + shift. Edges between clocks bound differences of shifts; the drift that may have happened between
an edge and its window's centre is paid for in the bound, so bounds are hard whenever the latency is at
least min_ns and the drift, beyond the epoch's median slope, at most `HARD_DRIFT`. Within them the estimate
also assumes `SOFT_DRIFT`, wherever that contradicts nothing.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from otel_tf.correlator.columns import Int
from otel_tf.correlator.crossings import Crossings, Epochs, Together
from otel_tf.correlator.grid import grid
from otel_tf.correlator.slopes import Slopes, slopes
from otel_tf.correlator.solver import UNBOUNDED

if TYPE_CHECKING:
    from otel_tf.correlator.engines.duckdb import Engine

__all__ = ["Fit", "fit", "rough_slopes"]

#: An event this far (13 days) from the last edge of its clock has no bar.
_FAR_BITS = 50
#: Events at a time, so that what each needs for a moment stays in the processor's cache.
_PIECE = 1 << 17


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
        slope: Median d(shift)/d(local) of every epoch, in units of 2^-30 (E,).
        drift: By how much it may differ from that (E,).
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
    slope: Int
    drift: Int
    contradictions: Int

    def at(self, epoch: npt.NDArray[np.integer], local_ns: Int) -> tuple[Int, Int]:
        """Returns shift and half-width of the bar for events; half-width `UNBOUNDED` where unknown, ns."""
        shift = np.empty(len(local_ns), dtype=np.int64)
        width = np.empty(len(local_ns), dtype=np.int64)
        for begin in range(0, len(local_ns), _PIECE):
            part = slice(begin, begin + _PIECE)
            shift[part], width[part] = self._at(epoch[part], local_ns[part])
        return shift, width

    def _at(self, epoch: npt.NDArray[np.integer], local_ns: Int) -> tuple[Int, Int]:
        windows = self.shift_ns.shape[1]
        asked = local_ns - self.base_ns[epoch] - (1 << (self.bits - 1))
        since = np.clip(asked, 0, (windows - 1 << self.bits) - 1)
        node = epoch * np.int64(windows) + (since >> self.bits)
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
        known = self.bounded[epoch]
        if (beyond := asked - since).any():
            # Before the first edge and after the last a clock goes on at its median rate, as far as is known.
            near = np.clip(beyond, -(1 << _FAR_BITS), 1 << _FAR_BITS)
            value = value + ((near >> 10) * self.slope[epoch] >> 20)
            width = width + (((np.abs(near) >> 10) + 1) * drift >> 20)
            known = known & (near == beyond)
        return value, np.where(known, width, UNBOUNDED)

    def _between(self, values: Int, node: Int, part: Int) -> Int:
        """Interpolates between the centres of a window and the next."""
        flat = values.reshape(-1)
        left = flat[node]
        # Of very long windows a coarser place in them will do, for the product's sake.
        coarse = max(self.bits - 30, 0)
        return left + (((flat[node + 1] - left) * (part >> coarse)) >> (self.bits - coarse))


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
    bounds, component, anchors = grid(crossings, epochs, reference, engine)
    base, bits = bounds.base, bounds.bits
    bounds.use(slopes(bounds.aggregate() if rows is None else rows, anchors, len(base), bits=bits, share=3))
    low, high = bounds.hard_bounds()
    # Corrected = local + origin + (base of the anchor − own base): what the clocks were set to drops out.
    set_to = (base[anchors[component]] - base)[:, None]
    bounded = np.all((low > -(UNBOUNDED // 2)) & (high < UNBOUNDED // 2), axis=1)
    estimate = bounds.estimate(low, high, together)
    if not bounded.all():
        estimate = bounds.place_one_sided(estimate, high < UNBOUNDED // 2, bounded, -set_to)
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
        slope=bounds.slope,
        drift=bounds.hard,
        contradictions=np.array(bounds.contradictions, dtype=np.int64),
    )


def rough_slopes(
    crossings: Crossings, epochs: Epochs, reference: int, engine: Engine
) -> tuple[Slopes, dict[str, Int]]:
    """Returns each epoch's slope as far as it can be told while clocks may still step, and its basis."""
    bounds, _, anchors = grid(crossings, epochs, reference, engine)
    rows = bounds.aggregate()
    return slopes(rows, anchors, len(bounds.base), bits=bounds.bits, share=16), rows
