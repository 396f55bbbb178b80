"""The time that orders a timeline: its wall clock without the steps that its monotonic clock shows."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa

from otel_tf.correlator.clockwork import ClockStep
from otel_tf.correlator.columns import Columns, Int, codes, integers, median

__all__ = ["local_times"]

#: Wall and monotonic clock are read one after the other; a thread may lose the processor in between, but
#: then the next pair is back at the old difference. A step stays.
_STEP_NS = 100_000
_NEIGHBOURS = 2


def local_times(columns: Columns, clocks: pa.Table) -> tuple[Int, tuple[ClockStep, ...]]:
    """Returns the local time of every event, ns (2N,), and the steps that it is rid of.

    Local time is wall time as long as the wall clock did not step against the monotonic one; then it goes
    on as before the step.

    Args:
        columns: The spans.
        clocks: Rows of `tables.CLOCKS`.
    """
    local = np.empty(2 * columns.count, dtype=np.int64)
    local[0::2] = columns.start_ns
    local[1::2] = columns.end_ns
    steps: list[ClockStep] = []
    domain = columns.timeline_domain[columns.timeline]
    clock_domain, names = codes(clocks["domain"])
    snapshots = integers(clocks["mono_ns"]), integers(clocks["wall_ns"])
    mono_ns, start_ns = columns.mono_ns, columns.start_ns
    has_mono = mono_ns >= 0
    for number, name in enumerate(columns.domains):
        rows = np.flatnonzero((domain == number) & has_mono)
        own = np.flatnonzero(clock_domain == names.index(name)) if name in names else np.zeros(0, np.int64)
        mono = np.concatenate([mono_ns[rows], snapshots[0][own]])
        wall = np.concatenate([start_ns[rows], snapshots[1][own]])
        levels = _levels(mono, wall)
        if len(levels) < 2:
            continue
        everyone = np.flatnonzero(domain == number)
        _straighten(columns, local, everyone, levels)
        steps += [
            ClockStep(number, since + before, level - before)
            for (_, before), (since, level) in itertools.pairwise(levels)
        ]
    return local, tuple(steps)


def _levels(mono: Int, wall: Int) -> list[tuple[int, int]]:
    """Returns (first monotonic time, wall − monotonic) of every stretch without a step, in order."""
    if not len(mono):
        return []
    order = np.lexsort((wall, mono))
    mono, ahead = mono[order], (wall - mono)[order]
    steady = _without_outliers(ahead)
    # A wall clock that runs at another rate than the monotonic one (a test's clock) does not step.
    jump = np.flatnonzero(np.abs(np.diff(steady)) > _STEP_NS + (np.diff(mono) >> 10)) + 1
    first = np.r_[0, jump]
    return [
        (int(mono[begin]), median(part)) for begin, part in zip(first, np.split(ahead, jump), strict=True)
    ]


def _without_outliers(ahead: Int) -> Int:
    """Returns each value replaced by the median of itself and its neighbours on both sides."""
    if len(ahead) <= 2 * _NEIGHBOURS:
        return ahead
    padded = np.pad(ahead, _NEIGHBOURS, mode="edge")
    around = np.lib.stride_tricks.sliding_window_view(padded, 2 * _NEIGHBOURS + 1)
    middle: Int = np.sort(around, axis=1)[:, _NEIGHBOURS]
    return middle


def _straighten(columns: Columns, local: Int, rows: Int, levels: list[tuple[int, int]]) -> None:
    """Takes the steps between ``levels`` out of the local times of ``rows``."""
    since = np.array([mono for mono, _ in levels], dtype=np.int64)
    ahead = np.array([level for _, level in levels], dtype=np.int64)
    mono, start = columns.mono_ns[rows], columns.start_ns[rows]
    with_mono = mono >= 0
    level = np.empty(len(rows), dtype=np.int64)
    level[with_mono] = np.searchsorted(since, mono[with_mono], side="right") - 1
    # By wall time where that is all there is: the last level that had begun by then.
    begun = np.maximum.accumulate(since + ahead)
    level[~with_mono] = np.searchsorted(begun, start[~with_mono], side="right") - 1
    excess = (ahead - ahead[0])[np.maximum(level, 0)]
    local[2 * rows] -= excess
    local[2 * rows + 1] -= excess
