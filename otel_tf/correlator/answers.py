"""What people ask of a corrected run: steps, staleness, waits and stragglers, per span and per worker."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from otel_tf import semconv
from otel_tf.correlator import stragglers, waits
from otel_tf.correlator.adjust import Adjusted
from otel_tf.correlator.columns import ROLE_TRAIN_STEP, Columns, Int, codes, integers
from otel_tf.correlator.edges import Barriers, Events
from otel_tf.correlator.staleness import applied_between, asynchronous, told_by_ops

__all__ = ["Answers", "answer"]

#: Where a step's staleness comes from, from the surest to the weakest.
_SOURCES = (semconv.SOURCE_PROFILE, "correlated", semconv.SOURCE_COORDINATOR)
_COORDINATOR_TIME = f'"{semconv.TIME_SOURCE}":"{semconv.SOURCE_COORDINATOR}"'


@dataclasses.dataclass(frozen=True)
class Answers:
    """What is known of steps and barriers, and of each worker.

    Attributes:
        steps: Rows of asynchronous steps (S,).
        staleness: Other steps applied between a step's read and its apply (S,).
        staleness_source: Index into ``sources`` (S,).
        sources: Names of where staleness may come from.
        wait_ns, lateness_ns: Of a barrier's members: waited for the last; entered after the first.
        report: The parts of the report per worker, as JSON values.
    """

    steps: Int
    staleness: Int
    staleness_source: npt.NDArray[np.int8]
    sources: tuple[str, ...]
    wait_ns: Int
    lateness_ns: Int
    report: dict[str, Any]


def answer(spans: pa.Table, columns: Columns, met: Barriers, adjusted: Adjusted) -> Answers:
    """Answers from the corrected order.

    Args:
        spans: Rows of `tables.SPANS`.
        columns: The same as numbers.
        met: Barriers.
        adjusted: Corrected times and the causal order.
    """
    worker, workers = codes(spans["worker"])
    steps = np.flatnonzero((columns.role == ROLE_TRAIN_STEP) & (worker >= 0))
    stepped, stale, source = _staleness(spans, columns, steps, worker, adjusted.rank)
    own = columns.end_ns[met.row] - columns.start_ns[met.row]
    wait = waits.waits(met, own)
    busy = columns.end_ns[steps] - columns.start_ns[steps] - _waited_within(columns, met, wait, steps)
    score = stragglers.scores(worker[steps], busy, len(workers))
    left = adjusted.time_ns[2 * met.row + 1]
    beyond, worst = waits.disagreements(met, own, left, adjusted.error_ns[met.row])
    report = {
        "barriers": {"count": met.count, "beyond_bar": beyond, "worst_ns": worst},
        "steps": _steps(spans, columns, steps, worker, workers),
        "staleness": {
            name: _spread(stale[mine], source[mine]) for name, mine in _by_worker(worker[stepped], workers)
        },
        "waits": {
            name: {
                "mean_s": float(wait[mine].mean() / 1e9),
                "p99_s": float(np.percentile(wait[mine], 99) / 1e9),
            }
            for name, mine in _by_worker(worker[met.row], workers)
        },
        "stragglers": [
            {"worker": workers[number], "score": round(float(score[number]), 4)}
            for number in sorted(np.flatnonzero(~np.isnan(score)), key=lambda n: (-score[n], workers[n]))
        ],
    }
    late = waits.lateness(met, adjusted.time_ns[2 * met.row])
    return Answers(stepped, stale, source, _SOURCES, wait, late, report)


def _by_worker(worker: npt.NDArray[np.integer], workers: tuple[str, ...]) -> list[tuple[str, Int]]:
    """Returns (name, indices) of every worker that occurs."""
    order = np.argsort(worker, kind="stable")
    bounds = np.searchsorted(worker[order], np.arange(len(workers) + 1))
    found = zip(workers, itertools.pairwise(bounds.tolist()), strict=True)
    return [(name, order[begin:end]) for name, (begin, end) in found if end > begin]


def _staleness(
    spans: pa.Table, columns: Columns, steps: Int, worker: npt.NDArray[np.integer], rank: Events
) -> tuple[Int, Int, npt.NDArray[np.int8]]:
    """Returns the asynchronous steps, their staleness and where it comes from."""
    served = columns.kind[steps] == 2
    alone = asynchronous(columns.trace_hi[steps], columns.trace_lo[steps], worker[steps], served)
    steps = steps[alone]
    counts = ~columns.failed[steps]
    stale = applied_between(rank[2 * steps], rank[2 * steps + 1], counts)
    texts = spans["attributes"].take(pa.array(steps))
    coordinator = pc.match_substring(texts, _COORDINATOR_TIME).fill_null(False).to_numpy()
    source = np.where(coordinator, 2, 1).astype(np.int8)
    given, names = codes(spans["staleness_source"])
    if semconv.SOURCE_PROFILE in names:
        told = integers(spans["staleness"])[steps]
        profiled = given == names.index(semconv.SOURCE_PROFILE)
        told = np.where(profiled[steps], told, -1)
        # A profile tells it of each gradient; a step is as stale as the stalest of its own.
        ops = np.flatnonzero(profiled & (columns.role != ROLE_TRAIN_STEP))
        of_ops = integers(spans["staleness"])[ops]
        told = np.maximum(told, told_by_ops(columns.trace_hi, columns.trace_lo, steps, ops, of_ops))
        exact = told >= 0
        stale[exact], source[exact] = told[exact], 0
    return steps, stale, source


def _waited_within(columns: Columns, met: Barriers, wait: Int, steps: Int) -> Int:
    """Returns how much of each step its worker spent waiting at barriers, ns (S,)."""
    total = np.zeros(len(steps), dtype=np.int64)
    if not len(met.row):
        return total
    # A collective belongs to the step of its timeline that began last before it.
    order = np.lexsort((columns.start_ns[steps], columns.timeline[steps]))
    for lane in np.unique(columns.timeline[met.row]):
        mine = order[columns.timeline[steps][order] == lane]
        if not len(mine):
            continue
        here = columns.timeline[met.row] == lane
        inside = met.row[here]
        at = np.searchsorted(columns.start_ns[steps][mine], columns.start_ns[inside], side="right") - 1
        fits = (at >= 0) & (columns.end_ns[inside] <= columns.end_ns[steps][mine[np.maximum(at, 0)]])
        np.add.at(total, mine[at[fits]], wait[here][fits])
    return total


def _steps(
    spans: pa.Table, columns: Columns, steps: Int, worker: npt.NDArray[np.integer], workers: tuple[str, ...]
) -> dict[str, dict[str, int | None]]:
    number = integers(spans["global_step"])
    result: dict[str, dict[str, int | None]] = {}
    for name, mine in _by_worker(worker[steps], workers):
        own = number[steps[mine]]
        known = own[own >= 0]
        result[name] = {
            "count": len(mine),
            "first": int(known.min()) if len(known) else None,
            "last": int(known.max()) if len(known) else None,
        }
    return result


def _spread(values: Int, source: npt.NDArray[np.int8]) -> dict[str, Any]:
    p50, p99 = np.percentile(values, [50, 99])
    return {
        "p50": float(p50),
        "p99": float(p99),
        "max": int(values.max()),
        # The weakest source among them: the figures are no surer than that.
        "source": _SOURCES[int(source.max())],
    }
