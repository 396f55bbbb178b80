"""A program with a tracer provider of its own: its sampler, limits, processors and exporters see all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    AlwaysRecordSampler,
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)

from otel_tf import _guard, ids
from otel_tf.telemetry import SpanError, SpanKind, SpanLink
from tests.telemetry.support import (
    Collector,
    attributes_of,
    program,
    record_step,
    spool_lines,
    spool_spans,
    step_layout,
)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def provider_with(exporter: InMemorySpanExporter, **options: Any) -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False, **options)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def test_spans_go_through_it_with_our_ids(
    exporter: InMemorySpanExporter, pipeline: Any, tmp_path: Path
) -> None:
    provider = provider_with(exporter, resource=Resource.create({"service.name": "mnist", "team": "vision"}))
    one = pipeline(tracer_provider=provider)
    layout = one.layout("train_step", kind=SpanKind.SERVER, fields=("tensorflow.seq",), remote_parent=True)
    trace_id, span_id = ids.trace_id("r1", "step", 1), ids.span_id("r1", "step", 1, "worker:1")
    one.record(layout, trace_id, span_id, 77, 1_000, 3_000, (5,), links=[SpanLink(8, 9, {"a": 1})])
    assert one.flush(5)

    (span,) = exporter.get_finished_spans()
    assert span.name == "train_step"
    assert span.kind is trace.SpanKind.SERVER
    assert (span.context.trace_id, span.context.span_id) == (trace_id, span_id)
    assert (span.parent.trace_id, span.parent.span_id, span.parent.is_remote) == (trace_id, 77, True)
    assert (span.start_time, span.end_time) == (1_000, 3_000)
    assert dict(span.attributes) == {"tensorflow.seq": 5}
    assert (span.links[0].context.trace_id, dict(span.links[0].attributes)) == (8, {"a": 1})
    assert span.instrumentation_scope.name == "otel_tf"
    assert span.status.status_code is trace.StatusCode.UNSET

    resource = span.resource.attributes
    assert (resource["service.name"], resource["team"]) == ("mnist", "vision")
    assert resource["service.instance.id"] == "r1/local:0"
    assert resource["tensorflow.run.id"] == "r1"
    # The spool has the same.
    (line,) = spool_lines(tmp_path / "run")
    assert attributes_of(line["resourceSpans"][0]["resource"])["service.name"] == "mnist"
    assert [each["spanId"] for each in spool_spans(tmp_path / "run")] == [f"{span_id:016x}"]


def test_the_global_provider_is_found_and_never_replaced(
    exporter: InMemorySpanExporter, pipeline: Any, own_global_provider: None
) -> None:
    provider = provider_with(exporter)
    trace.set_tracer_provider(provider)
    one = pipeline()
    record_step(one, step_layout(one), 1)
    assert one.flush(5)
    assert len(exporter.get_finished_spans()) == 1
    assert trace.get_tracer_provider() is provider


def test_without_one_no_global_provider_is_set(pipeline: Any, own_global_provider: None) -> None:
    one = pipeline()
    record_step(one, step_layout(one), 1)
    assert one.flush(5)
    assert not isinstance(trace.get_tracer_provider(), TracerProvider)


def test_a_provider_that_comes_later_takes_over(
    exporter: InMemorySpanExporter, pipeline: Any, own_global_provider: None, tmp_path: Path
) -> None:
    one = pipeline()
    layout = step_layout(one)
    worker = step_layout(one, resource=one.task_resource("worker", 0, clock_domain="c"))
    record_step(one, layout, 1)
    assert one.flush(5)
    trace.set_tracer_provider(provider_with(exporter, resource=Resource.create({"service.name": "late"})))
    record_step(one, layout, 2)
    record_step(one, worker, 2)
    assert one.flush(5)
    assert [span.attributes["tensorflow.global_step"] for span in exporter.get_finished_spans()] == [2, 2]
    assert {span.resource.attributes["service.name"] for span in exporter.get_finished_spans()} == {"late"}
    assert len(spool_spans(tmp_path / "run")) == 3


def test_other_tasks_keep_their_own_resource(exporter: InMemorySpanExporter, pipeline: Any) -> None:
    provider = provider_with(exporter)
    one = pipeline(tracer_provider=provider)
    worker = one.task_resource("worker", 1, clock_domain="clock w")
    record_step(one, step_layout(one), 1)
    record_step(one, step_layout(one, resource=worker), 1)
    provider.get_tracer("theirs").start_span("theirs").end()
    assert one.flush(5)
    found = [
        (span.name, span.resource.attributes.get("tensorflow.clock.domain") == "clock w")
        for span in exporter.get_finished_spans()
    ]
    assert sorted(found) == [("theirs", False), ("train_step", False), ("train_step", True)]
    theirs = next(span for span in exporter.get_finished_spans() if span.name == "theirs")
    assert theirs.resource is provider.resource


def test_ids_of_the_programs_own_spans_are_still_random(
    exporter: InMemorySpanExporter, pipeline: Any
) -> None:
    provider = provider_with(exporter)
    one = pipeline(tracer_provider=provider)
    record_step(one, step_layout(one), 1)
    provider.get_tracer("otel_tf").start_span("theirs").end()
    assert one.flush(5)
    ours, theirs = sorted(exporter.get_finished_spans(), key=lambda span: span.name == "theirs")
    assert ours.context.span_id != theirs.context.span_id
    assert "tensorflow.run.id" not in theirs.resource.attributes


def test_errors_have_one_event_and_the_status(exporter: InMemorySpanExporter, pipeline: Any) -> None:
    one = pipeline(tracer_provider=provider_with(exporter))
    record_step(one, step_layout(one), 1, error=SpanError("ABORTED", "gone", "AbortedError", "Traceback"))
    assert one.flush(5)
    (span,) = exporter.get_finished_spans()
    assert (span.status.status_code, span.status.description) == (trace.StatusCode.ERROR, "gone")
    assert [event.name for event in span.events] == ["exception"]
    assert span.attributes["error.type"] == "ABORTED"


def test_its_processors_start_and_end_each_span(pipeline: Any, tmp_path: Path) -> None:
    class Tagging(SpanProcessor):
        def __init__(self) -> None:
            self.calls: list[str] = []

        def on_start(self, span: Span, parent_context: Context | None = None) -> None:
            self.calls.append("start")
            span.set_attribute("tag", "mine")
            # The parent and nothing else: no baggage of whichever thread hands the spans over.
            assert parent_context is not None
            assert len(parent_context) == 1

        def on_end(self, span: ReadableSpan) -> None:
            self.calls.append("end")

    tagging = Tagging()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(tagging)
    one = pipeline(tracer_provider=provider)
    record_step(one, step_layout(one), 1)
    record_step(one, step_layout(one), 2)
    assert one.flush(5)
    assert tagging.calls == ["start", "end"] * 2
    assert {attributes_of(span)["tag"] for span in spool_spans(tmp_path / "run")} == {"mine"}


def test_its_limits_hold(exporter: InMemorySpanExporter, pipeline: Any, tmp_path: Path) -> None:
    limits = SpanLimits(max_span_attributes=2, max_events=0, max_span_attribute_length=3)
    one = pipeline(tracer_provider=provider_with(exporter, span_limits=limits))
    layout = one.layout("s", fields=("a", "b", "c"))
    one.record(layout, 1, 2, 0, 1, 2, ("aaaaa", "bbbbb", "ccccc"), error=SpanError("X", "m", "E"))
    assert one.flush(5)
    (span,) = exporter.get_finished_spans()
    assert len(span.attributes) == 2
    assert span.dropped_attributes == 2
    assert span.dropped_events == 1
    (spooled,) = spool_spans(tmp_path / "run")
    assert spooled["droppedAttributesCount"] == 2
    assert spooled["droppedEventsCount"] == 1
    assert all(len(value) <= 3 for value in attributes_of(spooled).values())


def test_its_sampler_decides(exporter: InMemorySpanExporter, pipeline: Any, tmp_path: Path) -> None:
    one = pipeline(tracer_provider=provider_with(exporter, sampler=ParentBased(TraceIdRatioBased(0.5))))
    layout = step_layout(one)
    for step in range(200):
        record_step(one, layout, step)
    assert one.flush(20)
    kept = {span.attributes["tensorflow.global_step"] for span in exporter.get_finished_spans()}
    half = round(0.5 * (1 << 64))
    assert kept == {step for step in range(200) if ids.trace_id("r1", "step", step) & ((1 << 64) - 1) < half}
    spooled = {int(attributes_of(span)["tensorflow.global_step"]) for span in spool_spans(tmp_path / "run")}
    assert spooled == kept


def test_children_follow_the_decision_for_their_trace(exporter: InMemorySpanExporter, pipeline: Any) -> None:
    """The parent may be another process's: what matters is that the trace is kept whole or not at all."""
    one = pipeline(tracer_provider=provider_with(exporter, sampler=ParentBased(TraceIdRatioBased(0.5))))
    layout = one.layout("child", remote_parent=True)
    for step in range(100):
        trace_id = ids.trace_id("r1", "step", step)
        one.record(layout, trace_id, 2 * step + 1, 0, 1, 2, ())
        one.record(layout, trace_id, 2 * step + 2, 2 * step + 1, 1, 2, ())
    assert one.flush(20)
    per_trace: dict[int, int] = {}
    for span in exporter.get_finished_spans():
        per_trace[span.context.trace_id] = per_trace.get(span.context.trace_id, 0) + 1
    assert 20 < len(per_trace) < 80
    assert set(per_trace.values()) == {2}


