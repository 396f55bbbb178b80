"""`otel-tf replay`, from real spools to real endpoints."""

from __future__ import annotations

import contextlib
import json
import math
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import TracerProvider

from otel_tf import _guard, config
from otel_tf.cli.main import main
from otel_tf.identity import identify
from otel_tf.telemetry import Pipeline, SpanError, SpanLink, _replay, start
from otel_tf.telemetry._jaeger_has import JaegerHas
from tests.telemetry import support
from tests.telemetry.support import DEAD, Collector, record_step, step_layout

Replay = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.setattr(_replay, "_FIRST_DELAY_S", 0.01)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with support.http_collector() as running:
        yield running


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


def training(run_dir: Path, first: int, last: int, provider: Any = None) -> None:
    """Records some steps, in one line of the spool each, as a process of its own would."""
    before = _guard.strict(True)
    settings = config.resolve(run_dir=run_dir, run_id="r1", flush_interval_ms=60_000)
    pipeline: Pipeline = start(settings, identify(settings), tracer_provider=provider)
    layout = step_layout(pipeline)
    for step in range(first, last):
        error = SpanError("ABORTED", "lost", "AbortedError", "Traceback") if step % 4 == 3 else None
        links = [SpanLink(1, 2, {"n": 1.5, "list": ("a", "b")})] if step % 4 == 2 else ()
        record_step(pipeline, layout, step, error=error, links=links)
        pipeline.flush(10)
    pipeline.shutdown(10)
    _guard.strict(before)


@pytest.fixture
def replay(capsys: pytest.CaptureFixture[str]) -> Replay:
    def run(*arguments: object) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = main(["replay", "--format", "json", *map(str, arguments)])
        return code, json.loads(capsys.readouterr().out)

    return run


def counts(found: dict[str, Any]) -> tuple[int, int, int]:
    return found["sent"], found["already_there"], found["failed"]


def steps_of(collector: Collector) -> list[int]:
    return sorted(
        attribute.value.int_value
        for span in collector.spans
        for attribute in span.attributes
        if attribute.key == "tensorflow.global_step"
    )


def test_all_is_sent_once(run_dir: Path, collector: Collector, replay: Replay) -> None:
    training(run_dir, 0, 10)
    code, found = replay(run_dir, "--endpoint", collector.endpoint)
    assert (code, counts(found)) == (0, (10, 0, 0))
    assert steps_of(collector) == list(range(10))
    code, found = replay(run_dir, "--endpoint", collector.endpoint)
    assert (code, counts(found)) == (0, (0, 10, 0))
    assert len(collector.spans) == 10


def test_that_all_was_sent_before_is_no_proof_that_it_is_there(
    run_dir: Path, collector: Collector, capsys: pytest.CaptureFixture[str]
) -> None:
    training(run_dir, 0, 3)
    for hinted in (False, True):
        assert main(["replay", str(run_dir), "--endpoint", collector.endpoint]) == 0
        assert ("--query" in capsys.readouterr().err) == hinted


