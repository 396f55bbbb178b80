"""Writing to a real Jaeger, and what comes back from it."""

from __future__ import annotations

import http.server
import json
import re
import threading
import time
import urllib.request
from typing import Any

import pyarrow.parquet as pq
import pytest

from otel_tf import semconv
from otel_tf.cli.main import main
from otel_tf.correlator import correlate, sinks, sources
from otel_tf.correlator.sinks.jaeger import endpoint_of
from otel_tf.correlator.sinks.logical import logical
from otel_tf.errors import UserError
from tests.jaeger_ui import EVER, ask, critical_path, process_of, rows_of, tags_of, traces_of


def test_the_rows_of_an_asynchronous_run_are_in_causal_order(jaeger, asynchronous):
    running = jaeger()
    lines: list[str] = []
    result = asynchronous.result()
    sinks.write(result, f"jaeger={running.otlp_http}", lines.append)
    assert lines == [
        f"3,002 spans in 2 traces sent to {running.otlp_http}/v1/traces",
        "in Jaeger's search: services mnist.logical, mnist.logical chief:0, mnist.logical worker:0, "
        "mnist.logical worker:1 and 1 more; one step by Tags, such as tensorflow.global_step=500",
    ]
    traces = traces_of(running, "mnist.logical", 2)
    corrected = {row["span_id"]: row for row in result.spans.to_pylist()}
    seen = 0
    for trace in traces:
        rows = rows_of(trace)
        assert (rows[0][1]["operationName"], len(rows)) == ("steps", 1501)
        closures = [tags_of(span) for depth, span in rows if depth == 1]
        orders = [tags[semconv.LOGICAL_ORDER] for tags in closures]
        assert orders == sorted(orders)
        for depth, span in rows[1:]:
            tags = tags_of(span)
            row = corrected[tags[semconv.LOGICAL_ORIGINAL_SPAN]]
            assert depth == {"closure": 1, "dispatch": 2, "train_step": 3}[row["name"]]
            assert abs(span["startTime"] - row["corrected_start_ns"] // 1000) <= 2
            assert span["warnings"] is None
            seen += 1
    assert seen == 3000
    services = set(ask(running, "/api/services"))
    expected = {"mnist.logical", "mnist.logical chief:0", *(f"mnist.logical worker:{w}" for w in range(3))}
    assert services == expected


def test_a_step_is_found_by_its_tag(jaeger, synchronous):
    running = jaeger()
    sinks.write(synchronous.result(), f"jaeger={running.otlp_http}", print)
    traces_of(running, "mnist.logical worker:2", 10)
    query = {**EVER, "limit": 20, "tags": json.dumps({semconv.GLOBAL_STEP: "7"})}
    (found,) = ask(running, "/api/traces", service="mnist.logical worker:2", **query)
    assert {tags_of(span)[semconv.GLOBAL_STEP] for span in found["spans"]} == {7}


def test_the_critical_path_runs_through_the_straggler(jaeger, synchronous):
    running = jaeger()
    folder = synchronous.write()
    for file in sorted(synchronous.folder.iterdir()):
        post(running, file.read_bytes())
    # As recorded, the worker whose clock is ahead seems to end last.
    workers = {
        tags_of(span)["tensorflow.worker"]
        for trace in traces_of(running, "mnist", 10)
        for span in critical_path(trace)
        if span["operationName"] == "train_step"
    }
    assert workers == {"worker:1"}
    sinks.write(correlate(folder), f"jaeger={running.otlp_http}", print)
    for trace in traces_of(running, "mnist.logical worker:0", 10):
        path = critical_path(trace)
        steps = [span for span in path if span["operationName"] == "train_step"]
        assert [tags_of(span)["tensorflow.worker"] for span in steps] == ["worker:2"]


def test_the_critical_path_runs_through_whom_the_others_waited_for(jaeger, tmp_path):
    simulated = ["simulate", "--out", str(tmp_path), "--topology", "barrier", "--workers", "4"]
    assert main([*simulated, "--spans", "1800", "--straggler", "3", "--offset-ms", "3"]) == 0
    running = jaeger()
    for file in sorted(tmp_path.glob("*.jsonl")):
        for line in file.read_bytes().splitlines():
            post(running, line)
    sinks.write(correlate(str(tmp_path)), f"jaeger={running.otlp_http}", print)
    recorded = [right(trace) for trace in traces_of(running, "simulated", 200)]
    ordered = [right(trace) for trace in traces_of(running, "simulated.logical worker:0", 200)]
    assert sum(recorded) < 20
    # Now and then a worker leaves the barrier so late that it is the one to wait for.
    assert sum(ordered) > 190


def right(trace: dict[str, Any]) -> bool:
    """Returns whether the critical path runs through the worker that waited least, which needs no clocks."""
    named = [span for span in critical_path(trace) if span["operationName"] == "train_step"]
    waits = {
        tags_of(span)[semconv.WORKER]: span["duration"]
        for span in trace["spans"]
        if span["operationName"] == "collective"
    }
    return {tags_of(span)[semconv.WORKER] for span in named} == {min(waits, key=waits.__getitem__)}


def post(jaeger, body: bytes) -> None:
    request = urllib.request.Request(
        f"{jaeger.otlp_http}/v1/traces", body, {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


def test_writing_twice_shows_every_span_once(jaeger, synchronous):
    running = jaeger()
    result = synchronous.result()
    for _ in range(2):
        sinks.write(result, f"jaeger={running.otlp_http}", print)
    traces_of(running, "mnist.logical worker:0", 10)
    deadline = time.monotonic() + 20
    written = f"jaeger+{running.ui}?service=mnist.logical%20worker:0"
    while sources.read([written]).skipped != {"duplicate": 90} and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sources.read([written]).skipped == {"duplicate": 90}  # both copies are stored
    traces = traces_of(running, "mnist.logical worker:0", 10)
    assert sum(len(trace["spans"]) for trace in traces) == 90


def test_another_result_is_shown_beside_the_first(jaeger, synchronous):
    running = jaeger()
    sinks.write(synchronous.result(), f"jaeger={running.otlp_http}", print)
    by_another_clock = correlate(synchronous.write(), reference="boot-worker:1")
    sinks.write(by_another_clock, f"jaeger={running.otlp_http}", print)
    traces = traces_of(running, "mnist.logical worker:0", 20)
    assert [len(trace["spans"]) for trace in traces] == [9] * 20
    for trace in traces:
        assert len({span["spanID"] for span in trace["spans"]}) == 9
        assert {span["warnings"] for span in trace["spans"]} == {None}


def test_a_link_and_a_warning_arrive_as_such(jaeger, asynchronous):
    running = jaeger()
    result = asynchronous.result()
    (at_ns,) = (row["start_ns"] for row in result.spans.to_pylist() if row["order"] == 60)
    for clock in result.report["clocks"]:
        clock["steps"] = (
            [{"at_ns": at_ns, "size_ns": -5_000_000}] if clock["domain"] == "boot-chief:0" else []
        )
    sinks.write(result, f"jaeger={running.otlp_http}", print)
    traces = traces_of(running, "mnist.logical", 2)
    spans = [span for trace in traces for span in trace["spans"]]
    warned = [span["warnings"] for span in spans if span["warnings"]]
    assert warned
    assert {text for texts in warned for text in texts} == {
        "the clock of boot-chief:0 stepped by -5.000 ms here"
    }
    kinds = [[ref["refType"] for ref in span["references"]] for span in spans]
    assert kinds.count(["CHILD_OF", "FOLLOWS_FROM"]) == 999
    assert kinds.count([]) == 2


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://localhost:4318", "http://localhost:4318/v1/traces"),
        ("https://collector/otlp/", "https://collector/otlp/v1/traces"),
        ("http://[::1]:4318/v1/traces", "http://[::1]:4318/v1/traces"),
    ],
)
def test_endpoints(url, expected):
    assert endpoint_of(url) == expected


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "http://localhost:16686",
            "port 16686 is Jaeger's UI; wanted is OTLP/HTTP, mostly http://localhost:4318",
        ),
        ("http://localhost:4317", "port 4317 is OTLP over gRPC"),
        ("localhost:4318", r"wanted is http\(s\)://HOST:PORT"),
        ("grpc://localhost:4318", r"wanted is http\(s\)://HOST:PORT"),
        ("http://localhost:port", "the port is not a number"),
    ],
)
def test_addresses_that_are_no_endpoint_are_refused(url, said):
    with pytest.raises(UserError, match=said):
        endpoint_of(url)


