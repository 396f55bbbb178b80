"""`otel-tf demo` as a user runs it: a real cluster, a real Jaeger, a real kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from otel_tf import semconv
from otel_tf.correlator import correlate
from otel_tf.jaeger import Jaeger
from tests.spool import spans

STEPS = 300
DEMO_TIMEOUT_S = 200


def demo(folder: Path, *arguments: str) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "otel_tf", "demo", "--format", "json", "--steps", str(STEPS)),
            *("--run-dir", str(folder), *arguments),
        ],
        env=environment | {"OTEL_TF_TESTING": "true", "OTEL_TF_RUN_ID": "demo-test"},
        capture_output=True,
        text=True,
        timeout=DEMO_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def ask(jaeger: Jaeger, **query: Any) -> list[dict[str, Any]]:
    query |= {"limit": 10_000, "start": 0, "end": 4 * 10**15, "raw": "true"}
    with urllib.request.urlopen(
        f"{jaeger.ui}/api/traces?{urllib.parse.urlencode(query)}", timeout=60
    ) as answer:
        traces: list[dict[str, Any]] = json.load(answer)["data"]
        return traces


def tags(span: dict[str, Any]) -> dict[str, Any]:
    return {tag["key"]: tag["value"] for tag in span["tags"]}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, module_jaeger: Jaeger) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("demo")
    return folder, demo(folder, "--jaeger", module_jaeger.otlp_http)


def test_what_it_prints(run: tuple[Path, dict[str, Any]]) -> None:
    folder, found = run
    assert found["accuracy"] > 0.9
    assert found["run_dir"] == str(folder)
    assert found["run_id"] == "demo-test"
    assert sum(found["steps"].values()) == found["closures"] == STEPS
    assert set(found["steps"]) == set(found["staleness"]) == {"worker:0", "worker:1"}
    assert found["steps"]["worker:1"] < found["steps"]["worker:0"], "worker:1 is the one slowed"
    assert found["retries"] == 0
    assert found["violations"] == 0
    assert found["spans"] == len(spans(folder))
    if found["false_clocks"]:
        assert found["wall_clock_inversions"] > STEPS / 2


def test_every_step_is_in_jaeger(run: tuple[Path, dict[str, Any]], module_jaeger: Jaeger) -> None:
    raw = [span for trace in ask(module_jaeger, service="otel-tf-demo") for span in trace["spans"]]
    steps = [tags(span) for span in raw if span["operationName"] == "train_step"]
    assert sorted(step["tensorflow.global_step"] for step in steps) == list(range(1, STEPS + 1))
    assert {step["tensorflow.worker"] for step in steps} == {"worker:0", "worker:1"}
    assert len(raw) == len(spans(run[0]))


def test_found_by_its_step(run: tuple[Path, dict[str, Any]], module_jaeger: Jaeger) -> None:
    (trace,) = ask(module_jaeger, service="otel-tf-demo", tags='{"tensorflow.global_step":"7"}')
    assert {span["operationName"] for span in trace["spans"]} == {"closure", "dispatch", "train_step"}


def test_same_order_from_jaeger_as_from_the_run_directory(
    run: tuple[Path, dict[str, Any]], module_jaeger: Jaeger
) -> None:
    there = correlate(f"jaeger+{module_jaeger.ui}?run=demo-test")
    here = correlate(str(run[0]))
    assert there.report["violations"] == here.report["violations"] == 0
    assert there.report["spans"] == here.report["spans"]
    assert there.report["steps"] == here.report["steps"]
    assert there.report["wall_clock_inversions"] == here.report["wall_clock_inversions"]


def test_logical_traces_are_in_step_order(run: tuple[Path, dict[str, Any]], module_jaeger: Jaeger) -> None:
    traces = {
        trace["traceID"]: trace
        for worker in ("worker:0", "worker:1")
        for trace in ask(module_jaeger, service=f"otel-tf-demo{semconv.LOGICAL_SERVICE_SUFFIX} {worker}")
    }
    rows = [
        span for trace in traces.values() for span in trace["spans"] if span["operationName"] == "train_step"
    ]
    # As the UI sorts: by start time in whole microseconds.
    rows.sort(key=lambda span: span["startTime"])
    order = [tags(span)[semconv.LOGICAL_ORDER] for span in rows]
    assert len(rows) == STEPS
    assert order == sorted(order)
    for worker in ("worker:0", "worker:1"):
        mine = [
            tags(span)["tensorflow.global_step"] for span in rows if tags(span)["tensorflow.worker"] == worker
        ]
        assert mine == sorted(mine), "a worker's steps are shown in step order"
    originals = {tags(span)[semconv.LOGICAL_ORIGINAL_SPAN] for span in rows}
    assert originals == {span.span_id for span in spans(run[0], "train_step")}


def test_killed_worker(tmp_path: Path) -> None:
    found = demo(tmp_path, "--jaeger", "none", "--kill-worker")
    assert found["retries"] >= 1
    assert found["violations"] == 0
    recorded = spans(tmp_path)
    closures = {span.span_id: span for span in recorded if span.name == "closure"}
    assert len(closures) == STEPS
    retried = [span for span in closures.values() if span.attributes["tensorflow.closure.attempts"] == 2]
    assert retried
    for closure in retried:
        attempts = [s for s in recorded if s.name == "dispatch" and s.parent_id == closure.span_id]
        attempts.sort(key=lambda span: span.attributes["tensorflow.closure.attempt"])
        first, second = attempts
        assert first.status["code"] == 2
        assert first.attributes["error.type"] == "UNAVAILABLE"
        assert second.attributes["tensorflow.closure.duplicate_effect_possible"] is True
        assert "code" not in closure.status
    # Whatever the killed worker had not handed over has the coordinator's times, and says so.
    steps = [span for span in recorded if span.name == "train_step"]
    sources = {span.attributes["tensorflow.time.source"] for span in steps}
    assert sources == {"worker", "coordinator"}
    coordinators = [s for s in steps if s.attributes["tensorflow.time.source"] == "coordinator"]
    assert {span.attributes["tensorflow.worker"] for span in coordinators} == {"worker:1"}
    dispatches = {span.span_id for span in recorded if span.name == "dispatch"}
    assert {step.parent_id for step in steps} == dispatches, "every attempt has its step"


def test_nobody_listens(tmp_path: Path) -> None:
    found = demo(tmp_path, "--jaeger", "http://127.0.0.1:9")
    assert found["accuracy"] > 0.9
    assert found["closures"] == STEPS
    log = (tmp_path / "logs" / "chief-0.log").read_text()
    complaints = [line for line in log.splitlines() if "127.0.0.1:9" in line]
    assert len(complaints) == 1, log
    assert "otel-tf replay" in complaints[0]


def test_bad_usage() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "otel_tf", "demo", "--workers", "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "otel-tf: --workers and --steps must be at least 1\n"