def test_recorded_but_not_sampled_is_spooled_and_not_exported(
    exporter: InMemorySpanExporter, pipeline: Any, tmp_path: Path
) -> None:
    one = pipeline(tracer_provider=provider_with(exporter, sampler=AlwaysRecordSampler(ALWAYS_OFF)))
    record_step(one, step_layout(one), 1)
    assert one.flush(5)
    assert exporter.get_finished_spans() == ()
    assert len(spool_spans(tmp_path / "run")) == 1


def test_a_broken_record_takes_no_other_with_it(
    exporter: InMemorySpanExporter, pipeline: Any, tmp_path: Path
) -> None:
    _guard.strict(False)
    one = pipeline(tracer_provider=provider_with(exporter), flush_interval_ms=60_000)
    layout = step_layout(one)
    record_step(one, layout, 1)
    one.record(layout, 1, 2, 0, 1, 2, ("too few",))
    record_step(one, layout, 2)
    one.flush(5)
    assert [span.attributes["tensorflow.global_step"] for span in exporter.get_finished_spans()] == [1, 2]
    assert len(spool_spans(tmp_path / "run")) == 2


def test_the_ledger_says_who_took_the_spans(
    exporter: InMemorySpanExporter, pipeline: Any, tmp_path: Path
) -> None:
    one = pipeline(tracer_provider=provider_with(exporter))
    record_step(one, step_layout(one), 1)
    assert one.flush(5)
    (path,) = (tmp_path / "run").glob("*.sent")
    assert json.loads(path.read_text())["via"] == "provider"


