"""tf_keras's `fit` under ParameterServerStrategy, in real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from otel_tf import ids
from otel_tf.demo.clocks import FalseClocks
from otel_tf.demo.cluster import Cluster
from tests.spool import SpooledSpan, spans

PROGRAM = [str(Path(__file__).with_name("keras_program.py"))]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("keras")
    environment = {
        "OTEL_TF_RUN_ID": "test",
        "OTEL_TF_RUN_DIR": str(folder),
        "OTEL_TF_TESTING": "true",
        "OTEL_TRACES_EXPORTER": "none",
        "TF_CPP_MIN_LOG_LEVEL": "1",
    }
    cluster = Cluster(2, folder, environment, FalseClocks(None, "not wanted"))
    return folder, cluster.run(["--checkpoint", str(folder / "saved")], program=PROGRAM)


@pytest.fixture(scope="module")
def recorded(job: tuple[Path, dict[str, Any]]) -> list[SpooledSpan]:
    return spans(job[0])


def named(recorded: list[SpooledSpan], name: str) -> list[SpooledSpan]:
    return [span for span in recorded if span.name == name]


def values(found: list[SpooledSpan], name: str) -> list[Any]:
    return [span.attributes.get(f"tensorflow.{name}") for span in found]


def training(recorded: list[SpooledSpan]) -> list[SpooledSpan]:
    """The training closures, in the order in which they were scheduled."""
    found = [span for span in named(recorded, "closure") if "tensorflow.batch" in span.attributes]
    return sorted(found, key=lambda span: span.attributes["tensorflow.closure.id"])


def test_every_step_has_its_epoch_and_batch(recorded: list[SpooledSpan]) -> None:
    closures = training(recorded)[:25]
    assert values(closures, "epoch") == [0] * 10 + [1] * 10 + [2] * 5
    assert values(closures, "batch") == [*range(10), *range(10), *range(5)]
    assert set(values(closures, "function.name")) == {"train_function"}
    steps = {span.trace_id: span for span in named(recorded, "train_step")}
    for closure in closures:
        step = steps[closure.trace_id]
        assert values([step], "epoch") == values([closure], "epoch")
        assert values([step], "batch") == values([closure], "batch")
        assert step.attributes["tensorflow.worker"] in ("worker:0", "worker:1")
    # The coordinator runs no step itself.
    assert named(recorded, "step") == []


def test_steps_are_counted_back_and_by_three(recorded: list[SpooledSpan]) -> None:
    closures = training(recorded)
    assert sorted(values(closures[:25], "global_step")) == list(range(1, 26))
    assert set(values(closures[:25], "step.stream")) == {None}
    # Back to the checkpoint of step 20 …
    assert sorted(values(closures[25:28], "global_step")) == [21, 22, 23]
    # … and a new optimizer counts anew: seven batches in 3 + 3 + 1 steps.
    by_three = closures[28:31]
    assert values(by_three, "steps_per_execution") == [3, 3, None]
    assert values(by_three, "batch") == [0, 3, 6]
    assert max(values(by_three, "global_step")) == 7
    assert len(set(values(by_three, "step.stream")) - {None}) == 1


def test_epochs_and_evaluations(recorded: list[SpooledSpan]) -> None:
    epochs, evaluations = named(recorded, "epoch"), named(recorded, "evaluate")
    assert values(epochs[:5], "epoch") == [0, 1, 2, 3, 0]
    assert values(epochs[:5], "step.after") == [10, 20, 25, 23, 7]
    assert values(epochs[1:4], "step.before") == [10, 20, 20]
    assert [span.parent_id for span in evaluations] == [span.span_id for span in epochs[:2]]
    assert {span.trace_id for span in (*epochs, *evaluations)} == {f"{ids.trace_id('test', 'run'):032x}"}
    assert {span.resource["service.instance.id"] for span in epochs} == {"test/chief:0"}
    # Evaluating is no step.
    assert len(training(recorded)) <= 31 + 3
    evaluated = [
        span for span in named(recorded, "closure") if values([span], "function.name") == ["test_function"]
    ]
    assert evaluated
    assert {span.attributes.get("tensorflow.epoch") for span in evaluated} == {None}


def test_saving_and_going_back(recorded: list[SpooledSpan]) -> None:
    (save,), (restore,) = named(recorded, "checkpoint.save"), named(recorded, "checkpoint.restore")
    assert values([save], "step.before") == [20]
    assert values([restore], "step.before") == [25]
    assert values([restore], "step.after") == [20]


def test_a_failure_ends_the_epoch_and_is_told_once(
    job: tuple[Path, dict[str, Any]], recorded: list[SpooledSpan]
) -> None:
    assert "spoiled" in job[1]["failure"]
    failed = named(recorded, "epoch")[5]
    assert failed.attributes["error.type"] == "INVALID_ARGUMENT"
    assert failed.events == []
    steps = [span for span in named(recorded, "train_step") if "code" in span.status]
    assert {span.attributes["error.type"] for span in steps} <= {"INVALID_ARGUMENT", "CANCELLED"}
    told = [[event["name"] for event in span.events].count("exception") for span in steps]
    assert set(told) <= {0, 1}
    assert 1 in told


def test_keras_3_says_what_it_cannot_do(job: tuple[Path, dict[str, Any]]) -> None:
    folder, answers = job
    assert answers["keras_3"] != "no error"
    said = (folder / "logs" / "chief-0.log").read_text(errors="replace")
    assert "Keras 3 itself has no fit under ParameterServerStrategyV2; use tf_keras" in said


def test_training_is_what_it_is_without_us(job: tuple[Path, dict[str, Any]]) -> None:
    answers = job[1]
    assert answers["losses"] == 2
    assert answers["iterations"] == 7
    assert answers["patience"] is True
