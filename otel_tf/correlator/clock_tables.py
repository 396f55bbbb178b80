"""The fitted clocks as a table per window and as a report per domain."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa

from otel_tf.correlator.adjust import Adjusted
from otel_tf.correlator.columns import Columns, Int, median

__all__ = ["clock_report", "clock_table"]


def _windows(adjusted: Adjusted) -> tuple[Int, Int, Int]:
    """Returns (epoch, window, local time of the centre) of every window that an event may lie in."""
    fit = adjusted.model
    used = ((adjusted.clocks.extents.last_ns - fit.base_ns) >> fit.bits) + 1
    used = np.minimum(np.maximum(used, 2), fit.shift_ns.shape[1])
    epoch = np.repeat(np.arange(len(used)), used)
    window = np.arange(len(epoch)) - np.repeat(np.cumsum(used) - used, used)
    real = window >= 1  # window 0 only exists to be interpolated from
    epoch, window = epoch[real], window[real]
    return epoch, window, fit.base_ns[epoch] + (window << fit.bits) + (1 << (fit.bits - 1))


def clock_table(columns: Columns, adjusted: Adjusted) -> pa.Table:
    """Returns one row a window: domain, epoch, at_ns, shift_ns, low_ns, high_ns (null where unknown).

    ``at_ns`` is the clock's own reading, so that a reading plus its shift is corrected time.
    """
    fit = adjusted.model
    epoch, window, at = _windows(adjusted)
    unknown = ~fit.known[epoch]
    taken = adjusted.clocks.taken_ns[epoch]
    names = pa.array(columns.domains, pa.string())
    return pa.table(
        {
            "domain": pa.DictionaryArray.from_arrays(
                pa.array(adjusted.clocks.extents.domain[epoch].astype(np.int32)), names
            ),
            "epoch": pa.array(epoch),
            "at_ns": pa.array(at + taken),
            "shift_ns": pa.array(fit.shift_ns[epoch, window] - taken),
            "low_ns": pa.array(fit.low_ns[epoch, window] - taken, mask=unknown),
            "high_ns": pa.array(fit.high_ns[epoch, window] - taken, mask=unknown),
        }
    )


def clock_report(columns: Columns, adjusted: Adjusted) -> list[dict[str, Any]]:
    """Returns one object a domain: how far it was ahead of the reference, its drift, the bar, its steps.

    ``offset_ns`` and ``error_ns`` (the half-width of its bar) are medians over the windows before the
    first step; ``drift_ppm`` is positive for a clock that runs fast; ``steps`` are ``{"at_ns", "size_ns"}``,
    the clock's own reading before the step and by how much it jumped, positive for forward. Offset, drift
    and error are null for a clock that nothing ties to the reference.
    """
    fit, clocks = adjusted.model, adjusted.clocks
    epoch, window, at = _windows(adjusted)
    result: list[dict[str, Any]] = []
    for number, name in enumerate(columns.domains):
        mine = clocks.extents.domain[epoch] == number
        first = mine & (clocks.rank[epoch] == 0)
        item: dict[str, Any] = {"domain": name, "offset_ns": None, "drift_ppm": None, "error_ns": None}
        if fit.known[epoch[first]].all():
            shift = fit.shift_ns[epoch[first], window[first]]
            above = fit.high_ns[epoch[first], window[first]] - shift
            below = shift - fit.low_ns[epoch[first], window[first]]
            item["offset_ns"] = -median(shift)
            item["drift_ppm"] = _drift(epoch[mine], at[mine], fit.shift_ns[epoch[mine], window[mine]])
            item["error_ns"] = median(np.maximum(above, below))
        item["steps"] = _steps(adjusted, number)
        result.append(item)
    return result


def _steps(adjusted: Adjusted, domain: int) -> list[dict[str, int]]:
    """Returns the steps of a domain: its reading before each, and the jump, as fitted where it was."""
    fit, clocks, extents = adjusted.model, adjusted.clocks, adjusted.clocks.extents
    found = [(step.at_ns, step.size_ns) for step in clocks.steps if step.domain == domain]
    epochs = np.flatnonzero(extents.domain == domain)
    for old, new in itertools.pairwise(epochs[np.argsort(clocks.rank[epochs])].tolist()):
        ends = np.array([extents.last_ns[old], extents.first_ns[new]])
        shift, _ = fit.at(np.array([old, new]), ends)
        jump = int(clocks.taken_ns[new] - clocks.taken_ns[old] - (shift[1] - shift[0]))
        found.append((int(ends[0] + clocks.taken_ns[old]), jump))
    return [{"at_ns": at, "size_ns": size} for at, size in sorted(found)]


def _drift(epoch: Int, at: Int, shift: Int) -> float:
    """Returns the median rate of the clock against the reference within its longest epoch, ppm."""
    longest = epoch == np.bincount(epoch).argmax()
    at, shift = at[longest], shift[longest]
    lag = len(at) // 2
    if not lag:
        return 0.0
    slope = float(np.median((shift[lag:] - shift[:-lag]) / (at[lag:] - at[:-lag])))
    # shift = reference − local, so a fast clock's shift falls; 1/(1+slope) − 1 is its own rate.
    return round((1.0 / (1.0 + slope) - 1.0) * 1e6, 4)