def test_no_exporter_of_ours_is_set_up(
    exporter: InMemorySpanExporter, pipeline: Any, collector: Collector, send_to: Any
) -> None:
    send_to(collector.endpoint)
    one = pipeline(tracer_provider=provider_with(exporter))
    record_step(one, step_layout(one), 1)
    assert one.flush(5)
    assert len(exporter.get_finished_spans()) == 1
    assert collector.attempts == 0


def test_a_flush_that_hangs_in_a_processor_ends_in_time(pipeline: Any) -> None:
    release = threading.Event()

    class Hanging(SpanProcessor):
        def force_flush(self, timeout_millis: int = 30000) -> bool:
            return release.wait(30)

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Hanging())
    one = pipeline(tracer_provider=provider)
    record_step(one, step_layout(one), 1)
    assert one.flush(0.2) is False
    release.set()


@pytest.mark.parametrize("order", ["provider first", "pipeline first"])
def test_at_exit_the_providers_processors_get_everything(
    order: str, collector: Collector, tmp_path: Path
) -> None:
    make = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
"""
    steps = "step(0)\ntime.sleep(0.5)\n[step(n) for n in range(1, 20)]\n"
    code = make + program(steps) if order == "provider first" else program("") + make + steps
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
            "OTEL_TF_RUN_DIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    assert len(collector.spans) == len(spool_spans(tmp_path)) == 20


def test_a_batch_processors_flush_is_waited_for(exporter: InMemorySpanExporter, pipeline: Any) -> None:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=60_000))
    one = pipeline(tracer_provider=provider)
    record_step(one, step_layout(one), 1)
    assert one.flush(10)
    assert len(exporter.get_finished_spans()) == 1
    provider.shutdown()


# -- the environment's rules, with no provider of the program's -------------------------------


def spooled_steps(folder: Path) -> set[int]:
    return {int(attributes_of(span)["tensorflow.global_step"]) for span in spool_spans(folder)}


@pytest.mark.parametrize(
    ("name", "argument", "share"),
    [
        ("always_on", "", 1.0),
        ("always_off", "", 0.0),
        ("parentbased_always_on", "", 1.0),
        ("parentbased_always_off", "", 0.0),
        ("traceidratio", "0.25", 0.25),
        ("parentbased_traceidratio", "0.25", 0.25),
    ],
)
def test_the_environments_sampler(
    name: str,
    argument: str,
    share: float,
    pipeline: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    collector: Collector,
    send_to: Any,
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", name)
    if argument:
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
    send_to(collector.endpoint)
    one = pipeline()
    layout = step_layout(one)
    for step in range(100):
        record_step(one, layout, step)
    assert one.flush(20)
    bound = round(share * (1 << 64))
    kept = {step for step in range(100) if ids.trace_id("r1", "step", step) & ((1 << 64) - 1) < bound}
    assert spooled_steps(tmp_path / "run") == kept
    assert len(collector.spans) == len(kept)


class EveryThird(Sampler):
    """Looks at an attribute, as only a sampler of somebody's own would."""

    def should_sample(self, *arguments: Any, **named: Any) -> SamplingResult:
        attributes = arguments[4] if len(arguments) > 4 else named["attributes"]
        keep = attributes["tensorflow.global_step"] % 3 == 0
        return SamplingResult(Decision.RECORD_AND_SAMPLE if keep else Decision.DROP, attributes)

    def get_description(self) -> str:
        return "EveryThird"


