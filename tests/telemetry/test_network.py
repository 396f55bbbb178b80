"""The network copy, against real endpoints: good, dead, slow, busy, refusing, half-hearted."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_tf.telemetry import SpanError, _network, _shipper
from tests.telemetry.support import (
    DEAD,
    Collector,
    program,
    record_step,
    run_python,
    spool_spans,
    step_layout,
    until,
)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def ledger(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for path in sorted(folder.glob("*.sent")) for line in path.read_text().splitlines()
    ]


@pytest.fixture(params=["http/protobuf", "grpc"])
def any_collector(request: pytest.FixtureRequest, send_to: Any) -> Collector:
    """A good endpoint, over each protocol; pipelines send to it."""
    fixture = "collector" if request.param == "http/protobuf" else "grpc_collector"
    state: Collector = request.getfixturevalue(fixture)
    send_to(state.endpoint, request.param)
    return state


def test_spans_arrive_as_they_lie_in_the_spool(
    any_collector: Collector, pipeline: Any, tmp_path: Path
) -> None:
    one = pipeline()
    layout = step_layout(one)
    error = SpanError("ABORTED", "worker lost", "AbortedError")
    ids = [record_step(one, layout, step, error=error if step == 3 else None) for step in range(5)]
    assert one.flush(10)
    assert [int.from_bytes(span.span_id, "big") for span in any_collector.spans] == ids
    assert any_collector.spans[3].status.message == "worker lost"
    assert [span["spanId"] for span in spool_spans(tmp_path / "run")] == [f"{each:016x}" for each in ids]
    resource = {
        each.key: each.value.string_value
        for each in any_collector.requests[0].resource_spans[0].resource.attributes
    }
    assert resource["service.instance.id"] == "r1/local:0"


def test_every_acknowledged_line_is_in_the_ledger(
    any_collector: Collector, pipeline: Any, tmp_path: Path
) -> None:
    one = pipeline()
    layout = step_layout(one)
    for step in range(3):
        record_step(one, layout, step)
        assert one.flush(10)
    (path,) = (tmp_path / "run").glob("*.traces.jsonl")
    content = path.read_bytes()
    entries = ledger(tmp_path / "run")
    assert len(entries) == 3
    assert sum(entry["length"] for entry in entries) == len(content)
    for entry in entries:
        line = content[entry["offset"] : entry["offset"] + entry["length"]]
        assert line.startswith(b'{"resourceSpans"')
        assert line.endswith(b"\n")
        assert entry["spans"] == 1


def test_headers_and_compression_are_the_exporters(
    collector: Collector, pipeline: Any, send_to: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_to(collector.endpoint)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=lab%201")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    one = pipeline()
    record_step(one, step_layout(one), 1)
    assert one.flush(10)
    assert collector.headers[0]["x-tenant"] == "lab 1"
    assert collector.headers[0]["Content-Encoding"] == "gzip"
    assert len(collector.spans) == 1


def test_headers_reach_grpc(
    grpc_collector: Collector, pipeline: Any, send_to: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_to(grpc_collector.endpoint, "grpc")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=lab")
    one = pipeline()
    record_step(one, step_layout(one), 1)
    assert one.flush(10)
    assert grpc_collector.headers[0]["x-tenant"] == "lab"


def test_the_default_is_otlp_over_http(
    collector: Collector, pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_TRACES_EXPORTER")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
    one = pipeline()
    record_step(one, step_layout(one), 1)
    assert one.flush(10)
    assert len(collector.spans) == 1


# -- endpoints that do not do as they should ------------------------------------------


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_dead_endpoint_is_said_once(
    protocol: str, pipeline: Any, send_to: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    send_to(DEAD, protocol)
    one = pipeline()
    layout = step_layout(one)
    for step in range(5):
        record_step(one, layout, step)
        assert one.flush(5) is False
    assert len(spool_spans(tmp_path / "run")) == 5
    assert ledger(tmp_path / "run") == []
    (said,) = warnings_of(caplog)
    assert "127.0.0.1:9" in said
    assert str(tmp_path / "run") in said
    hint = f"{DEAD}/v1/traces" if protocol == "http/protobuf" else "127.0.0.1:9 --protocol grpc"
    assert said.endswith(f"otel-tf replay {tmp_path / 'run'} --endpoint {hint}")


def test_an_endpoint_that_comes_up_later_gets_everything(
    collector: Collector,
    pipeline: Any,
    send_to: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_shipper, "_FIRST_DELAY_S", 0.05)
    caplog.set_level(logging.INFO, logger="otel_tf")
    collector.answers = [(503, {}, b"")] * 4
    send_to(collector.endpoint)
    one = pipeline()
    layout = step_layout(one)
    for step in range(5):
        record_step(one, layout, step)
    until(lambda: len(collector.spans) == 5)
    assert one.flush(5)
    assert len(ledger(tmp_path / "run")) == len(collector.requests)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "again" in caplog.messages[1]


def test_a_grpc_endpoint_that_was_away_gets_everything(
    grpc_collector: Collector, pipeline: Any, send_to: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_shipper, "_FIRST_DELAY_S", 0.05)
    grpc_collector.answers = [(0, {}, b"UNAVAILABLE")] * 3
    send_to(grpc_collector.endpoint, "grpc")
    one = pipeline()
    record_step(one, step_layout(one), 1)
    until(lambda: len(grpc_collector.spans) == 1)
    assert grpc_collector.attempts == 4


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_retry_after_is_kept_to_and_not_worth_a_word(
    status: int, collector: Collector, pipeline: Any, send_to: Any, caplog: pytest.LogCaptureFixture
) -> None:
    collector.answers = [(status, {"Retry-After": "1"}, b"")]
    send_to(collector.endpoint)
    one = pipeline()
    record_step(one, step_layout(one), 1)
    began = time.monotonic()
    assert one.flush(10)
    assert time.monotonic() - began >= 0.9
    assert collector.attempts == 2
    assert warnings_of(caplog) == []


def test_a_retry_after_beyond_the_time_left_is_not_waited_for(
    collector: Collector, pipeline: Any, send_to: Any
) -> None:
    collector.answers = [(429, {"Retry-After": "30"}, b"")]
    send_to(collector.endpoint)
    one = pipeline()
    record_step(one, step_layout(one), 1)
    assert one.flush(20) is False
    assert one.flush(20) is False
    assert collector.attempts == 1


@pytest.mark.parametrize("status", [400, 401, 404, 500])
def test_a_refusal_is_not_tried_again_and_training_goes_on(
    status: int, collector: Collector, pipeline: Any, send_to: Any, caplog: pytest.LogCaptureFixture
) -> None:
    collector.answers = [(status, {}, b"no")]
    send_to(collector.endpoint)
    one = pipeline()
    layout = step_layout(one)
    record_step(one, layout, 1)
    assert one.flush(10) is False
    record_step(one, layout, 2)
    assert one.flush(10)
    assert (collector.attempts, len(collector.spans)) == (2, 1)
    (said,) = warnings_of(caplog)
    assert f"HTTP {status}" in said


def test_a_grpc_refusal_is_not_tried_again(
    grpc_collector: Collector, pipeline: Any, send_to: Any, caplog: pytest.LogCaptureFixture
) -> None:
    grpc_collector.answers = [(0, {}, b"UNAUTHENTICATED")]
    send_to(grpc_collector.endpoint, "grpc")
    one = pipeline()
    record_step(one, step_layout(one), 1)
    assert one.flush(10) is False
    assert grpc_collector.attempts == 1
    (said,) = warnings_of(caplog)
    assert "UNAUTHENTICATED: told so" in said


def test_a_partial_success_is_noted_and_not_sent_again(
    collector: Collector, pipeline: Any, send_to: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = 1
    answer.partial_success.error_message = "too old"
    collector.answers = [(200, {}, answer.SerializeToString())]
    send_to(collector.endpoint)
    one = pipeline(flush_interval_ms=60_000)
    layout = step_layout(one)
    for step in range(3):
        record_step(one, layout, step)
    one.flush(10)
    assert collector.attempts == 1
    (entry,) = ledger(tmp_path / "run")
    assert (entry["spans"], entry["rejected"]) == (3, 1)
    (said,) = warnings_of(caplog)
    assert "rejected 1 spans: too old" in said


def test_an_answer_that_is_no_protobuf_counts_as_accepted(
    collector: Collector, pipeline: Any, send_to: Any
) -> None:
    collector.answers = [(200, {"Content-Type": "text/html"}, b"<html>\xff")]
    send_to(collector.endpoint)
    one = pipeline()
    record_step(one, step_layout(one), 1)
    assert one.flush(10)


def test_a_slow_endpoint_does_not_hold_up_spool_or_flush(
    collector: Collector, pipeline: Any, send_to: Any, tmp_path: Path
) -> None:
    collector.delay_s = 3.0
    send_to(collector.endpoint)
    one = pipeline()
    layout = step_layout(one)
    began = time.monotonic()
    for step in range(100):
        record_step(one, layout, step)
    assert one.flush(0.5) is False
    assert time.monotonic() - began < 2.5
    assert len(spool_spans(tmp_path / "run")) == 100


def test_what_waits_for_the_network_is_bounded(
    pipeline: Any, send_to: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
    send_to(DEAD)
    one = pipeline(flush_interval_ms=60_000)
    layout = step_layout(one)
    for step in range(50):
        record_step(one, layout, step)
        one.drain()
    one.flush(5)
    (shipper,) = one._network._shippers
    assert shipper.pending <= 11
    assert shipper.not_sent + shipper.pending == 50
    assert len(spool_spans(tmp_path / "run")) == 50


def test_batches_keep_to_opentelemetrys_limit(
    collector: Collector, pipeline: Any, send_to: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    send_to(collector.endpoint)
    one = pipeline(flush_interval_ms=60_000)
    layout = step_layout(one)
    for step in range(10):
        record_step(one, layout, step)
    assert one.flush(10)
    sizes = [len(request.resource_spans[0].scope_spans[0].spans) for request in collector.requests]
    assert sizes == [4, 4, 2]


def test_without_spool_and_network_the_advice_says_so(
    pipeline: Any, send_to: Any, caplog: pytest.LogCaptureFixture
) -> None:
    send_to(DEAD)
    one = pipeline(spool=False)
    record_step(one, step_layout(one), 1)
    one.shutdown(5)
    (said,) = warnings_of(caplog)
    assert "replay" not in said
    assert str(_network._MAX_UNSENT) in said


# -- which exporter ------------------------------------------------------------------------


def test_console_and_otlp_together(collector: Collector, tmp_path: Path) -> None:
    done = run_python(
        program("step(7)"),
        OTEL_TRACES_EXPORTER="console, otlp",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint,
        OTEL_TF_RUN_DIR=str(tmp_path),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(collector.spans) == 1
    shown = json.loads(done.stdout)
    assert shown["name"] == "train_step"
    assert shown["attributes"]["tensorflow.global_step"] == 7
    assert len(ledger(tmp_path)) == 1


def test_console_alone_acknowledges_nothing(tmp_path: Path) -> None:
    done = run_python(program("step(7)"), OTEL_TRACES_EXPORTER="console", OTEL_TF_RUN_DIR=str(tmp_path))
    assert "train_step" in done.stdout
    assert ledger(tmp_path) == []


def test_an_unknown_exporter_is_said_by_name(
    pipeline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin_no_more")
    one = pipeline()
    record_step(one, step_layout(one), 7)
    assert one.flush(10)
    assert len(spool_spans(tmp_path / "run")) == 1
    (said,) = warnings_of(caplog)
    assert "OTEL_TRACES_EXPORTER=zipkin_no_more" in said


def test_an_unknown_protocol_falls_back_to_http(
    collector: Collector, pipeline: Any, send_to: Any, caplog: pytest.LogCaptureFixture
) -> None:
    send_to(collector.endpoint, "http/json")
    one = pipeline()
    record_step(one, step_layout(one), 7)
    assert one.flush(10)
    assert len(collector.spans) == 1
    (said,) = warnings_of(caplog)
    assert "OTEL_EXPORTER_OTLP_PROTOCOL='http/json'" in said


def test_an_exporter_whose_inside_is_unknown_is_used_as_published(
    collector: Collector, pipeline: Any, send_to: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from otel_tf.telemetry import _otlp

    monkeypatch.setattr(_otlp, "_SENDERS", ())
    send_to(collector.endpoint)
    one = pipeline()
    record_step(one, step_layout(one), 7)
    assert one.flush(10)
    assert len(collector.spans) == 1
    assert len(ledger(tmp_path / "run")) == 1


def test_official_exporters_do_not_spam_the_log(
    collector: Collector,
    pipeline: Any,
    send_to: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Even used as published, their line for every batch becomes our one line for the run."""
    from otel_tf.telemetry import _otlp

    monkeypatch.setattr(_otlp, "_SENDERS", ())
    collector.answers = [(401, {}, b"")] * 3
    send_to(collector.endpoint)
    one = pipeline()
    layout = step_layout(one)
    for step in range(3):
        record_step(one, layout, step)
        assert one.flush(10) is False
    (said,) = warnings_of(caplog)
    assert "Unauthorized" in said
    # The loggers are as before for everybody else.
    logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter").warning("yours")
    assert warnings_of(caplog)[-1] == "yours"


