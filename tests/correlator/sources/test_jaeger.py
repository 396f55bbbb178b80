"""Reading from a real Jaeger."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.request

import pytest

from otel_tf.correlator import sources
from otel_tf.errors import UserError


def fill(jaeger, *documents):
    """Posts OTLP/JSON, and waits until Jaeger shows all of it."""
    for document in documents:
        post(jaeger, document)
    expected = sum(
        len(scope["spans"])
        for document in documents
        for part in document["resourceSpans"]
        for scope in part["scopeSpans"]
    )
    read_when(f"jaeger+{jaeger.ui}", expected)


def post(jaeger, document):
    request = urllib.request.Request(
        f"{jaeger.otlp_http}/v1/traces",
        json.dumps(document).encode(),
        {"Content-Type": "application/json"},
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


def read_when(spec, expected, **options):
    """Reads a source when it has so many spans: what was posted shows a moment later."""
    deadline = time.monotonic() + 20
    while True:
        with contextlib.suppress(UserError):
            ingested = sources.read([spec], **options)
            if ingested.spans.num_rows >= expected:
                return ingested
        assert time.monotonic() < deadline, f"{spec} does not show {expected} spans"
        time.sleep(0.05)


def rows(ingested):
    return sorted(ingested.spans.to_pylist(), key=lambda row: (row["trace_lo"], row["span_id"]))


RESOURCE = {
    "service.name": "mnist",
    "service.instance.id": "r/worker:0",
    "tensorflow.run.id": "r",
    "tensorflow.clock.domain": "boot",
    "tensorflow.worker": "worker:0",
}


def test_what_jaeger_has_is_what_was_sent_to_it(jaeger, samples):
    link = {"traceId": f"{9:032x}", "spanId": f"{8:016x}"}
    attributes = {"tensorflow.global_step": 3, "tensorflow.seq": 4, "x": "y", "list": ["a", 1], "half": 0.5}
    document = samples.traces(
        samples.span(1, attributes, kind=4, status={"code": 2, "message": "boom"}),
        samples.span(2, traceId=samples.span(1)["traceId"], parentSpanId=f"{1:016x}", links=[link]),
        samples.span(5, traceId=f"{5:032x}", spanId=f"{2**63:016x}"),  # high half zero, highest bit set
        resource=RESOURCE,
    )
    other = samples.traces(
        samples.span(3, traceId=samples.span(1)["traceId"]), resource={"service.name": "ps"}
    )
    running = jaeger()
    fill(running, document, other)
    sent, found = samples.read(document, other), sources.read([f"jaeger+{running.ui}"])
    assert rows(found) == rows(sent)
    assert found.links.num_rows == 1
    assert found.skipped == {}  # a trace of two services is answered twice and is no duplicate


@pytest.mark.parametrize("most", [1, 3, 10])
def test_slices_that_come_back_full_are_halved(jaeger, samples, monkeypatch, most):
    spans = [samples.span(n * n, {"x": n}, startTimeUnixNano=str(samples.t0 + n * n)) for n in range(1, 60)]
    # Several traces at the same moment cannot be told apart by time.
    spans += [
        samples.span(n, startTimeUnixNano=str(samples.t0), endTimeUnixNano=str(samples.t0 + 5))
        for n in range(10_000, 10_012)
    ]
    running = jaeger()
    fill(running, samples.traces(*spans, resource=RESOURCE))
    monkeypatch.setattr("otel_tf.correlator.sources.jaeger._TRACES_A_QUERY", most)
    found = sources.read([f"jaeger+{running.ui}"])
    assert {row["span_id"] for row in rows(found)} == {int(span["spanId"], 16) for span in spans}


def test_times_far_from_now_are_found(jaeger, samples):
    year = 365 * 86400 * 10**9
    now = time.time_ns()
    starts = [10**9, now - 40 * year, now - year, now - 10**9, now + 5 * year]
    spans = [
        samples.span(n, startTimeUnixNano=str(start), endTimeUnixNano=str(start + 1))
        for n, start in enumerate(starts, 1)
    ]
    running = jaeger()
    fill(running, samples.traces(*spans))
    assert sources.read([f"jaeger+{running.ui}"]).spans.num_rows == 5


def test_the_run_may_be_in_the_address(jaeger, samples, said):
    lines, say = said
    running = jaeger()
    for number, run in ((1, "old"), (2, "r")):
        post(running, samples.traces(samples.span(number), resource={**RESOURCE, "tensorflow.run.id": run}))
    address = f"jaeger+{running.ui}?run="
    for number, run in ((1, "old"), (2, "r")):
        found = read_when(address + run, 1, say=say)
        assert found.spans["span_id"].to_pylist() == [number]
    assert lines == []
    with pytest.raises(UserError, match="no spans of run 'nobody'; runs here: r, old"):
        sources.read([address + "nobody"])


def test_what_was_written_back_is_left_out_unless_asked_for(jaeger, samples):
    running = jaeger()
    logical = {**RESOURCE, "service.name": "mnist.logical worker:0"}
    fill(running, samples.traces(samples.span(1), resource=RESOURCE))
    post(running, samples.traces(samples.span(2), resource=logical))
    asked = read_when(f"jaeger+{running.ui}?service=mnist.logical%20worker:0", 1)
    assert asked.spans["span_id"].to_pylist() == [2]
    assert sources.read([f"jaeger+{running.ui}"]).spans["span_id"].to_pylist() == [1]


def test_addresses_that_lead_to_no_spans(module_jaeger):
    jaeger = module_jaeger
    for spec, said in [
        ("jaeger+http://127.0.0.1:1", r"http://127\.0\.0\.1:1: no Jaeger there \(Connection refused\)"),
        (f"jaeger+{jaeger.ui}", r"no traces of any service"),
        (f"jaeger+{jaeger.ui}?service=nobody", r"no traces of nobody"),
        (f"jaeger+{jaeger.ui}?what=1", r"unknown 'what' after the \?; known are run and service"),
        (f"jaeger+{jaeger.ui}/some/page", r"answers, but not with JSON: is this Jaeger's query address\?"),
        (f"jaeger+{jaeger.otlp_http}", r"HTTP 404"),
    ]:
        with pytest.raises(UserError, match=said):
            sources.read([spec])
