"""Steps kept whole, though their spans come from workers that know nothing of each other."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from tests.collector.support import (
    Collector,
    request,
    send,
    span,
    spans_in_files,
    spans_in_jaeger,
    until,
)

COUNTED = "otelcol_processor_tail_sampling_global_count_traces_sampled"
STEPS = 200
SECOND = 1_000_000_000
#: Its clock is 30 s ahead of worker 0's.
AHEAD_NS = 30 * SECOND


def parts(step: int, **what: Any) -> dict[str, dict[str, Any]]:
    """Returns a step's spans by worker; ``what`` applies to worker 1's only."""
    trace = ("run", "step", step)
    start = step * SECOND // 10
    return {
        "worker:0": span("train_step", 0, trace=trace, start_ns=start),
        "worker:1": span("train_step", 1, trace=trace, start_ns=start + AHEAD_NS, **what),
    }


#: Steps worth keeping, by what worker 1 says of them; worker 0's spans tell nothing.
NOTABLE = {
    STEPS: parts(STEPS, failed=True),
    STEPS + 1: parts(STEPS + 1, ms=600),
    STEPS + 2: parts(STEPS + 2, tensorflow__profiler__session="2026_12_01_10_00_00"),
    STEPS + 3: parts(STEPS + 3, name="checkpoint.save"),
}
#: Not slow: a closure's span has the time in the queue in it.
QUEUED = parts(STEPS + 4, ms=5000, name="closure")
ALL = {**{step: parts(step) for step in range(STEPS)}, **NOTABLE, STEPS + 4: QUEUED}


def send_all(gateway: Collector) -> None:
    """Sends every worker's spans by itself, in an order of its own and in several requests."""
    for worker, seed in (("worker:1", 1), ("worker:0", 2)):
        spans = [step[worker] for step in ALL.values()]
        random.Random(seed).shuffle(spans)
        for first in range(0, len(spans), 50):
            send(gateway.http, request(spans[first : first + 50], tensorflow__run__id="run"))


def decided(gateway: Collector) -> bool:
    return gateway.metric(COUNTED) == len(ALL)


def spans_sent(gateway: Collector) -> float:
    return gateway.metric("otelcol_exporter_sent_spans", exporter="otlp_http/jaeger")


@pytest.fixture
def sampled(collector, jaeger):
    """Sends all steps to a fresh gateway; returns it, its Jaeger, and which steps Jaeger has whole."""

    def run(share: int) -> tuple[Collector, Any, set[int]]:
        to = jaeger()
        gateway = collector(
            "gateway",
            "tail-sampling",
            JAEGER=to.otlp_http,
            DECISION_WAIT="2s",
            SLOW_STEP="500ms",
            SHARE=share,
        )
        send_all(gateway)
        until(lambda: decided(gateway), "a decision on every step")
        kept = gateway.metric(COUNTED, sampled="true")
        until(lambda: spans_sent(gateway) == 2 * kept, "all that was kept on its way to Jaeger")

        def stored() -> dict[int, Counter[str]]:
            there = {step: spans_in_jaeger(to, spans["worker:0"]["traceId"]) for step, spans in ALL.items()}
            return there if sum(spans.total() for spans in there.values()) >= 2 * kept else {}

        there = until(stored, "all that was kept in Jaeger")
        for step, spans in there.items():
            # Whole or not at all, and nothing twice.
            assert spans in ({}, {each["spanId"]: 1 for each in ALL[step].values()}), step
        return gateway, to, {step for step, spans in there.items() if spans}

    return run


def test_failed_slow_and_profiled_steps_are_kept_whole_and_no_other(sampled):
    gateway, jaeger, kept = sampled(share=0)
    assert kept == set(NOTABLE)
    # The files have everything.
    assert spans_in_files(gateway.runs) == {
        each["spanId"]: 1 for step in ALL.values() for each in step.values()
    }

    # What the correlator writes back is kept.
    logical = span("l", trace=("logical",))
    send(gateway.http, request([logical], service__name="mnist.logical worker:0"))
    # What comes after the decision follows it.
    late = {step: span("late", trace=("run", "step", step), ms=9000, failed=True) for step in (0, STEPS)}
    send(gateway.http, request(list(late.values()), tensorflow__run__id="run"))
    trace = late[STEPS]["traceId"]
    until(lambda: late[STEPS]["spanId"] in spans_in_jaeger(jaeger, trace), "the late span")
    assert not spans_in_jaeger(jaeger, late[0]["traceId"])
    until(lambda: spans_in_jaeger(jaeger, logical["traceId"]), "the corrected span")


def test_the_share_is_the_same_at_every_gateway(sampled):
    _, _, kept = sampled(share=20)
    assert set(NOTABLE) <= kept
    plain = kept - set(NOTABLE)
    # A hash of given ids, not chance: the count is always the same.
    assert 0.1 < len(plain) / STEPS < 0.3
    assert sampled(share=20)[2] == kept
