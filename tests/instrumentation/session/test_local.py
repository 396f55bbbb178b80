"""TensorFlow 1 sessions in one process: which run is a step, and what its span says."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.client import session
from tensorflow.python.training import monitored_session

import otel_tf
from otel_tf import ids
from otel_tf.instrumentation import attach
from tests.instrumentation.conftest import Capture, original_of
from tests.spool import SpooledSpan, spans

v1 = tf.compat.v1


class Graph:
    """A linear model with the train op of a TensorFlow 1 optimizer."""

    def __init__(self, *, resources: bool = True, counted: bool = True, limit: int = 0) -> None:
        self.global_step = v1.train.get_or_create_global_step() if counted else None
        self.weight = v1.get_variable(
            "weight", [], initializer=v1.zeros_initializer(), use_resource=resources
        )
        self.metric = v1.get_variable("metric", [], trainable=False, initializer=v1.zeros_initializer())
        self.x = v1.placeholder_with_default(1.0, [])
        loss = tf.square(self.weight - self.x)
        needed = [tf.debugging.check_numerics(loss, "spoiled")]
        if limit:
            needed.append(v1.data.make_one_shot_iterator(tf.data.Dataset.range(limit)).get_next())
        with tf.control_dependencies(needed):
            self.train_op = v1.train.AdamOptimizer(0.1).minimize(loss, global_step=self.global_step)
        self.measure = v1.assign_add(self.metric, loss)
        self.loss = loss


@pytest.fixture(autouse=True)
def graph() -> Iterator[Any]:
    with tf.Graph().as_default() as one:
        yield one


def values(found: list[SpooledSpan], name: str) -> list[Any]:
    return [span.attributes.get(f"tensorflow.{name}") for span in found]


@pytest.mark.parametrize("resources", [True, False], ids=["resource", "reference"])
def test_a_plain_loop(capture: Capture, resources: bool) -> None:
    model = Graph(resources=resources)
    with v1.Session() as running:
        running.run(v1.global_variables_initializer())
        for _ in range(3):
            running.run(model.loss)
            running.run(model.train_op)
            running.run(model.measure)
        running.run([model.train_op, {"loss": model.loss}])
        running.run("Adam")
        assert running.run(model.global_step) == 5
    steps, roots = capture.spans("train_step"), capture.spans("step")
    assert values(steps, "global_step") == values(steps, "local_step") == [1, 2, 3, 4, 5]
    assert [step.parent_id for step in steps] == [root.span_id for root in roots]
    assert [step.trace_id for step in steps] == [
        f"{ids.trace_id('test', 'step', n):032x}" for n in range(1, 6)
    ]


def test_a_monitored_session_goes_on_from_its_checkpoint(capture: Capture, tmp_path: Path) -> None:
    def train(until: int) -> None:
        with tf.Graph().as_default():
            model = Graph()
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path), hooks=[v1.train.StopAtStepHook(last_step=until)]
            ) as running:
                while not running.should_stop():
                    running.run(model.train_op)

    train(4)
    train(7)
    steps = capture.spans("train_step")
    assert values(steps, "global_step") == [1, 2, 3, 4, 5, 6, 7]
    (restore,) = capture.spans("checkpoint.restore")
    assert restore.attributes["tensorflow.checkpoint.path"] == str(tmp_path / "model.ckpt-4")
    saves = capture.spans("checkpoint.save")
    assert {save.attributes["tensorflow.checkpoint.path"] for save in saves} == {str(tmp_path / "model.ckpt")}
    assert 4 in values(saves, "step.after")


def test_going_back_in_one_session(capture: Capture, tmp_path: Path) -> None:
    model = Graph()
    saver = v1.train.Saver()
    with v1.Session() as running:
        running.run(v1.global_variables_initializer())
        running.run(model.train_op)
        path = saver.save(running, str(tmp_path / "saved"))
        running.run(model.train_op)
        running.run(model.train_op)
        saver.restore(running, path)
        running.run(model.train_op)
    steps = capture.spans("train_step")
    assert values(steps, "global_step") == [1, 2, 3, 2]
    assert values(steps, "step.rewound_from") == [None, None, None, 3]


def test_without_a_counter_steps_are_counted(capture: Capture) -> None:
    model = Graph(counted=False)
    with v1.Session() as running:
        running.run(v1.global_variables_initializer())
        running.run(model.train_op)
        running.run(model.train_op)
    assert values(capture.spans("train_step"), "global_step") == [1, 2]


def test_a_step_that_fails(capture: Capture) -> None:
    model = Graph()
    with v1.Session() as running:
        running.run(v1.global_variables_initializer())
        running.run(model.train_op)
        with pytest.raises(tf.errors.InvalidArgumentError, match="spoiled"):
            running.run(model.train_op, {model.x: float("nan")})
    _, failed = capture.spans("train_step")
    assert failed.attributes["error.type"] == "INVALID_ARGUMENT"
    assert [event["name"] for event in failed.events if event["name"] != "tensor.summary"] == ["exception"]


def test_the_end_of_the_data_is_no_failure(capture: Capture) -> None:
    model = Graph(limit=2)
    with v1.train.SingularMonitoredSession() as running:
        while not running.should_stop():
            running.run(model.train_op)
    assert values(capture.spans("train_step"), "global_step") == [1, 2]
    assert {span.status.get("code") for span in capture.spans()} == {None}


def test_training_is_the_same_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")

    def train(name: str) -> list[Any]:
        random.seed(7)
        np.random.seed(7)
        with tf.Graph().as_default() as one:
            v1.set_random_seed(7)
            model = Graph()
            noise = v1.random_uniform([])
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path / name), hooks=[v1.train.StopAtStepHook(last_step=6)]
            ) as running:
                told = []
                while not running.should_stop():
                    _, drawn, weight = running.run([model.train_op, noise, model.weight], {model.x: 0.3})
                    told += [float(drawn).hex(), float(weight).hex()]
            return [told, len(one.get_operations()), random.random(), float(np.random.random())]

    bare = train("bare")
    with otel_tf.instrument(run_dir=tmp_path / "run"):
        watched = train("watched")
    assert watched == bare
    assert len(spans(tmp_path / "run", "train_step")) == 6


def test_originals_are_restored(capture: Capture) -> None:
    patched = [(session.BaseSession, "run"), (monitored_session._RecoverableSession, "_create_session")]
    originals = [original_of(owner, name) for owner, name in patched]
    capture.handle.uninstrument()
    assert [vars(owner)[name] for owner, name in patched] == originals


# -- the hook ----------------------------------------------------------------------------


def train_with(hook: Any, folder: Path, until: int) -> None:
    with tf.Graph().as_default():
        model = Graph()
        with v1.train.MonitoredTrainingSession(
            checkpoint_dir=str(folder), hooks=[hook, v1.train.StopAtStepHook(last_step=until)]
        ) as running:
            while not running.should_stop():
                running.run(model.loss)
                running.run(model.train_op)


def test_the_hook_tells_what_the_seam_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    hook = otel_tf.session_run_hook(run_id="test", run_dir=tmp_path / "run")
    try:
        for until in (3, 5):
            train_with(hook, tmp_path / "saved", until)
        assert not hasattr(vars(session.BaseSession)["run"], "__wrapped__")
        handle = attach.attached()
        assert handle is not None
        assert handle.flush()
    finally:
        otel_tf.uninstrument()
    steps = spans(tmp_path / "run", "train_step")
    assert values(steps, "global_step") == [1, 2, 3, 4, 5]
    assert [step.parent_id for step in steps] == [root.span_id for root in spans(tmp_path / "run", "step")]


def test_beside_instrument_the_hook_tells_nothing_twice(capture: Capture, tmp_path: Path) -> None:
    train_with(otel_tf.session_run_hook(), tmp_path, 3)
    assert values(capture.spans("train_step"), "global_step") == [1, 2, 3]
