"""Who calls whom in a simulated run: true times, parents and names, by columns."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from otel_tf import semconv
from otel_tf.correlator.columns import Int

if TYPE_CHECKING:
    from otel_tf.correlator.simulate import Scenario

__all__ = ["NAMES", "Plan", "plan"]

_INTERNAL, _SERVER, _CLIENT, _PRODUCER = 1, 2, 3, 4
NAMES = (
    semconv.SPAN_TRAIN_STEP,
    semconv.SPAN_STEP,
    semconv.SPAN_CLOSURE,
    semconv.SPAN_DISPATCH,
    semconv.SPAN_CLOCK_PROBE,
    semconv.SPAN_COLLECTIVE,
    "push",
    "apply",
    "send",
    "receive",
)
_NAME = {name: number for number, name in enumerate(NAMES)}


@dataclasses.dataclass(frozen=True)
class Plan:
    """Spans in true time, arrays (N,); −1 where a column does not apply.

    ``stamped`` marks what a worker's graph stamps (no Python there). Times are ns from the run's begin.
    """

    start_ns: Int
    end_ns: Int
    parent: Int
    trace: Int
    traces: int
    name: npt.NDArray[np.int32]
    kind: npt.NDArray[np.int32]
    process: npt.NDArray[np.int32]
    domain: npt.NDArray[np.int32]
    worker: npt.NDArray[np.int32]
    step: Int
    local_step: Int
    instance: Int
    stamped: npt.NDArray[np.bool_]
    processes: tuple[str, ...]
    domains: tuple[str, ...]


class _Builder:
    """Collects groups of spans."""

    def __init__(self) -> None:
        self._parts: list[dict[str, npt.NDArray[np.int64]]] = []
        self._count = 0

    def add(self, name: str, kind: int, start: Int, end: Int, **columns: Int | int | None) -> Int:
        """Adds a group of spans and returns their numbers."""
        part = {
            "name": np.full(len(start), _NAME[name], np.int64),
            "kind": np.full(len(start), kind, np.int64),
            "start_ns": start,
            "end_ns": end,
        }
        for column in (
            "parent",
            "trace",
            "process",
            "domain",
            "worker",
            "step",
            "local_step",
            "instance",
            "stamped",
        ):
            value = columns.get(column)
            filler = 0 if column == "stamped" else -1
            part[column] = np.broadcast_to(
                np.asarray(filler if value is None else value, np.int64), len(start)
            )
        self._parts.append(part)
        numbers = np.arange(self._count, self._count + len(start), dtype=np.int64)
        self._count += len(start)
        return numbers

    def plan(self, processes: tuple[str, ...], domains: tuple[str, ...]) -> Plan:
        """Returns all groups as one plan."""
        whole = {key: np.concatenate([part[key] for part in self._parts]) for key in self._parts[0]}
        narrow = {key: whole[key].astype(np.int32) for key in ("name", "kind", "process", "domain", "worker")}
        return Plan(
            **{**whole, **narrow, "stamped": whole["stamped"] > 0},
            traces=int(whole["trace"].max()) + 1,
            processes=processes,
            domains=domains,
        )


def plan(scenario: Scenario, rng: np.random.Generator) -> Plan:
    """Returns the spans of a scenario in true time."""
    build = {"star": _star, "coordinator": _coordinator, "ring": _ring, "barrier": _barrier}
    return build[scenario.topology](scenario, rng)


def _latency(scenario: Scenario, rng: np.random.Generator, count: int, *, there: bool) -> Int:
    """Returns one-way latencies, ns: the least one, and a heavy tail on top."""
    share = 2 * (scenario.one_sided if there else 1 - scenario.one_sided)
    least = scenario.latency_us * 1e3 * share
    tail = rng.lognormal(0, 1.0, count) * scenario.tail_us * 1e3
    # One in a hundred is stuck behind something.
    tail *= np.where(rng.random(count) < 0.01, 30.0, 1.0)
    return np.maximum(np.rint(least + tail).astype(np.int64), 1)


def _duration(rng: np.random.Generator, mean_us: float, shape: tuple[int, ...]) -> Int:
    return np.rint(rng.gamma(16.0, mean_us * 1e3 / 16.0, shape)).astype(np.int64) + 1000


def _lanes(scenario: Scenario, per_step: int) -> tuple[int, int, npt.NDArray[np.int64]]:
    """Returns streams of steps, steps a stream, and each stream's worker."""
    lanes = scenario.workers * scenario.threads
    steps = max(scenario.spans // (per_step * lanes), 2)
    return lanes, steps, np.repeat(np.arange(scenario.workers), scenario.threads)


def _begins(scenario: Scenario, rng: np.random.Generator, lanes: int, steps: int) -> tuple[Int, Int]:
    """Returns begin and length of every step of independent streams, ns (lanes, steps)."""
    mean = np.full(lanes, 1.0)
    mean[: scenario.threads] = scenario.straggler
    length = np.rint(_duration(rng, scenario.interval_us, (lanes, steps)) * mean[:, None]).astype(np.int64)
    gap = _duration(rng, scenario.interval_us / 20, (lanes, steps))
    ends = np.cumsum(length + gap, axis=1)
    first = rng.integers(0, int(scenario.interval_us * 1e3), (lanes, 1))
    return first + ends - length, length


def _star(scenario: Scenario, rng: np.random.Generator) -> Plan:
    lanes, steps, worker = _lanes(scenario, 3)
    begin, length = _begins(scenario, rng, lanes, steps)
    who = np.repeat(worker, steps)
    begin, length = begin.ravel(), length.ravel()
    total = len(begin)
    called = begin + length * 7 // 10
    arrived = called + _latency(scenario, rng, total, there=True)
    answered = arrived + _duration(rng, 40, (total,))
    returned = answered + _latency(scenario, rng, total, there=False)
    end = np.maximum(begin + length, returned + 1000)
    order = np.argsort(np.argsort(answered, kind="stable"), kind="stable")
    common: dict[str, Int | int] = {
        "trace": np.arange(total),
        "step": order,
        "worker": who,
        "local_step": np.tile(np.arange(steps), lanes),
    }
    builder = _Builder()
    own: dict[str, Int | int] = {"process": who + 1, "domain": who + 1}
    step = builder.add(semconv.SPAN_TRAIN_STEP, _INTERNAL, begin, end, **own, **common)
    push = builder.add("push", _CLIENT, called, returned, parent=step, **own, **common)
    common["worker"] = np.full(total, -1)
    builder.add("apply", _SERVER, arrived, answered, parent=push, process=0, domain=0, **common)
    names = tuple(f"worker:{i}" for i in range(scenario.workers))
    return builder.plan(
        ("ps:0", *names), ("host-ps-0", *(f"host-worker-{i}" for i in range(scenario.workers)))
    )


def _coordinator(scenario: Scenario, rng: np.random.Generator) -> Plan:
    lanes, steps, worker = _lanes(scenario, 3)
    begin, length = _begins(scenario, rng, lanes, steps)
    who = np.repeat(worker, steps)
    begin, length = begin.ravel(), length.ravel()
    total = len(begin)
    arrived = begin + _latency(scenario, rng, total, there=True)
    done = arrived + length
    returned = done + _latency(scenario, rng, total, there=False)
    queued = begin - _duration(rng, scenario.interval_us, (total,))
    order = np.argsort(np.argsort(done, kind="stable"), kind="stable")
    common: dict[str, Int | int] = {"trace": np.arange(total), "step": order}
    builder = _Builder()
    here: dict[str, Int | int] = {"process": 0, "domain": 0}
    closure = builder.add(semconv.SPAN_CLOSURE, _PRODUCER, queued, returned + 5000, **here, **common)
    dispatch = builder.add(semconv.SPAN_DISPATCH, _CLIENT, begin, returned, parent=closure, **here, **common)
    local_step = np.tile(np.arange(steps), lanes)
    there: dict[str, Int | int] = {
        "process": who + 2,
        "domain": who + 2,
        "worker": who,
        "stamped": 1,
        "local_step": local_step,
    }
    builder.add(semconv.SPAN_TRAIN_STEP, _SERVER, arrived, done, parent=dispatch, **there, **common)
    _probes(scenario, rng, builder, int(returned.max()), total)
    names = tuple(f"worker:{i}" for i in range(scenario.workers))
    return builder.plan(
        ("chief:0", "ps:0", *names),
        ("host-chief-0", "host-ps-0", *(f"host-worker-{i}" for i in range(scenario.workers))),
    )


def _probes(
    scenario: Scenario, rng: np.random.Generator, builder: _Builder, length: int, traces: int
) -> None:
    """Adds round trips from every worker to the parameter server: three every second."""
    rounds = max(length // 1_000_000_000, 1)
    who = np.repeat(np.arange(scenario.workers), 3 * rounds)
    asked = np.sort(rng.integers(0, length, len(who)))
    who = rng.permutation(who)
    seen = asked + _latency(scenario, rng, len(who), there=True)
    answered = seen + _latency(scenario, rng, len(who), there=False)
    trace = traces + np.arange(len(who))
    own: dict[str, Int | int] = {"process": who + 2, "domain": who + 2, "worker": who, "stamped": 1}
    probe = builder.add(semconv.SPAN_CLOCK_PROBE, _CLIENT, asked, answered, trace=trace, **own)
    server: dict[str, Int | int] = {"process": 1, "domain": 1, "parent": probe, "stamped": 1}
    builder.add(semconv.SPAN_CLOCK_PROBE, _SERVER, seen, seen, trace=trace, **server)


def _ring(scenario: Scenario, rng: np.random.Generator) -> Plan:
    lanes, steps, worker = _lanes(scenario, 3)
    begin, length = _begins(scenario, rng, lanes, steps)
    who = np.repeat(worker, steps)
    begin, length = begin.ravel(), length.ravel()
    total = len(begin)
    sent = begin + length * 7 // 10
    arrived = sent + _latency(scenario, rng, total, there=True)
    answered = arrived + _duration(rng, 40, (total,))
    returned = answered + _latency(scenario, rng, total, there=False)
    local_step = np.tile(np.arange(steps), lanes)
    common: dict[str, Int | int] = {
        "trace": np.arange(total),
        "step": local_step * lanes + np.repeat(np.arange(lanes), steps),
    }
    own: dict[str, Int | int] = {"process": who, "domain": who, "worker": who, "local_step": local_step}
    builder = _Builder()
    end = np.maximum(begin + length, returned + 1000)
    step = builder.add(semconv.SPAN_TRAIN_STEP, _INTERNAL, begin, end, **own, **common)
    send = builder.add("send", _CLIENT, sent, returned, parent=step, **own, **common)
    after = (who + 1) % scenario.workers
    builder.add(
        "receive",
        _SERVER,
        arrived,
        answered,
        parent=send,
        process=after,
        domain=after,
        worker=after,
        **common,
    )
    names = tuple(f"worker:{i}" for i in range(scenario.workers))
    return builder.plan(names, tuple(f"host-{name.replace(':', '-')}" for name in names))


def _barrier(scenario: Scenario, rng: np.random.Generator) -> Plan:
    workers = scenario.workers
    steps = max(scenario.spans // (2 * workers + 1), 2)
    mean = np.full(workers, 1.0)
    mean[0] = scenario.straggler
    work = np.rint(_duration(rng, scenario.interval_us, (workers, steps)) * mean[:, None]).astype(np.int64)
    # A step begins a little after the last barrier was left, and ends when all have entered and heard of it.
    latency = np.stack([_latency(scenario, rng, steps, there=True) for _ in range(workers)])
    heard = np.stack([_latency(scenario, rng, steps, there=False) for _ in range(workers)])
    begin, enter, leave = (np.zeros((workers, steps), np.int64) for _ in range(3))
    now = rng.integers(0, 100_000, workers)
    pause = _duration(rng, 20, (workers, steps))
    for at in range(steps):
        begin[:, at] = now
        enter[:, at] = now + work[:, at]
        leave[:, at] = (enter[:, at] + latency[:, at]).max() + heard[:, at]
        now = leave[:, at] + pause[:, at]
    who = np.repeat(np.arange(workers), steps)
    number = np.tile(np.arange(steps), workers)
    common: dict[str, Int | int] = {
        "trace": number,
        "step": number,
        "process": who,
        "domain": who,
        "worker": who,
    }
    builder = _Builder()
    root = builder.add(
        semconv.SPAN_STEP,
        _INTERNAL,
        begin[0] - 2000,
        leave[0] + 4000,
        trace=np.arange(steps),
        step=np.arange(steps),
        process=0,
        domain=0,
        worker=0,
    )
    step = builder.add(
        semconv.SPAN_TRAIN_STEP, _INTERNAL, begin.ravel(), leave.ravel() + 2000, parent=root[number], **common
    )
    builder.add(
        semconv.SPAN_COLLECTIVE,
        _INTERNAL,
        enter.ravel(),
        leave.ravel(),
        parent=step,
        instance=number,
        **common,
    )
    names = tuple(f"worker:{i}" for i in range(workers))
    return builder.plan(names, tuple(f"host-{name.replace(':', '-')}" for name in names))
