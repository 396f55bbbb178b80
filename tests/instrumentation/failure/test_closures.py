"""Closures of ParameterServerStrategy that fail, in real processes: what is kept of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from otel_tf.demo.clocks import FalseClock, FalseClocks
from otel_tf.demo.cluster import Cluster
from tests.instrumentation.failure.support import events, tensors
from tests.spool import SpooledSpan, spans

PROGRAM = [str(Path(__file__).with_name("closures_program.py"))]
STEPS = 12


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("job")
    environment = {
        "OTEL_TF_RUN_ID": "test",
        "OTEL_TF_RUN_DIR": str(folder),
        "OTEL_TF_TESTING": "true",
        "OTEL_TF_DRAIN_INTERVAL": "200",
        "OTEL_TRACES_EXPORTER": "none",
        "TF_CPP_MIN_LOG_LEVEL": "1",
    }
    clocks = FalseClocks(None, "not wanted")
    cluster = Cluster(2, folder, environment, clocks, lambda _: FalseClock(0.0, 0.0))
    return folder, cluster.run([], program=PROGRAM)


def step_of(job: tuple[Path, dict[str, Any]], function: str) -> SpooledSpan:
    (found,) = [
        span
        for span in spans(job[0], "train_step")
        if span.attributes["tensorflow.function.name"] == function
    ]
    return found


def test_the_program_notices_nothing(job: tuple[Path, dict[str, Any]]) -> None:
    _, said = job
    assert said["good"] is said["after"] is said["spoiled"] is said["compiled"] is None
    assert said["untouched"]
    assert said["assert"][0] == "InvalidArgumentError"
    assert said["oom"][0] == "ResourceExhaustedError"


def test_an_assertion_names_its_worker(job: tuple[Path, dict[str, Any]]) -> None:
    failed = step_of(job, "asserting")
    attributes = failed.attributes
    assert attributes["tensorflow.error.origin.worker"] == attributes["tensorflow.worker"]
    assert (attributes["tensorflow.error.kind"], attributes["tensorflow.error.op"]) == ("assert", "Assert")
    assert attributes["tensorflow.error.label"] == "loss too large"
    assert (
        "asserting" in attributes["tensorflow.error.stack"]
        or "lambda" in attributes["tensorflow.error.stack"]
    )
    assert len(failed.events) >= 2


def test_variables_and_slots_are_read_from_the_parameter_server(job: tuple[Path, dict[str, Any]]) -> None:
    failed = step_of(job, "asserting")
    kept = tensors(failed)
    # The closure takes its batch on the worker, and only there it is.
    batch = kept.pop("batch/0")
    kind, _, index = failed.attributes["tensorflow.worker"].partition(":")
    assert batch["device"] == f"/job:{kind}/replica:0/task:{index}/device:CPU:0"
    assert (batch["group"], batch["shape"]) == ("batch", [8, 2])
    assert {name: (one["group"], one["shape"]) for name, one in kept.items()} == {
        "weight": ("variable", [2, 1]),
        "weight/momentum": ("state", [2, 1]),
        "iterations": ("state", []),
    }
    assert kept["iterations"]["max"] == STEPS
    assert all("/job:ps/" in one["device"] for one in kept.values())
    assert sum(kept["weight"]["histogram"]) == 2


def test_the_worker_hands_over_what_it_watched(job: tuple[Path, dict[str, Any]]) -> None:
    """Its own last losses, that of the step that failed among them."""
    failed = step_of(job, "asserting")
    (event,) = [event for event in events(failed, "tensor.watch") if event["tensor.name"] == "loss"]
    kind, _, index = failed.attributes["tensorflow.worker"].partition(":")
    assert event["tensor.device"].startswith(f"/job:{kind}/replica:0/task:{index}/")
    summaries = json.loads(event["watch.summaries"])
    assert len(summaries) <= 5
    # The stamp of the last one lies in the step.
    assert failed.start_ns - 1_000_000 <= summaries[-1]["time_ns"] <= failed.end_ns + 1_000_000
    assert summaries[-1]["mean"] > 0


def test_a_program_can_ask(job: tuple[Path, dict[str, Any]]) -> None:
    found = job[1]["watched"]["loss"]
    assert {device.split("/")[1] for _, device in found} == {"job:worker"}
    assert sum(max(run for run, at in found if at == device) for device in {at for _, at in found}) == STEPS


def test_memory_runs_out_on_one_worker(job: tuple[Path, dict[str, Any]]) -> None:
    failed = step_of(job, "too_large")
    attributes = failed.attributes
    assert attributes["error.type"] == "RESOURCE_EXHAUSTED"
    assert attributes["tensorflow.error.kind"] == "out_of_memory"
    assert attributes["tensorflow.error.origin.worker"] == attributes["tensorflow.worker"]
    kind, _, index = attributes["tensorflow.worker"].partition(":")
    assert attributes["tensorflow.error.device"].startswith(f"/job:{kind}/replica:0/task:{index}/")


def test_a_nan_without_a_failure(job: tuple[Path, dict[str, Any]]) -> None:
    step = step_of(job, "spoiling")
    assert "code" not in step.status
    (event,) = events(step, "tensor.watch")
    assert event["tensor.name"] == "spoiled"
    assert [one["inf"] for one in json.loads(event["watch.summaries"])] == [1]