class Endpoint(http.server.BaseHTTPRequestHandler):
    """Answers with the next of ``answers``: status, headers, body."""

    answers: list[tuple[int, dict[str, str], bytes]]
    got: list[tuple[int, Any]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).got.append((len(body), self.headers))
        status, headers, answer = self.answers.pop(0) if self.answers else (200, {}, b"")
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endpoint():
    handler = type("Handler", (Endpoint,), {"answers": [], "got": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        handler.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield handler
        server.shutdown()
        thread.join()


def test_a_busy_endpoint_is_asked_again(endpoint, synchronous):
    endpoint.answers += [(429, {"Retry-After": "0"}, b""), (503, {"Retry-After": "0"}, b"")]
    lines: list[str] = []
    sinks.write(synchronous.result(), f"jaeger={endpoint.url}", lines.append)
    assert len({size for size, _ in endpoint.got}) == 1
    assert len(endpoint.got) == 3
    assert lines[0] == f"90 spans in 10 traces sent to {endpoint.url}/v1/traces"


def test_a_refusal_is_final_and_named(endpoint, synchronous):
    endpoint.answers += [(401, {}, b"")]
    with pytest.raises(
        UserError, match=rf"jaeger={endpoint.url}: HTTP 401 Unauthorized \(0 spans had been sent\)"
    ):
        sinks.write(synchronous.result(), f"jaeger={endpoint.url}", print)
    assert len(endpoint.got) == 1


def test_spans_that_were_rejected_are_counted(endpoint, synchronous):
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = 4
    answer.partial_success.error_message = "too old"
    endpoint.answers += [(200, {}, answer.SerializeToString())]
    with pytest.raises(UserError, match="4 of 90 spans were rejected: too old"):
        sinks.write(synchronous.result(), f"jaeger={endpoint.url}", print)


def test_the_standard_variables_hold(endpoint, synchronous, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    sinks.write(synchronous.result(), f"jaeger={endpoint.url}", print)
    ((_, headers),) = endpoint.got
    assert headers["authorization"] == "Bearer x"
    assert headers["Content-Encoding"] == "gzip"


def test_nobody_there(synchronous):
    with pytest.raises(UserError, match=r"jaeger=http://127\.0\.0\.1:1: .*refused"):
        sinks.write(synchronous.result(), "jaeger=http://127.0.0.1:1", print)


@pytest.mark.parametrize("step_ms", [20, -20])
def test_a_clock_that_stepped_is_told_of_where_it_did(jaeger, tmp_path, step_ms):
    simulated = ["simulate", "--out", str(tmp_path), "--workers", "4", "--spans", "6000", "--drift-ppm", "0"]
    assert main([*simulated, f"--step-ms={step_ms}"]) == 0
    result = correlate(str(tmp_path), reference="host-ps-0")
    running = jaeger()
    sinks.write(result, f"jaeger={running.otlp_http}", print)
    spans = warned_spans(running, len(logical(result).traces))
    # Domain 0 keeps true time; the clock of worker:1 steps half-way through.
    truth = {row["span_id"]: row for row in pq.read_table(tmp_path / "truth.parquet").to_pylist()}
    begin = min(row["true_start_ns"] for row in truth.values())
    moment = (begin + max(row["true_end_ns"] for row in truth.values())) // 2
    assert spans
    for process, span in spans:
        (text,) = span["warnings"]
        stepped = float(re.fullmatch(r"the clock of host-worker-1 stepped by ([+-][\d.]+) ms here", text)[1])
        assert stepped == pytest.approx(step_ms, abs=1)
        assert process["tensorflow.logical.original.clock.domain"] == "host-worker-1"
        true = truth[tags_of(span)[semconv.LOGICAL_ORIGINAL_SPAN]]
        # Worker 1 takes a step of training every few ms.
        assert true["true_start_ns"] - 5_000_000 < moment < true["true_end_ns"] + 5_000_000


def warned_spans(jaeger, traces: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Returns (process tags, span) of the spans with warnings of all logical traces, when they are there."""
    return [
        (process_of(trace, span), span)
        for trace in traces_of(jaeger, "simulated.logical", traces)
        for span in trace["spans"]
        if span["warnings"]
    ]
