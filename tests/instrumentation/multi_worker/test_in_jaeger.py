"""Synchronous workers in a real Jaeger, one of them slow and its clock behind: raw, and in logical order."""

from __future__ import annotations

import json
from collections import Counter
from itertools import accumulate
from typing import Any

import pytest

from otel_tf import semconv
from otel_tf.correlator import Result, correlate, sinks
from otel_tf.demo.clocks import FalseClock, false_clocks
from otel_tf.jaeger import Jaeger
from tests.instrumentation.multi_worker.workers import run
from tests.jaeger_ui import critical_path, originals_in_order, process_of, rows_of, tags_of, traces_of
from tests.spool import SpooledSpan, spans

STEPS = 120
CHIEF, SLOW, SLOW_MS = "worker:0", "worker:1", 6.0
#: Less than a step, so that the spans of one step still overlap as they are recorded.
BEHIND_S = -0.004
SERVICE, PROBE = "sync-job", semconv.SPAN_CLOCK_PROBE
#: Of the steps: what else runs on a machine delays the other worker now and then.
MOST = 0.9


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory, module_jaeger: Jaeger) -> list[SpooledSpan]:
    """What the workers recorded, all of which they sent to Jaeger as well."""
    library = false_clocks()
    if library.library is None:
        pytest.skip(f"platform: {library.problem}")
    folder = tmp_path_factory.mktemp("job")
    arguments = ("--steps", str(STEPS), "--slow-worker", "1", "--slow-ms", str(SLOW_MS))
    workers = run(
        folder,
        arguments,
        arguments,
        clocks=(FalseClock(0.0, 0.0), FalseClock(BEHIND_S, 0.0)),
        library=library,
        OTEL_TF_RUN_DIR=str(folder / "run"),
        OTEL_TRACES_EXPORTER="otlp",
        OTEL_EXPORTER_OTLP_ENDPOINT=module_jaeger.otlp_http,
        OTEL_SERVICE_NAME=SERVICE,
    )
    assert [worker.code for worker in workers] == [0, 0], [worker.stderr[-2000:] for worker in workers]
    return spans(folder / "run")


@pytest.fixture(scope="module")
def recorded(job: list[SpooledSpan], module_jaeger: Jaeger) -> list[dict[str, Any]]:
    """The traces as the workers sent them."""
    return traces_of(module_jaeger, SERVICE, len({span.trace_id for span in job}))


@pytest.fixture(scope="module")
def corrected(recorded: list[dict[str, Any]], module_jaeger: Jaeger) -> Result:
    """The run as it is in Jaeger, correlated and written back."""
    result = correlate(f"jaeger+{module_jaeger.ui}?service={SERVICE}&grpc={module_jaeger.query_grpc}")
    sinks.write(result, f"jaeger={module_jaeger.otlp_http}", print)
    return result


@pytest.fixture(scope="module")
def logical(corrected: Result, module_jaeger: Jaeger) -> list[dict[str, Any]]:
    shown = {
        row["trace_id"]
        for row in corrected.spans.to_pylist()
        if row["worker"] == SLOW and row["name"] != PROBE
    }
    found = traces_of(module_jaeger, f"{SERVICE}{semconv.LOGICAL_SERVICE_SUFFIX} {SLOW}", len(shown))
    # The other is that of the run itself: its tracings.
    return [trace for trace in found if rows_of(trace)[0][1]["operationName"] == semconv.SPAN_STEP]


def steps_of(traces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the traces of steps in which both workers have a collective."""
    return [
        trace
        for trace in traces
        if len({s["processID"] for s in trace["spans"] if s["operationName"] == semconv.SPAN_COLLECTIVE}) == 2
    ]


def on_the_line(trace: dict[str, Any]) -> str:
    """Returns the worker through whose step the critical path runs: the one that everybody waited for."""
    steps = [span for span in critical_path(trace) if span["operationName"] == semconv.SPAN_TRAIN_STEP]
    return str(tags_of(steps[0])[semconv.WORKER])


def test_what_the_clocks_say_puts_the_blame_on_the_wrong_worker(recorded: list[dict[str, Any]]) -> None:
    blamed = Counter(map(on_the_line, steps_of(recorded)))
    assert blamed.total() >= STEPS
    assert blamed[CHIEF] > MOST * blamed.total()


def test_corrected_the_line_runs_through_the_slow_one(logical: list[dict[str, Any]]) -> None:
    blamed = Counter(map(on_the_line, filter(undecided, steps_of(logical))))
    # What else runs on this machine makes the chief leave some steps later than the bars can explain.
    assert blamed.total() > STEPS / 3
    assert blamed[SLOW] > MOST * blamed.total()


def undecided(trace: dict[str, Any]) -> bool:
    """Returns whether the chief's step ends no later than the other's, as far as the error bars tell."""
    end_us, bar_us = {}, 0.0
    for span in trace["spans"]:
        if span["operationName"] == semconv.SPAN_TRAIN_STEP:
            tags = tags_of(span)
            end_us[tags[semconv.WORKER]] = span["startTime"] + span["duration"]
            bar_us += tags[semconv.LOGICAL_ERROR_NS] / 1000
    return end_us[CHIEF] - end_us[SLOW] <= bar_us


def test_rows_are_in_logical_order(job: list[SpooledSpan], logical: list[dict[str, Any]]) -> None:
    shown = [original for trace in logical for original in originals_in_order(trace)]
    of_steps = {span.trace_id for span in job if span.name == semconv.SPAN_STEP}
    assert sorted(shown) == sorted(span.span_id for span in job if span.trace_id in of_steps)
    services = {process_of(trace, span)["service"] for trace in logical for span in trace["spans"]}
    assert services == {f"{SERVICE}{semconv.LOGICAL_SERVICE_SUFFIX} {worker}" for worker in (SLOW, CHIEF)}


@pytest.mark.usefixtures("logical")
def test_read_back_and_correlated_again_nothing_changes(corrected: Result, module_jaeger: Jaeger) -> None:
    services = "".join(
        f"&service={SERVICE}{semconv.LOGICAL_SERVICE_SUFFIX}%20{worker}" for worker in (SLOW, CHIEF)
    )
    again = correlate(f"jaeger+{module_jaeger.ui}?grpc={module_jaeger.query_grpc}{services}")
    assert (again.report["violations"], again.report["domains"]) == (0, 1)
    assert {row["shift_ns"] for row in again.spans.to_pylist()} == {0}
    # Jaeger's interface knows whole microseconds: only spans closer than a few may have changed places. A
    # root encloses what all workers did, and may so begin before the chief did.
    start_ns = {row["span_id"]: row["corrected_start_ns"] for row in corrected.spans.to_pylist()}
    rows = sorted(again.spans.to_pylist(), key=lambda row: row["order"])
    assert len(rows) == len([row for row in corrected.spans.to_pylist() if row["name"] != PROBE])
    starts = [start_ns[original(row)] for row in rows if row["name"] != semconv.SPAN_STEP]
    assert max(latest - start for latest, start in zip(accumulate(starts, max), starts, strict=True)) < 5_000


def original(row: dict[str, Any]) -> str:
    """Returns the id of the recorded span that a logical one was made of."""
    return str(json.loads(row["attributes"])[semconv.LOGICAL_ORIGINAL_SPAN])