def test_another_packages_sampler(pipeline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs a real distribution's metadata, as a package with such an entry point would have."""
    info = tmp_path / "site" / "third-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[opentelemetry_traces_sampler]\nevery_third = third_sampler:make\n"
    )
    (tmp_path / "site" / "third_sampler.py").write_text(
        f"from {__name__} import EveryThird\n\n\ndef make(argument):\n    return EveryThird()\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "every_third")
    one = pipeline()
    layout = step_layout(one)
    for step in range(10):
        record_step(one, layout, step)
    assert one.flush(5)
    assert spooled_steps(tmp_path / "run") == {0, 3, 6, 9}


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "2", 2),
        ("OTEL_ATTRIBUTE_COUNT_LIMIT", "3", 3),
        ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "1", 4),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "not a number", 4),
    ],
)
def test_the_environments_limits(
    variable: str,
    value: str,
    expected: int,
    pipeline: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    collector: Collector,
    send_to: Any,
) -> None:
    monkeypatch.setenv(variable, value)
    send_to(collector.endpoint)
    one = pipeline()
    record_step(one, step_layout(one), 1)
    assert one.flush(5)
    (span,) = spool_spans(tmp_path / "run")
    assert len(span["attributes"]) == len(collector.spans[0].attributes) == expected
    if "LENGTH" in variable:
        assert attributes_of(span)["tensorflow.worker"] == "l"
