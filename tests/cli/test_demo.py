"""`otel-tf demo` as a user runs it: a real cluster, a real Jaeger, a real kill."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otel_tf import semconv
from otel_tf.correlator import correlate
from otel_tf.demo.answer import print_table
from otel_tf.demo.viewer import Viewer
from otel_tf.jaeger import Jaeger
from tests.jaeger_ui import EVER, ask, originals_in_order, parent_of, process_of, tags_of
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


def recorded(jaeger: Jaeger, **query: Any) -> list[dict[str, Any]]:
    """Returns the traces that the job sent, as they are stored."""
    traces: list[dict[str, Any]] = ask(
        jaeger, "/api/traces", service="otel-tf-demo", limit=10_000, raw="true", **EVER, **query
    )
    return traces


def logical_services(jaeger: Jaeger) -> list[str]:
    prefix = f"otel-tf-demo{semconv.LOGICAL_SERVICE_SUFFIX}"
    return [name for name in ask(jaeger, "/api/services") if name.startswith(prefix)]


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
    raw = [span for trace in recorded(module_jaeger) for span in trace["spans"]]
    steps = [tags_of(span) for span in raw if span["operationName"] == "train_step"]
    assert sorted(step["tensorflow.global_step"] for step in steps) == list(range(1, STEPS + 1))
    assert {step["tensorflow.worker"] for step in steps} == {"worker:0", "worker:1"}
    assert len(raw) == len(spans(run[0]))


def test_found_by_its_step(run: tuple[Path, dict[str, Any]], module_jaeger: Jaeger) -> None:
    (trace,) = recorded(module_jaeger, tags='{"tensorflow.global_step":"7"}')
    assert {span["operationName"] for span in trace["spans"]} == {"closure", "dispatch", "train_step"}


def test_the_addresses_it_prints_show_a_step(
    run: tuple[Path, dict[str, Any]], module_jaeger: Jaeger, capsys: pytest.CaptureFixture[str]
) -> None:
    viewer = Viewer("", module_jaeger.otlp_http, module_jaeger.ui, module_jaeger.query_grpc, has_pages=False)
    print_table(run[1], viewer, "otel-tf-demo")
    printed = capsys.readouterr().out
    as_recorded, in_order = re.findall(r"http\S+api/traces\S+", printed)
    step = run[1]["example"]["step"]
    for address, expected in ((as_recorded, 3), (in_order, STEPS)):
        with urllib.request.urlopen(address, timeout=30) as answer:
            (trace,) = json.load(answer)["data"]
        assert len(trace["spans"]) >= expected
        assert step in {tags_of(span).get("tensorflow.global_step") for span in trace["spans"]}
    (source,) = re.findall(r"otel-tf correlate '(jaeger\S+)'", printed)
    assert correlate(source).report["run_id"] == "demo-test"


@pytest.mark.parametrize("has_pages", [True, False])
def test_what_there_is_to_do_at_the_end(run: tuple[Path, dict[str, Any]], has_pages: bool) -> None:
    step, worker = run[1]["example"]["step"], run[1]["example"]["worker"]

    def printed(viewer: Viewer) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            print_table(run[1], viewer, "mine")
        return out.getvalue()

    none = printed(Viewer("none"))
    assert "--to jaeger=http://localhost:4318" in none
    given = printed(Viewer("given", "http://j:4318"))
    assert f"Service mine.logical {worker}" in given
    assert f"Service mine, Tags tensorflow.global_step={step}" in given
    own = printed(Viewer("own", "http://j:4318", "http://j:16686", has_pages=has_pages))
    assert ("has no web interface" in own) == (not has_pages)
    assert ("http://j:16686/search?service=mine&tags=" in own) == has_pages
    assert "'jaeger+http://j:16686?run=demo-test'" in own


@pytest.mark.parametrize("grpc", ["query_grpc", None])
def test_same_order_from_jaeger_as_from_the_run_directory(
    run: tuple[Path, dict[str, Any]], module_jaeger: Jaeger, grpc: str | None
) -> None:
    by = getattr(module_jaeger, grpc) if grpc else "none"
    there = correlate(f"jaeger+{module_jaeger.ui}?run=demo-test&grpc={by}")
    here = correlate(str(run[0]))
    assert there.report["violations"] == here.report["violations"] == 0
    assert there.report["spans"] == here.report["spans"]
    assert there.report["steps"] == here.report["steps"]
    assert there.report["wall_clock_inversions"] == here.report["wall_clock_inversions"]
    assert there.report["missing"] == {"parents": 0, "closures": 0, "sequence": 0}
    assert there.spans["span_id"].to_pylist() == here.spans["span_id"].to_pylist()
    # The run directory also has snapshots of the clocks.
    for name in ("corrected_start_ns", "corrected_end_ns"):
        assert np.abs(there.spans[name].to_numpy() - here.spans[name].to_numpy()).max() < 1000


@pytest.fixture(scope="module")
def logical(run: tuple[Path, dict[str, Any]], module_jaeger: Jaeger) -> list[dict[str, Any]]:
    """The traces that were written back, as the user interface gets them."""
    found = {
        trace["traceID"]: trace
        for service in logical_services(module_jaeger)
        for trace in ask(module_jaeger, "/api/traces", service=service, limit=10_000, **EVER)
    }
    return list(found.values())


def test_every_row_of_every_logical_trace_is_in_order(
    run: tuple[Path, dict[str, Any]], logical: list[dict[str, Any]]
) -> None:
    shown = [original for trace in logical for original in originals_in_order(trace)]
    expected = [span.span_id for span in spans(run[0]) if span.name != semconv.SPAN_CLOCK_PROBE]
    assert sorted(shown) == sorted(expected)


def test_children_lie_inside_their_parents(logical: list[dict[str, Any]]) -> None:
    checked = 0
    for trace in logical:
        by_id = {span["spanID"]: span for span in trace["spans"]}
        for span in trace["spans"]:
            parent = by_id.get(parent_of(span) or "")
            if parent is not None:
                assert parent["startTime"] <= span["startTime"]
                assert span["startTime"] + span["duration"] <= parent["startTime"] + parent["duration"]
                checked += 1
    assert checked >= 3 * STEPS


def test_steps_are_in_step_order_within_a_worker(logical: list[dict[str, Any]]) -> None:
    steps = [
        (span["startTime"], tags_of(span), process_of(trace, span)["service"])
        for trace in logical
        for span in trace["spans"]
        if span["operationName"] == "train_step"
    ]
    steps.sort(key=lambda step: step[0])
    assert len(steps) == STEPS
    orders = [tags[semconv.LOGICAL_ORDER] for _, tags, _ in steps]
    assert orders == sorted(orders)
    for worker in ("worker:0", "worker:1"):
        mine = [tags for _, tags, service in steps if service == f"otel-tf-demo.logical {worker}"]
        assert {tags["tensorflow.worker"] for tags in mine} == {worker}
        numbers = [tags["tensorflow.global_step"] for tags in mine]
        assert numbers == sorted(numbers)


def test_what_a_row_was_made_of_is_there(module_jaeger: Jaeger, logical: list[dict[str, Any]]) -> None:
    there = {
        trace["traceID"].rjust(32, "0"): {span["spanID"] for span in trace["spans"]}
        for trace in recorded(module_jaeger)
    }
    rows = [tags_of(span) for trace in logical for span in trace["spans"]]
    originals = [
        (tags[semconv.LOGICAL_ORIGINAL_TRACE], tags[semconv.LOGICAL_ORIGINAL_SPAN])
        for tags in rows
        if semconv.LOGICAL_ORIGINAL_SPAN in tags
    ]
    assert len(originals) >= 3 * STEPS
    assert [pair for pair in originals if pair[1] not in there.get(pair[0], ())] == []
    # As the link in the user interface asks for it.
    trace_id, span_id = originals[0]
    (trace,) = ask(module_jaeger, f"/api/traces/{trace_id}")
    assert span_id in {span["spanID"] for span in trace["spans"]}


def test_what_was_written_back_is_not_corrected_again(
    module_jaeger: Jaeger, logical: list[dict[str, Any]]
) -> None:
    services = "".join(f"&service={urllib.parse.quote(name)}" for name in logical_services(module_jaeger))
    again = correlate(f"jaeger+{module_jaeger.ui}?grpc={module_jaeger.query_grpc}{services}")
    assert again.report["violations"] == again.report["wall_clock_inversions"] == 0
    assert again.report["domains"] == 1
    rows = sorted(again.correlated.to_pylist(), key=lambda row: row["order"])
    attributes = [json.loads(row["attributes"] or "{}") for row in rows]
    orders = [of[semconv.LOGICAL_ORDER] for of in attributes if semconv.LOGICAL_ORDER in of]
    assert orders == sorted(orders)
    assert len(orders) >= 3 * STEPS


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
