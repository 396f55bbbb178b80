"""Reading from a real Jaeger: over gRPC and over HTTP, from memory and from disk."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.request
from pathlib import Path

import pytest

from otel_tf import ids
from otel_tf.correlator import correlate, sources
from otel_tf.correlator.sources import jaeger as source
from otel_tf.correlator.sources import jaeger_slices
from otel_tf.errors import UserError

BADGER = Path(__file__).with_name("jaeger-badger.yaml")

RESOURCE = {
    "service.name": "mnist",
    "service.instance.id": "r/worker:0",
    "tensorflow.run.id": "r",
    "tensorflow.clock.domain": "boot",
    "tensorflow.worker": "worker:0",
}


@pytest.fixture(params=["grpc", "http"])
def address(request):
    """Makes the address of a Jaeger as a source, for either of its APIs."""

    def of(jaeger, query=""):
        grpc = jaeger.ports.query_grpc if request.param == "grpc" else "none"
        return f"jaeger+{jaeger.ui}?grpc={grpc}&{query}".rstrip("&")

    of.filters = request.param == "grpc"
    return of


@pytest.fixture(params=["memory", "badger"])
def storage(request, jaeger, tmp_path, monkeypatch):
    """Starts a Jaeger with either storage."""
    if request.param == "memory":
        return jaeger
    monkeypatch.setenv("OTEL_TF_JAEGER_DIR", str(tmp_path))
    return lambda: jaeger(config=BADGER)


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
    read_when(f"jaeger+{jaeger.ui}?grpc={jaeger.ports.query_grpc}", expected)


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


def until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def rows(ingested):
    return sorted(ingested.spans.to_pylist(), key=lambda row: (row["trace_lo"], row["span_id"]))


def test_what_jaeger_has_is_what_was_sent_to_it(storage, samples, address):
    link = {"traceId": f"{9:032x}", "spanId": f"{8:016x}"}
    attributes = {"tensorflow.global_step": 3, "tensorflow.seq": 4, "x": "y", "half": 0.5, "no": False}
    document = samples.traces(
        samples.span(1, attributes, kind=4, status={"code": 2, "message": "boom"}),
        samples.span(2, traceId=samples.span(1)["traceId"], parentSpanId=f"{1:016x}", links=[link]),
        samples.span(5, traceId=f"{5:032x}", spanId=f"{2**63:016x}"),  # high half zero, highest bit set
        resource={**RESOURCE, "process.pid": 7},
    )
    other = samples.traces(
        samples.span(3, traceId=samples.span(1)["traceId"]), resource={"service.name": "ps"}
    )
    running = storage()
    fill(running, document, other)
    sent, found = samples.read(document, other), sources.read([address(running)])
    assert rows(found) == rows(sent)
    assert found.links.num_rows == 1
    assert found.skipped == {}  # a trace of two services is answered twice and is no duplicate


def test_lists_come_back_from_memory(jaeger, samples, address):
    running = jaeger()
    document = samples.traces(samples.span(1, {"list": ["a", 1]}), resource=RESOURCE)
    fill(running, document)
    assert rows(sources.read([address(running)])) == rows(samples.read(document))


def many(samples):
    spans = [samples.span(n * n, {"x": n}, startTimeUnixNano=str(samples.t0 + n * n)) for n in range(1, 60)]
    # Several traces at the same moment cannot be told apart by time.
    spans += [
        samples.span(n, startTimeUnixNano=str(samples.t0), endTimeUnixNano=str(samples.t0 + 5))
        for n in range(10_000, 10_012)
    ]
    return samples.traces(*spans, resource=RESOURCE), {int(span["spanId"], 16) for span in spans}


@pytest.mark.parametrize("most", [1, 3, 10])
def test_windows_that_come_back_full_are_narrowed(storage, samples, monkeypatch, address, most):
    document, expected = many(samples)
    running = storage()
    fill(running, document)
    monkeypatch.setattr(jaeger_slices, "_FIRST", most)
    monkeypatch.setattr(jaeger_slices, "_SPANS_AN_ANSWER", 1)
    # As if memory were any storage: everything in windows of time.
    monkeypatch.setattr(jaeger_slices.Reading, "is_in_memory", lambda *_: False)
    found = sources.read([address(running)])
    assert {row["span_id"] for row in rows(found)} == expected
    assert found.skipped == {}


@pytest.mark.parametrize("holds", [71, 72, 75, 200])
def test_what_a_storage_in_memory_may_hold_is_found_out(jaeger, samples, monkeypatch, address, holds):
    document, expected = many(samples)
    monkeypatch.setenv("OTEL_TF_JAEGER_MAX_TRACES", str(holds))
    running = jaeger()
    fill(running, document)
    assert {row["span_id"] for row in rows(sources.read([address(running)]))} == expected


def test_times_far_from_now_are_found(storage, samples, address):
    year = 365 * 86400 * 10**9
    now = time.time_ns()
    starts = [10**9, now - 40 * year, now - year, now - 10**9, now + 5 * year]
    spans = [
        samples.span(n, startTimeUnixNano=str(start), endTimeUnixNano=str(start + 1000))
        for n, start in enumerate(starts, 1)
    ]
    running = storage()
    fill(running, samples.traces(*spans))
    assert sources.read([address(running)]).spans.num_rows == 5


def test_the_run_may_be_in_the_address(storage, samples, said, address):
    lines, say = said
    running = storage()
    # What is wrong with a span shows that it was read.
    absurd = {"startTimeUnixNano": str(2**63 - 1), "endTimeUnixNano": str(2**63 - 1)}
    old = samples.traces(
        samples.span(1),
        samples.span(7, traceId=samples.span(1)["traceId"], **absurd),
        resource={**RESOURCE, "tensorflow.run.id": "old"},
    )
    foreign = samples.span(3, traceId=samples.span(2)["traceId"])
    new = samples.traces(samples.span(2), resource=RESOURCE)
    fill(running, new, samples.traces(foreign, resource={"service.name": "user's"}))
    post(running, old)
    for run, expected in (("old", [1]), ("r", [2, 3])):
        found = read_when(address(running, f"run={run}"), len(expected), say=say)
        assert sorted(found.spans["span_id"].to_pylist()) == expected
        assert ("absurd_time" in found.skipped) == (run == "old" or not address.filters)
    assert lines == []
    with pytest.raises(UserError, match=r"run 'nobody'; runs here: (old, r|r, old)"):
        sources.read([address(running, "run=nobody")])


def test_what_was_written_back_is_left_out_unless_asked_for(storage, samples, address):
    running = storage()
    logical = {**RESOURCE, "service.name": "mnist.logical worker:0"}
    fill(running, samples.traces(samples.span(1), resource=RESOURCE))
    post(running, samples.traces(samples.span(2), resource=logical))
    asked = read_when(address(running, "service=mnist.logical%20worker:0"), 1)
    assert asked.spans["span_id"].to_pylist() == [2]
    for query in ("", "run=r"):
        assert sources.read([address(running, query)]).spans["span_id"].to_pylist() == [1]


def closure(samples, number, **fields):
    trace_id = f"{ids.trace_id('r', 'closure', number):032x}"
    attributes = {"tensorflow.closure.id": number, "tensorflow.seq": number + 1}
    return samples.span(number + 1, attributes, traceId=trace_id, name="closure", **fields)


def test_what_jaeger_evicted_is_counted(jaeger, samples, monkeypatch, address):
    monkeypatch.setenv("OTEL_TF_JAEGER_MAX_TRACES", "50")
    running = jaeger()
    for first in range(0, 80, 10):
        spans = [closure(samples, number) for number in range(first, first + 10)]
        spans.append({**spans[0], "spanId": f"{first + 100:016x}", "parentSpanId": f"{9:016x}"})
        post(running, samples.traces(*spans, resource=RESOURCE))
        # What is stored together is stored in any order.
        until(lambda last=first + 10: last in read_when(address(running), 1).spans["span_id"].to_pylist())
    expected = {"parents": 5, "closures": 30, "sequence": 30}
    assert sources.read([address(running, "run=r")]).missing == expected
    assert correlate(address(running)).report["missing"] == expected


def test_a_step_that_no_search_finds_is_asked_for_by_its_id(jaeger, samples, said, address):
    lines, say = said
    running = jaeger()
    there = samples.traces(*(closure(samples, n) for n in range(400) if n % 2), resource=RESOURCE)
    # A search leaves out what looks like written back.
    logical = {**RESOURCE, "service.name": "mnist.logical"}
    hidden = samples.traces(*(closure(samples, n) for n in range(0, 400, 2)), resource=logical)
    fill(running, there)
    post(running, hidden)
    read_when(address(running, "service=mnist.logical"), 200)
    found = sources.read([address(running, "run=r")], say=say)
    assert found.spans.num_rows == 400
    assert found.missing == {"parents": 0, "closures": 0, "sequence": 0}
    assert lines[-1] == "133 more traces are asked for one by one"


def test_another_jaeger_at_the_usual_port_is_not_taken_for_it(jaeger, samples, said, monkeypatch):
    lines, say = said
    first, second = jaeger(), jaeger()
    fill(first, samples.traces(samples.span(1), resource=RESOURCE))
    fill(second, samples.traces(samples.span(2), resource={"service.name": "other"}))
    monkeypatch.setattr(source, "_UI_PORT", first.ports.ui)
    for port, expected in (
        (second.ports.query_grpc, "is another Jaeger"),
        (9, "no Jaeger there over gRPC"),
    ):
        lines.clear()
        monkeypatch.setattr(source, "_GRPC_PORT", port)
        found = sources.read([f"jaeger+{first.ui}?run=r"], say=say)
        assert found.spans["span_id"].to_pylist() == [1]
        (line,) = lines
        assert expected in line
        assert line.startswith(f"{first.ui} is asked over HTTP, which cannot look for one run (")
        assert line.endswith("; ?grpc=HOST:PORT after the address names it)")
    lines.clear()
    monkeypatch.setattr(source, "_GRPC_PORT", first.ports.query_grpc)
    assert sources.read([f"jaeger+{first.ui}"], say=say).spans.num_rows == 1
    assert lines == []


def test_addresses_that_lead_to_no_spans(module_jaeger):
    jaeger = module_jaeger
    for spec, said in [
        ("jaeger+http://127.0.0.1:1", r"http://127\.0\.0\.1:1: no Jaeger there \(Connection refused\)"),
        (f"jaeger+{jaeger.ui}", r"no traces of any service"),
        (f"jaeger+{jaeger.ui}?service=nobody", r"no traces of nobody"),
        (f"jaeger+{jaeger.ui}?what=1", r"unknown 'what' after the \?; known are run, service, grpc"),
        (f"jaeger+{jaeger.ui}/some/page", r"answers, but not with JSON: is this Jaeger's query address\?"),
        (f"jaeger+{jaeger.otlp_http}", r"HTTP 404"),
        ("jaeger+http://127.0.0.1:port", r"the port is not a number"),
    ]:
        with pytest.raises(UserError, match=said):
            sources.read([spec])