def test_what_is_sent_is_what_the_job_would_have_sent(
    run_dir: Path, collector: Collector, replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
    training(run_dir, 0, 8)
    by_the_job = {span.span_id: span for span in collector.spans}
    resources = {str(each.resource) for request in collector.requests for each in request.resource_spans}
    collector.requests.clear()
    code, found = replay(run_dir, "--endpoint", collector.endpoint, "--all")
    assert (code, counts(found)) == (0, (8, 0, 0))
    assert {span.span_id: span for span in collector.spans} == by_the_job
    assert resources == {
        str(each.resource) for request in collector.requests for each in request.resource_spans
    }


def test_only_what_lacks_is_sent(
    run_dir: Path, collector: Collector, replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
    training(run_dir, 0, 6)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", DEAD)
    training(run_dir, 6, 10)
    assert steps_of(collector) == list(range(6))
    code, found = replay(run_dir, "--endpoint", f"{collector.endpoint}/v1/traces")
    assert (code, counts(found)) == (0, (4, 6, 0))
    assert steps_of(collector) == list(range(10))


def test_over_grpc(run_dir: Path, replay: Replay) -> None:
    training(run_dir, 0, 3)
    with support.grpc_collector() as collector:
        code, found = replay(run_dir, "--endpoint", collector.endpoint, "--protocol", "grpc")
        assert (code, counts(found)) == (0, (3, 0, 0))
        assert steps_of(collector) == [0, 1, 2]


def test_a_dead_endpoint_fails_and_loses_nothing(
    run_dir: Path, collector: Collector, replay: Replay, capsys: pytest.CaptureFixture[str]
) -> None:
    training(run_dir, 0, 3)
    assert main(["replay", str(run_dir), "--endpoint", DEAD]) == 1
    shown = capsys.readouterr()
    assert "0 spans sent, 0 already there, 3 failed" in shown.out
    assert "Connection refused" in shown.err
    assert counts(replay(run_dir, "--endpoint", collector.endpoint)[1]) == (3, 0, 0)


def test_a_busy_endpoint_is_tried_again(run_dir: Path, collector: Collector, replay: Replay) -> None:
    training(run_dir, 0, 3)
    collector.answers = [(503, {}, b""), (429, {"Retry-After": "0"}, b"")]
    code, found = replay(run_dir, "--endpoint", collector.endpoint)
    assert (code, counts(found), collector.attempts) == (0, (3, 0, 0), 3)


def test_a_refusal_counts_as_failed(run_dir: Path, collector: Collector, replay: Replay) -> None:
    training(run_dir, 0, 3)
    collector.answers = [(401, {}, b"")]
    code, found = replay(run_dir, "--endpoint", collector.endpoint)
    assert (code, counts(found), collector.attempts) == (1, (0, 0, 3), 1)
    code, found = replay(run_dir, "--endpoint", collector.endpoint)
    assert (code, counts(found)) == (0, (3, 0, 0))


def test_rejected_spans_count_as_failed_and_are_not_sent_again(
    run_dir: Path, collector: Collector, replay: Replay
) -> None:
    training(run_dir, 0, 3)
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = 1
    collector.answers = [(200, {}, answer.SerializeToString())]
    code, found = replay(run_dir, "--endpoint", collector.endpoint)
    assert (code, counts(found)) == (1, (2, 0, 1))
    code, found = replay(run_dir, "--endpoint", collector.endpoint)
    assert (code, counts(found)) == (0, (0, 3, 0))


def test_a_killed_process_left_a_truncated_line(
    run_dir: Path, collector: Collector, replay: Replay, capsys: pytest.CaptureFixture[str]
) -> None:
    training(run_dir, 0, 3)
    (path,) = run_dir.glob("*.traces.jsonl")
    path.write_bytes(path.read_bytes()[:-20])
    code, found = replay(run_dir, "--endpoint", collector.endpoint)
    assert (code, counts(found), found["unreadable_lines"]) == (0, (2, 0, 0), 1)
    assert main(["replay", str(run_dir), "--endpoint", collector.endpoint]) == 0
    assert f"{path}: byte" in capsys.readouterr().err


def test_lines_that_are_odd_or_damaged_take_no_others_with_them(
    run_dir: Path, collector: Collector, replay: Replay
) -> None:
    training(run_dir, 0, 5)
    (path,) = run_dir.glob("*.traces.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    lines[1] = lines[1].replace(
        '"attributes":[', '"attributes":[{"key":"loss","value":{"doubleValue":"NaN"}},'
    )
    lines[3] = lines[3].replace('"spanId":"', '"spanId":"x')
    path.write_text("".join(lines))
    code, found = replay(run_dir, "--endpoint", collector.endpoint)
    assert (code, counts(found), found["unreadable_lines"]) == (0, (4, 0, 0), 1)
    assert steps_of(collector) == [0, 1, 2, 4]
    losses = [each.value.double_value for span in collector.spans for each in span.attributes]
    assert any(map(math.isnan, losses))


@pytest.mark.parametrize("how", ["trace by trace", "at once", "another run"])
def test_only_the_spans_that_a_jaeger_lacks_of_a_line_are_sent(
    how: str,
    run_dir: Path,
    collector: Collector,
    replay: Replay,
    jaeger: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training(run_dir, 0, 4)
    (path,) = run_dir.glob("*.traces.jsonl")
    first, *others = (json.loads(line) for line in path.read_text().splitlines())
    for other in others:
        first["resourceSpans"] += other["resourceSpans"]
    path.write_text(compact(first))
    running = jaeger()
    known = run_dir.parent / "known.traces.jsonl"
    known.write_text(compact({"resourceSpans": first["resourceSpans"][1:3]}))
    assert counts(replay(known, "--endpoint", running.otlp_http)[1]) == (2, 0, 0)
    trace_ids = {span["traceId"] for span in support.spool_spans(run_dir)}
    support.until(lambda: len(in_jaeger(running.ui, trace_ids)) == 2)
    query = running.ui if how == "trace by trace" else f"{running.ui}?grpc={running.query_grpc}"
    if how == "another run":  # its first line is, and the line after it is not found with that one's run
        other = compact(others[0]).replace('"r1"', '"r0"').replace(*new_ids(others[0]))
        path.write_text(other + path.read_text())
    asked: list[str] = []
    ask = JaegerHas._ask
    monkeypatch.setattr(JaegerHas, "_ask", lambda self, trace: asked.append(trace) or ask(self, trace))
    code, found = replay(run_dir, "--endpoint", collector.endpoint, "--query", query)
    more = how == "another run"
    assert len(asked) == {"trace by trace": 4, "at once": 0, "another run": 4}[how]
    assert (code, counts(found)) == (0, (2 + more, 2, 0))
    assert steps_of(collector) == ([0, 1, 3] if more else [0, 3])


def compact(line: dict[str, Any]) -> str:
    """Returns a line as the spool writes it."""
    return json.dumps(line, separators=(",", ":")) + "\n"


def new_ids(line: dict[str, Any]) -> tuple[str, str]:
    """Returns what to replace so that the span of a line is another one."""
    (span,) = line["resourceSpans"][0]["scopeSpans"][0]["spans"]
    return span["spanId"], "f" * 16


def test_a_damaged_ledger_sends_rather_than_loses(
    run_dir: Path, collector: Collector, replay: Replay
) -> None:
    training(run_dir, 0, 2)
    replay(run_dir, "--endpoint", collector.endpoint)
    (ledger,) = run_dir.glob("*.sent")
    first, second = ledger.read_text().splitlines()
    ledger.write_text(f"{first}\n{second[:10]}\n")
    code, found = replay(run_dir, "--endpoint", collector.endpoint)
    assert (code, counts(found)) == (0, (1, 1, 0))


def test_spans_of_the_programs_own_provider(
    run_dir: Path, collector: Collector, replay: Replay, capsys: pytest.CaptureFixture[str]
) -> None:
    training(run_dir, 0, 2, provider=TracerProvider(shutdown_on_exit=False))
    assert counts(replay(run_dir, "--endpoint", collector.endpoint)[1]) == (0, 2, 0)
    assert main(["replay", str(run_dir), "--endpoint", collector.endpoint]) == 0
    assert "the program's own tracer provider took over 2" in capsys.readouterr().err
    assert counts(replay(run_dir, "--endpoint", collector.endpoint, "--all")[1]) == (2, 0, 0)


def test_one_file_of_a_run(run_dir: Path, collector: Collector, replay: Replay) -> None:
    training(run_dir, 0, 2)
    training(run_dir, 2, 5)
    first = min(run_dir.glob("*.traces.jsonl"), key=lambda path: path.stat().st_size)
    assert counts(replay(first, "--endpoint", collector.endpoint)[1]) == (2, 0, 0)


def test_many_lines_go_in_few_requests(run_dir: Path, collector: Collector, replay: Replay) -> None:
    training(run_dir, 0, 300)
    assert counts(replay(run_dir, "--endpoint", collector.endpoint)[1]) == (300, 0, 0)
    assert collector.attempts == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "no run directory"),
        (["empty"], "no spool in it"),
        (["run", "--endpoint", "ftp://x"], "--endpoint ftp://x"),
        (["run", "--endpoint", "http://"], "--endpoint http://"),
        (["run", "--endpoint", "http://x:port"], "--endpoint http://x:port"),
        (["run", "--query", DEAD], "no Jaeger there"),
    ],
)
def test_bad_usage_is_said_in_one_line(
    arguments: list[str],
    said: str,
    run_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    training(run_dir, 0, 1)
    (tmp_path / "empty").mkdir()
    assert main(["replay", str(tmp_path / arguments[0]), *arguments[1:]]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1
    assert said in shown.err


@pytest.mark.parametrize(
    ("arguments", "environ", "expected"),
    [
        ([], {}, ("http://localhost:4318/v1/traces", "http/protobuf")),
        (["--endpoint", "h:4318"], {}, ("http://h:4318/v1/traces", "http/protobuf")),
        (["--endpoint", "https://h/otlp/"], {}, ("https://h/otlp/v1/traces", "http/protobuf")),
        (["--endpoint", "http://h:4317"], {}, ("http://h:4317", "grpc")),
        (
            ["--endpoint", "h:4317", "--protocol", "http/protobuf"],
            {},
            ("http://h:4317/v1/traces", "http/protobuf"),
        ),
        ([], {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://e:1"}, ("http://e:1/v1/traces", "http/protobuf")),
        ([], {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://e:1/in"}, ("http://e:1/in", "http/protobuf")),
        ([], {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ("http://localhost:4317", "grpc")),
        (
            ["--endpoint", "http://h:1"],
            {
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://e:1/in",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc",
            },
            ("http://h:1", "grpc"),
        ),
    ],
)
def test_where_spans_go(arguments: list[str], environ: dict[str, str], expected: tuple[str, str]) -> None:
    from otel_tf.cli import replay as command
    from otel_tf.cli.main import build_parser

    assert command._destination(build_parser().parse_args(["replay", "RUN", *arguments]), environ) == expected


# -- a real Jaeger -------------------------------------------------------------------------


def in_jaeger(ui: str, trace_ids: set[str]) -> list[str]:
    """Returns the ids of all spans that Jaeger has of the traces, doubles included."""
    found = []
    for trace_id in trace_ids:
        with (
            contextlib.suppress(urllib.error.HTTPError),  # 404: it has none
            urllib.request.urlopen(f"{ui}/api/traces/{trace_id}?raw=true") as answer,
        ):
            (trace,) = json.load(answer)["data"]
            found += [span["spanID"] for span in trace["spans"]]
    return found


def test_a_jaeger_gets_each_span_once(run_dir: Path, jaeger: Any, replay: Replay) -> None:
    running = jaeger()
    training(run_dir, 0, 6)
    spans = support.spool_spans(run_dir)
    trace_ids = {span["traceId"] for span in spans}
    for expected in ((6, 0, 0), (0, 6, 0)):
        code, found = replay(run_dir, "--endpoint", running.otlp_http)
        assert (code, counts(found)) == (0, expected)
    support.until(lambda: len(in_jaeger(running.ui, trace_ids)) >= 6)
    assert sorted(in_jaeger(running.ui, trace_ids)) == sorted(span["spanId"] for span in spans)


def test_a_jaeger_that_forgot_is_asked(run_dir: Path, jaeger: Any, replay: Replay) -> None:
    first = jaeger()
    training(run_dir, 0, 4)
    assert counts(replay(run_dir, "--endpoint", first.otlp_http)[1]) == (4, 0, 0)
    second = jaeger()
    (path,) = run_dir.glob("*.traces.jsonl")
    half = run_dir.parent / f"half{''.join(path.suffixes[-2:])}"
    half.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    assert counts(replay(half, "--endpoint", second.otlp_http)[1]) == (2, 0, 0)
    trace_ids = {span["traceId"] for span in support.spool_spans(run_dir)}
    # Its batches take a moment to be stored.
    support.until(lambda: len(in_jaeger(second.ui, trace_ids)) == 2)
    # The ledger speaks of the first Jaeger; the second is asked.
    code, found = replay(run_dir, "--endpoint", second.otlp_grpc, "--protocol", "grpc", "--query", second.ui)
    assert (code, counts(found)) == (0, (2, 2, 0))
    support.until(lambda: len(in_jaeger(second.ui, trace_ids)) >= 4)
    assert len(in_jaeger(second.ui, trace_ids)) == 4


def test_an_address_that_is_no_jaeger_is_said(
    run_dir: Path, jaeger: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    training(run_dir, 0, 1)
    running = jaeger()
    wrong = f"{running.ui}/search"
    assert main(["replay", str(run_dir), "--endpoint", running.otlp_http, "--query", wrong]) == 2
    assert "is this Jaeger's query address?" in capsys.readouterr().err
