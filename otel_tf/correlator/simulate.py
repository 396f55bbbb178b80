"""Runs that never happened, with known truth: what a correlator is measured against.

True times come first, from a topology; then every domain's clock reads them: with an offset, a drift, a
wandering rate, stretches of slewing and steps. Domain 0 keeps true time. All by columns, seeded.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from otel_tf.correlator import topologies
from otel_tf.correlator.columns import Int
from otel_tf.correlator.tables import CLOCKS, LINKS, SPANS, Ingested
from otel_tf.errors import UserError

__all__ = ["EPOCH_NS", "Scenario", "Simulated", "simulate"]

#: When every simulated run begins, ns.
EPOCH_NS = 1_750_000_000_000_000_000
_FLOAT_STEPS = 1 << 22


@dataclasses.dataclass(frozen=True)
class Scenario:
    """What is simulated. Offsets and drifts are standard deviations over the domains.

    Attributes:
        topology: ``star``: workers that call one parameter server, domain 0. ``coordinator``: closures
            dispatched to workers by domain 0, and probes of a parameter server. ``ring``: each worker
            calls the next. ``barrier``: synchronous steps that end in a collective, roots on worker 0.
        workers: Number of workers.
        spans: About how many spans.
        step_ms: Size of one wall-clock step of one worker in the middle of the run; 0 for none.
        wander_ppm: Random walk of each clock's rate, per square root of a second.
        slew_ppm: A clock is slewed by this much for the third quarter of the run.
        loss: Share of the spans that never arrived.
        latency_us, tail_us: Least one-way latency, and the scale of what comes on top (lognormal).
        one_sided: Share of the least latency that the way there takes; 0.5 is symmetric.
        restarts: How often each worker's process restarts.
        threads: Streams of steps per worker, interleaved.
        monotonic: Whether spans carry the monotonic clock of their start.
        float_stamps: Whether workers' stamps are float64 seconds.
        straggler: How much longer worker 0's steps take, as a factor.
        interval_us: Mean duration of a worker's step.
    """

    topology: Literal["star", "ring", "coordinator", "barrier"] = "star"
    workers: int = 16
    spans: int = 100_000
    offset_ms: float = 50.0
    drift_ppm: float = 15.0
    step_ms: float = 0.0
    wander_ppm: float = 0.0
    slew_ppm: float = 0.0
    loss: float = 0.0
    latency_us: float = 50.0
    tail_us: float = 20.0
    one_sided: float = 0.5
    restarts: int = 0
    threads: int = 1
    monotonic: bool = False
    float_stamps: bool = False
    straggler: float = 1.0
    interval_us: float = 3000.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UserError(f"{self.workers} workers: at least 1 is needed")
        if self.topology == "ring" and self.workers < 2:
            raise UserError("a ring needs at least 2 workers")
        if self.spans < 1:
            raise UserError(f"{self.spans} spans: at least 1 is needed")
        if not 0 <= self.loss < 1:
            raise UserError(f"a loss of {self.loss} is not a share from 0 to below 1")
        for name in ("latency_us", "tail_us", "interval_us"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} {getattr(self, name)}: must be above 0")


@dataclasses.dataclass(frozen=True)
class Simulated:
    """A simulated run.

    Attributes:
        ingested: As a source would deliver it.
        true_start_ns, true_end_ns: When each span really was, in the order of its rows, ns (N,).
    """

    ingested: Ingested
    true_start_ns: Int
    true_end_ns: Int

    def inversions(self) -> int:
        """Returns how many of the true parent → child pairs the clocks as they stand contradict."""
        spans = self.ingested.spans
        span_id = spans["span_id"].to_numpy()
        parent_id = spans["parent_id"].to_numpy()
        order = np.argsort(span_id)
        at = np.minimum(np.searchsorted(span_id, parent_id, sorter=order), len(order) - 1)
        parent = order[at]
        child = np.flatnonzero((parent_id != 0) & (span_id[parent] == parent_id))
        parent = parent[child]
        start, end = spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy()
        waited = self.true_end_ns[child] < self.true_end_ns[parent]
        began = self.true_start_ns[parent] < self.true_start_ns[child]
        return int(
            ((start[child] <= start[parent]) & began).sum() + ((end[child] >= end[parent]) & waited).sum()
        )


def simulate(scenario: Scenario) -> Simulated:
    """Returns the simulated run; the same scenario gives the same run."""
    rng = np.random.default_rng(scenario.seed)
    plan = topologies.plan(scenario, rng)
    zero = EPOCH_NS - int(plan.start_ns.min())
    start, end = plan.start_ns + zero, plan.end_ns + zero
    process, domain = plan.process.astype(np.int64), plan.domain.astype(np.int64)
    generation = _generation(scenario, plan, start)
    lane = process * (scenario.restarts + 1) + generation
    seq = _sequence(lane, start)
    clock = _Clocks(scenario, rng, len(plan.domains), int(end.max()) - EPOCH_NS + 1)
    read_start, read_end = clock.read(domain, start), clock.read(domain, end)
    coarse = plan.stamped & scenario.float_stamps
    has_mono = scenario.monotonic & ~coarse
    mono = clock.read(domain, start, stepping=False)
    # What has a monotonic clock measures durations by it.
    steady = clock.read(domain, end, stepping=False) - mono
    read_end = np.where(has_mono, read_start + steady, read_end)
    mono += 1_000_000_000_000 - EPOCH_NS
    if scenario.float_stamps:
        read_start[coarse] = _as_float_seconds(read_start[coarse])
        read_end[coarse] = _as_float_seconds(read_end[coarse])
    ids = _ids(rng, len(start))
    trace_ids = _ids(rng, 2 * plan.traces).reshape(2, -1)
    kept = np.flatnonzero(rng.random(len(start)) >= scenario.loss) if scenario.loss else np.arange(len(start))
    # Spans are written when they end, by their own process.
    kept = kept[np.lexsort((end[kept], process[kept]))]
    parent = plan.parent[kept]
    spans = pa.table(
        {
            "trace_hi": trace_ids[0][plan.trace[kept]],
            "trace_lo": trace_ids[1][plan.trace[kept]],
            "span_id": ids[kept],
            "parent_id": np.where(parent >= 0, ids[parent], 0),
            "name": _texts(plan.name[kept], topologies.NAMES),
            "kind": plan.kind[kept].astype(np.int8),
            "status": np.zeros(len(kept), np.int8),
            "start_ns": read_start[kept],
            "end_ns": read_end[kept],
            "service": _texts(np.zeros(len(kept), np.int32), ("simulated",)),
            "run": _texts(np.zeros(len(kept), np.int32), (f"simulated-{scenario.seed}",)),
            "process": _processes(scenario, plan, lane[kept]),
            "domain": _texts(plan.domain[kept], plan.domains),
            "worker": _texts(plan.worker[kept], tuple(f"worker:{i}" for i in range(scenario.workers))),
            "global_step": _nullable(plan.step[kept]),
            "local_step": _nullable(plan.local_step[kept]),
            "seq": pa.array(seq[kept]),
            "mono_ns": pa.array(mono[kept], mask=~has_mono[kept]),
            "staleness": pa.nulls(len(kept), pa.int64()),
            "staleness_source": pa.nulls(len(kept), pa.string()).dictionary_encode(),
            "group_key": _nullable(np.where(plan.instance[kept] >= 0, 1, -1)),
            "instance_key": _nullable(plan.instance[kept]),
            "attributes": pa.nulls(len(kept), pa.string()),
        }
    ).cast(SPANS)
    return Simulated(Ingested(spans, LINKS.empty_table(), CLOCKS.empty_table()), start[kept], end[kept])


class _Clocks:
    """Every domain's clock; domain 0 keeps true time."""

    def __init__(self, scenario: Scenario, rng: np.random.Generator, domains: int, length_ns: int) -> None:
        self._offset = np.rint(rng.normal(0, scenario.offset_ms * 1e6, domains)).astype(np.int64)
        self._length = length_ns
        # Rate against true time at knots, integrated: a random walk, and the slewed quarter.
        knots = max(int(length_ns / 1e8), 8) + 1
        self._knots = np.linspace(0, length_ns, knots)
        spacing_s = length_ns / (knots - 1) / 1e9
        rate = rng.normal(0, scenario.drift_ppm * 1e-6, (domains, 1)) + np.cumsum(
            rng.normal(0, scenario.wander_ppm * 1e-6 * np.sqrt(spacing_s), (domains, knots - 1)), axis=1
        )
        middle = (np.arange(knots - 1) + 0.5) / (knots - 1)
        slewed = (middle >= 0.5) & (middle < 0.75)
        rate[1::2, slewed] += scenario.slew_ppm * 1e-6
        self._gained = np.concatenate(
            [np.zeros((domains, 1)), np.cumsum(rate * np.diff(self._knots), axis=1)], axis=1
        )
        self._step = np.zeros(domains, dtype=np.int64)
        self._step_at = np.full(domains, length_ns // 2, dtype=np.int64)
        if domains > 1:
            self._step[domains // 2 if domains > 2 else 1] = round(scenario.step_ms * 1e6)
        self._offset[0], self._gained[0], self._step[0] = 0, 0.0, 0

    def read(self, domain: npt.NDArray[np.int64], true_ns: Int, *, stepping: bool = True) -> Int:
        """Returns what the clocks show at a true time; without their steps, what CLOCK_MONOTONIC counts."""
        since = true_ns - EPOCH_NS
        result = true_ns + self._offset[domain]
        for number in range(1, len(self._offset)):
            mine = np.flatnonzero(domain == number)
            result[mine] += np.rint(np.interp(since[mine], self._knots, self._gained[number])).astype(
                np.int64
            )
        if stepping:
            result += np.where(since >= self._step_at[domain], self._step[domain], 0)
        return result


def _as_float_seconds(times: Int) -> Int:
    """Returns times as a float64 of seconds would have kept them: multiples of 2^-22 s, in ns."""
    seconds, rest = times // 1_000_000_000, times % 1_000_000_000
    return seconds * 1_000_000_000 + (rest * _FLOAT_STEPS // 1_000_000_000) * 1_000_000_000 // _FLOAT_STEPS


def _generation(scenario: Scenario, plan: topologies.Plan, start: Int) -> Int:
    """Returns how often the span's process had restarted by then."""
    if not scenario.restarts:
        return np.zeros(len(start), dtype=np.int64)
    length = int(start.max()) - EPOCH_NS + 1
    return np.where(plan.worker >= 0, (start - EPOCH_NS) * (scenario.restarts + 1) // length, 0)


def _sequence(lane: Int, start: Int) -> Int:
    """Returns the running number of each span in its process, from 1, by true start."""
    order = np.lexsort((start, lane))
    first = np.flatnonzero(np.r_[True, lane[order][1:] != lane[order][:-1]])
    seq = np.empty(len(lane), dtype=np.int64)
    seq[order] = np.arange(len(lane)) - np.repeat(first, np.diff(np.r_[first, len(lane)])) + 1
    return seq


def _ids(rng: np.random.Generator, count: int) -> Int:
    values = rng.integers(np.iinfo(np.int64).min, np.iinfo(np.int64).max, count, dtype=np.int64)
    values[values == 0] = 1
    return values


def _processes(scenario: Scenario, plan: topologies.Plan, lane: Int) -> pa.Array:
    per = scenario.restarts + 1
    names = tuple(
        f"simulated-{scenario.seed}/{name}" + (f"#{generation}" if generation else "")
        for name in plan.processes
        for generation in range(per)
    )
    return _texts(lane.astype(np.int32), names)


def _texts(index: npt.NDArray[np.int32], names: tuple[str, ...]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(index.astype(np.int32), mask=index < 0), pa.array(names))


def _nullable(values: Int) -> pa.Array:
    return pa.array(values, pa.int64(), mask=values < 0)
