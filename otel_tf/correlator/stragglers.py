"""Straggler scores: how much slower than the typical worker each one works, its waits taken off."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from otel_tf.correlator.columns import Int

__all__ = ["scores"]


def scores(worker: npt.NDArray[np.integer], busy_ns: Int, workers: int) -> npt.NDArray[np.float64]:
    """Returns per worker its mean busy time a step over the median worker's, less 1; NaN without steps (W,).

    0.25 reads "a quarter slower than the typical worker". Durations only: no clocks are compared.

    Args:
        worker: Worker number of each step (S,).
        busy_ns: What the worker itself spent on the step, waiting for others not counted, ns (S,).
        workers: Number of workers W.
    """
    steps = np.bincount(worker, minlength=workers)
    total = np.bincount(worker, weights=busy_ns.astype(np.float64), minlength=workers)
    mean = np.full(workers, np.nan)
    np.divide(total, steps, out=mean, where=steps > 0)
    if not (steps > 0).any():
        return mean
    typical = float(np.nanmedian(mean))
    if typical <= 0:
        return np.where(steps > 0, 0.0, np.nan)
    return mean / typical - 1.0