# -- exit ------------------------------------------------------------------------------------


def exit_seconds(endpoint: str, protocol: str, folder: Path, count: int = 2_000) -> tuple[float, str]:
    """Returns how long a process lives after its last span, and what it says."""
    code = program(f"[step(n) for n in range({count})]; print(time.time(), flush=True)")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={
            **os.environ,
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_TF_RUN_DIR": str(folder),
            "OTEL_TF_EXIT_TIMEOUT": "1000",
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return time.time() - float(done.stdout), done.stderr


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("kind", ["dead", "silent"])
def test_exit_does_not_wait_for_an_endpoint(kind: str, protocol: str, tmp_path: Path) -> None:
    """The limits are wide of what is measured: the exporters by themselves take 7 to 30 s."""
    with socket.socket() as silent:
        # Connections are accepted by the kernel, and nobody ever answers.
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        endpoint = DEAD if kind == "dead" else f"http://127.0.0.1:{silent.getsockname()[1]}"
        seconds, said = exit_seconds(endpoint, protocol, tmp_path)
    assert seconds < 5.0
    assert len(said.splitlines()) == 1
    assert "otel-tf replay" in said
    assert len(spool_spans(tmp_path)) == 2_000


def test_exit_delivers_what_was_just_recorded(collector: Collector, tmp_path: Path) -> None:
    _, said = exit_seconds(collector.endpoint, "http/protobuf", tmp_path, count=50)
    assert said == ""
    assert len(collector.spans) == 50
    assert sum(entry["spans"] for entry in ledger(tmp_path)) == 50
