"""The fitted clocks as a table per window and as a report per domain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from otel_tf.correlator.adjust import Adjusted
from otel_tf.correlator.columns import Columns, Int
from otel_tf.correlator.solver import UNBOUNDED

__all__ = ["clock_report", "clock_table"]


def _windows(adjusted: Adjusted) -> tuple[Int, Int, Int]:
    """Returns (epoch, window, local time of the centre) of every window that an event may lie in."""
    fit = adjusted.clocks
    used = ((adjusted.epochs.last_ns - fit.base_ns) >> fit.bits) + 1
    epoch = np.repeat(np.arange(len(used)), used)
    window = np.arange(len(epoch)) - np.repeat(np.cumsum(used) - used, used)
    real = window >= 1  # window 0 only exists to be interpolated from
    epoch, window = epoch[real], window[real]
    return epoch, window, fit.base_ns[epoch] + (window << fit.bits) + (1 << (fit.bits - 1))


def clock_table(columns: Columns, adjusted: Adjusted) -> pa.Table:
    """Returns one row a window: domain, epoch, at_ns, shift_ns, low_ns, high_ns (null where unknown)."""
    fit = adjusted.clocks
    epoch, window, at = _windows(adjusted)
    unknown = ~fit.known[epoch]
    names = pa.array(columns.domains, pa.string())
    return pa.table(
        {
            "domain": pa.DictionaryArray.from_arrays(
                pa.array(adjusted.epochs.domain[epoch].astype(np.int32)), names
            ),
            "epoch": pa.array(epoch),
            "at_ns": pa.array(at),
            "shift_ns": pa.array(fit.shift_ns[epoch, window]),
            "low_ns": pa.array(fit.low_ns[epoch, window], mask=unknown),
            "high_ns": pa.array(fit.high_ns[epoch, window], mask=unknown),
        }
    )


def clock_report(columns: Columns, adjusted: Adjusted) -> list[dict[str, Any]]:
    """Returns one object a domain: how far it was ahead of the reference, its drift, the bar, its steps.

    ``offset_ns`` and ``error_ns`` (the half-width of its bar) are medians over the windows, ``drift_ppm``
    is positive for a clock that runs fast, ``steps`` are ``{"at_ns": corrected time, "size_ns": …}`` with
    the size positive for a step forward. All null for a clock that nothing ties to the reference.
    """
    fit = adjusted.clocks
    epoch, window, at = _windows(adjusted)
    result: list[dict[str, Any]] = []
    for number, name in enumerate(columns.domains):
        mine = adjusted.epochs.domain[epoch] == number
        e, w = epoch[mine], window[mine]
        if not len(e) or not fit.known[e].all():
            result.append(
                {"domain": name, "offset_ns": None, "drift_ppm": None, "error_ns": None, "steps": []}
            )
            continue
        shift = fit.shift_ns[e, w]
        width = np.minimum(np.maximum(fit.high_ns[e, w] - shift, shift - fit.low_ns[e, w]), UNBOUNDED)
        result.append(
            {
                "domain": name,
                "offset_ns": -int(np.median(shift)),
                "drift_ppm": _drift(at[mine], shift, e),
                "error_ns": int(np.median(width)),
                "steps": [],
            }
        )
    return result


def _drift(at: Int, shift: Int, epoch: Int) -> float | None:
    """Returns the median rate of the clock against the reference, ppm, by Theil and Sen within epochs."""
    lag = max(len(at) // 2, 1)
    run, rise = at[lag:] - at[:-lag], shift[lag:] - shift[:-lag]
    same = epoch[lag:] == epoch[:-lag]
    if not same.any():
        return 0.0 if len(at) else None
    slope = float(np.median(rise[same] / run[same]))
    # shift = reference − local, so a fast clock's shift falls; 1/(1+slope) − 1 is its own rate.
    return round((1.0 / (1.0 + slope) - 1.0) * 1e6, 4)
