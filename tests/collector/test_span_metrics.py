"""Metrics from spans, as Prometheus scrapes them."""

from __future__ import annotations

import pytest

from tests.collector.support import Collector, Sample, get, request, samples, send, span, until

CALLS = "traces_span_metrics_calls_total"
BUCKET = "traces_span_metrics_duration_seconds_bucket"


class Page:
    """What a gateway shows Prometheus."""

    def __init__(self, gateway: Collector) -> None:
        self.gateway = gateway
        #: All exemplars that were ever there: each is shown for one interval only.
        self.exemplars: set[str] = set()

    def read(self) -> list[Sample]:
        found = samples(get(self.gateway.ports["PROMETHEUS_PORT"], "/metrics"))
        self.exemplars |= {each.exemplar for each in found if each.exemplar}
        return found

    def after(self, *requests: dict[str, object], spans: int) -> list[Sample]:
        """Sends requests and returns the page that counts so many spans."""
        for each in requests:
            send(self.gateway.http, each)

        def counted() -> list[Sample]:
            found = self.read()
            return found if sum(each.value for each in found if each.name == CALLS) >= spans else []

        return until(counted, f"{spans} spans on the page")


@pytest.fixture
def page(collector):
    return Page(collector("gateway", "span-metrics", SPAN_METRICS_INTERVAL="500ms"))


def test_steps_of_each_worker_are_counted_and_timed(page):
    requests = [
        request(
            [
                span(worker, trace=("step", step), ms=4 + 40 * worker, tensorflow__worker=f"worker:{worker}")
                for step in range(10)
            ],
            tensorflow__run__id="r1",
            service__instance__id=f"r1/worker:{worker}",
        )
        for worker in range(2)
    ]
    found = page.after(*requests, spans=20)
    calls = {each.labels["tensorflow_worker"]: each.value for each in found if each.name == CALLS}
    assert calls == {"worker:0": 10, "worker:1": 10}
    fast = {
        each.labels["tensorflow_worker"]: each.value
        for each in found
        if each.name == BUCKET and float(each.labels["le"]) == 0.005
    }
    assert fast == {"worker:0": 10, "worker:1": 0}
    traces = {span(0, trace=("step", step))["traceId"] for step in range(10)}
    assert any(trace in text for text in page.exemplars for trace in traces)


def test_failures_are_told_by_their_type(page):
    failed = span("a", trace=("f",), failed=True, error__type="RESOURCE_EXHAUSTED")
    found = page.after(request([failed, span("b", trace=("f",))]), spans=2)
    calls = {
        (each.labels["status_code"], each.labels.get("error_type", "")): each.value
        for each in found
        if each.name == CALLS
    }
    assert calls == {("STATUS_CODE_ERROR", "RESOURCE_EXHAUSTED"): 1, ("STATUS_CODE_UNSET", ""): 1}


def test_what_the_correlator_wrote_back_counts_once(page):
    seen = span("a", trace=("a",), tensorflow__worker="worker:0")
    logical = [
        request([span("b", trace=("b",))], service__name=name)
        for name in ("mnist.logical", "mnist.logical worker:0")
    ]
    found = page.after(*logical, request([seen]), spans=1)
    assert [each.value for each in found if each.name == CALLS] == [1]


def test_series_do_not_grow_with_steps_runs_processes_or_ops(page):
    requests = [
        request(
            [
                span(run, trace=("step", step), tensorflow__worker="worker:0", tensorflow__global_step=step)
                for step in range(50)
            ],
            tensorflow__run__id=f"run-{run}",
            service__instance__id=f"run-{run}/worker:0",
            process__pid=1000 + run,
        )
        for run in range(5)
    ]
    ops = [span(n, trace=("op",), name=f"Op{n}", tensorflow__op__type=f"Op{n}") for n in range(100)]
    found = page.after(request(ops, tensorflow__run__id="run-0"), *requests, spans=250)
    calls = [each for each in found if each.name == CALLS]
    assert [each.value for each in calls] == [250]
    assert set(calls[0].labels) >= {
        "service_name",
        "span_name",
        "span_kind",
        "status_code",
        "tensorflow_worker",
    }
    assert not any("run-" in value for each in found for value in each.labels.values())
