"""Log records on their way: into the spool, and over OTLP where the environment asks for it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.logs.v1.logs_service_pb2_grpc import (
    LogsServiceServicer,
    add_LogsServiceServicer_to_server,
)

from otel_tf.telemetry import LogRecord
from tests.telemetry.support import DEAD, attributes_of, http_collector, program, run_python, spool_lines

LOGS = ".logs.jsonl"
RECORD = LogRecord(
    1_796_000_000_000_000_001,
    1_796_000_000_000_000_002,
    17,
    "ERROR",
    'it "broke"\n√',
    "my.log",
    {"tensorflow.seq": 5, "code.line.number": 7, "ratio": 0.5, "ok": True},
    0xAB,
    0xCD,
)


def same(record: LogRecord) -> LogRecord:
    return record


@contextlib.contextmanager
def receiver(protocol: str) -> Iterator[tuple[str, list[ExportLogsServiceRequest]]]:
    """Yields the address of an OTLP endpoint for logs, and what it has received."""
    if protocol != "grpc":
        with http_collector(ExportLogsServiceRequest) as running:
            yield running.endpoint, running.requests  # type: ignore[misc]
        return
    requests: list[ExportLogsServiceRequest] = []

    class Service(LogsServiceServicer):
        def Export(self, request: Any, context: Any) -> ExportLogsServiceResponse:  # noqa: N802
            requests.append(request)
            return ExportLogsServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(2))
    add_LogsServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}", requests
    finally:
        server.stop(None).wait()


def records(folder: Path) -> list[dict[str, Any]]:
    return [
        {**record, "scope": scope["scope"], "resource": attributes_of(of["resource"])}
        for line in spool_lines(folder, LOGS)
        for of in line["resourceLogs"]
        for scope in of["scopeLogs"]
        for record in scope["logRecords"]
    ]


def test_the_spool_has_it_as_otlp_has_it(pipeline: Any, tmp_path: Path) -> None:
    one = pipeline()
    one.log(same, RECORD)
    one.log(same, RECORD._replace(scope="", trace_id=0, span_id=0, severity_text=""))
    assert one.flush(5)
    first, second = records(tmp_path / "run")
    assert first["timeUnixNano"] == "1796000000000000001"
    assert first["observedTimeUnixNano"] == "1796000000000000002"
    assert (first["severityNumber"], first["severityText"]) == (17, "ERROR")
    assert first["body"] == {"stringValue": 'it "broke"\n√'}
    assert (first["traceId"], first["spanId"]) == (f"{0xAB:032x}", f"{0xCD:016x}")
    assert attributes_of(first) == {"tensorflow.seq": "5", "code.line.number": "7", "ratio": 0.5, "ok": True}
    assert first["scope"] == {"name": "my.log"}
    assert first["resource"]["service.instance.id"] == "r1/local:0"
    assert second["scope"]["name"] == "otel_tf"
    assert "traceId" not in second
    assert "severityText" not in second


def test_the_line_is_what_protobuf_makes_of_it(pipeline: Any, tmp_path: Path) -> None:
    from google.protobuf import json_format

    one = pipeline()
    one.log(same, RECORD._replace(trace_id=0, span_id=0))
    assert one.flush(5)
    (line,) = spool_lines(tmp_path / "run", LOGS)
    request = json_format.ParseDict(line, ExportLogsServiceRequest())
    back = json_format.MessageToDict(request)["resourceLogs"][0]["scopeLogs"][0]
    assert back["logRecords"][0]["body"] == {"stringValue": 'it "broke"\n√'}


def test_a_record_that_is_broken_does_not_take_others_with_it(
    pipeline: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    from otel_tf import _guard

    one = pipeline(flush_interval_ms=60_000)
    monkeypatch.setattr(_guard, "_strict", False)
    one.log(lambda facts: facts.nothing, RECORD)
    one.log(same, RECORD)
    assert one.flush(5)
    assert len(records(tmp_path / "run")) == 1
    assert one.logs.dropped == 1


def test_nothing_is_sent_unless_it_is_asked_for(pipeline: Any, collector: Any, send_to: Any) -> None:
    send_to(collector.endpoint)
    one = pipeline()
    one.log(same, RECORD)
    assert one.flush(5)
    assert collector.attempts == 0


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_over_otlp(pipeline: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, protocol: str) -> None:
    with receiver(protocol) as (endpoint, requests):
        monkeypatch.setenv("OTEL_LOGS_EXPORTER", "otlp")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
        one = pipeline()
        one.log(same, RECORD)
        assert one.flush(10)
    (request,) = requests
    (of,) = request.resource_logs
    (scope,) = of.scope_logs
    (record,) = scope.log_records
    assert scope.scope.name == "my.log"
    assert record.body.string_value == 'it "broke"\n√'
    assert record.trace_id.hex() == f"{0xAB:032x}"
    assert record.span_id.hex() == f"{0xCD:016x}"
    assert record.severity_number == 17
    assert {pair.key for pair in record.attributes} == set(RECORD.attributes)
    assert any(pair.key == "tensorflow.run.id" for pair in of.resource.attributes)


def test_an_endpoint_that_is_dead_costs_nothing_but_a_line(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_LOGS_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", DEAD)
    one = pipeline()
    one.log(same, RECORD)
    assert not one.flush(5)
    one.shutdown(1)
    assert len(records(tmp_path / "run")) == 1
    (said,) = [record.getMessage() for record in caplog.records if "cannot be sent" in record.getMessage()]
    assert said.startswith("log records cannot be sent to http://127.0.0.1:9/v1/logs")


def test_console_takes_them_as_the_sdk_has_them(tmp_path: Path) -> None:
    done = run_python(
        program(
            """
            from otel_tf.telemetry import LogRecord
            pipeline.log(lambda record: record, LogRecord(1, 2, 9, "INFO", "hello", "x", {"a": 1}))
            """
        ),
        OTEL_LOGS_EXPORTER="console",
        OTEL_TRACES_EXPORTER="none",
        OTEL_TF_RUN_DIR=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["body"] == "hello"


def test_what_a_process_that_was_told_to_end_at_once_had_urgently_said(tmp_path: Path) -> None:
    done = run_python(
        program(
            """
            from otel_tf.telemetry import LogRecord
            pipeline.log(lambda record: record, LogRecord(1, 2, 17, "ERROR", "last", "x", {}), urgent=True)
            time.sleep(0.1)
            os._exit(3)
            """
        ),
        OTEL_TF_FLUSH_INTERVAL="60000",
        OTEL_TRACES_EXPORTER="none",
        OTEL_TF_RUN_DIR=str(tmp_path),
    )
    assert done.returncode == 3, done.stderr
    assert [record["body"]["stringValue"] for record in records(tmp_path)] == ["last"]


def test_a_forks_child_has_files_and_records_of_its_own(tmp_path: Path) -> None:
    done = run_python(
        program(
            """
            import warnings
            from otel_tf.telemetry import LogRecord
            def say(text):
                pipeline.log(lambda record: record, LogRecord(1, 2, 9, "INFO", text, "x", {}))
            say("parent")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                child = os.fork()
            if not child:
                say("child")
                pipeline.flush(5)
                os._exit(0)
            os.waitpid(child, 0)
            """
        ),
        OTEL_TRACES_EXPORTER="none",
        OTEL_TF_RUN_DIR=str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    bodies = {
        path.name: [
            json.loads(line)["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]["body"]["stringValue"]
        ]
        for path in tmp_path.glob(f"*{LOGS}")
        for line in path.read_text().splitlines()
    }
    assert sorted(bodies.values()) == [["child"], ["parent"]]
