"""Whoever takes the profile, each step's event has the ids of its span; all loops of one process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import otel_tf
from tests.instrumentation.conftest import Capture
from tests.instrumentation.profiler.xplane import Event, events
from tests.spool import SpooledSpan


@contextlib.contextmanager
def profile(folder: Path) -> Iterator[list[Event]]:
    """The program's own profile, by the public API; filled at the end."""
    found: list[Event] = []
    tf.profiler.experimental.start(str(folder))
    try:
        yield found
    finally:
        tf.profiler.experimental.stop()
    found += events(folder)


def steps_of(found: list[Event]) -> list[Event]:
    return [event for event in found if "otel_span" in event.stats and "_r" in event.stats]


def assert_linked(found: list[Event], spans: list[SpooledSpan]) -> None:
    """Every span has exactly one event, with its ids and its number, at its time."""
    marks = steps_of(found)
    assert [(mark.stats["otel_trace"], mark.stats["otel_span"]) for mark in marks] == [
        (f"t-{span.trace_id}", f"s-{span.span_id}") for span in spans
    ]
    assert [mark.stats["step_num"] for mark in marks] == [
        span.attributes["tensorflow.global_step"] for span in spans
    ]
    assert {mark.stats["_r"] for mark in marks} == {1}


class Model:
    def __init__(self) -> None:
        self.weight = tf.Variable([1.0, 2.0])
        self.iterations = tf.Variable(40, dtype=tf.int64, trainable=False, name="iterations")

    @tf.function
    def train_step(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.weight * x)
        with tf.control_dependencies([tf.debugging.assert_less(loss, 1e6, message="exploded")]):
            self.weight.assign_sub(0.1 * tape.gradient(loss, self.weight))
            self.iterations.assign_add(1)
        return loss


X = np.array([1.0, 1.0], "float32")


def test_steps_of_a_loop_of_ones_own(capture: Capture, tmp_path: Path) -> None:
    model = Model()
    model.train_step(tf.constant(X))
    with profile(tmp_path / "log") as found:
        for _ in range(3):
            model.train_step(tf.constant(X))
        with pytest.raises(tf.errors.InvalidArgumentError, match="exploded"):
            model.train_step(tf.constant(X * 1e7))
        model.train_step(tf.constant(X))
    model.train_step(tf.constant(X))
    spans = capture.spans("train_step")
    assert [span.attributes["tensorflow.global_step"] for span in spans] == [41, 42, 43, 44, 45, 45, 46]
    assert_linked(found, spans[1:-1])
    runs = [event for event in found if event.name.startswith("EagerLocalExecute: __inference_train_step")]
    assert len(runs) == 5
    assert all(mark.holds(run) for mark, run in zip(steps_of(found), runs, strict=True))


def test_a_declared_step_is_one_event_around_its_functions(capture: Capture, tmp_path: Path) -> None:
    model = Model()
    with profile(tmp_path / "log") as found:
        for number in (7, 8):
            with otel_tf.step(number):
                model.train_step(tf.constant(X))
                with otel_tf.trace("rest"):
                    model.train_step(tf.constant(X))
    assert_linked(found, capture.spans("train_step"))
    regions = [event for event in found if event.name == "rest"]
    assert [region.stats["otel_span"] for region in regions] == [
        f"s-{span.span_id}" for span in capture.spans("region")
    ]
    for mark, region in zip(steps_of(found), regions, strict=True):
        assert mark.holds(region)
        assert "otel_trace" not in region.stats


def test_a_region_outside_of_steps_has_ids_of_its_own(capture: Capture, tmp_path: Path) -> None:
    with profile(tmp_path / "log") as found, otel_tf.trace("set-up"):
        tf.constant(1.0) + 1.0
    (span,) = capture.spans("region")
    (event,) = [event for event in found if event.name == "set-up"]
    assert (event.stats["otel_trace"], event.stats["otel_span"]) == (
        f"t-{span.trace_id}",
        f"s-{span.span_id}",
    )


@pytest.mark.parametrize("library", [keras, tf_keras])
@pytest.mark.parametrize("eagerly", [False, True])
def test_keras(capture: Capture, tmp_path: Path, library: Any, eagerly: bool) -> None:
    model = library.Sequential([library.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse", run_eagerly=eagerly)
    x, y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")
    with profile(tmp_path / "log") as found:
        model.fit(x, y, batch_size=2, epochs=2, verbose=0)
    spans = capture.spans("train_step")
    assert len(spans) == 8
    assert_linked(found, spans)


def test_several_steps_in_one_run_are_one_event_with_the_last_ones_number(
    capture: Capture, tmp_path: Path
) -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse", steps_per_execution=3)
    x, y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")
    with profile(tmp_path / "log") as found:
        model.fit(x, y, batch_size=1, verbose=0)
    assert [mark.stats["step_num"] for mark in steps_of(found)] == [3, 6, 8]
    assert_linked(found, capture.spans("train_step"))


def test_a_session_of_tensorflow_1(capture: Capture, tmp_path: Path) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        counter = v1.train.get_or_create_global_step()
        weight = v1.get_variable("weight", [])
        train = v1.train.GradientDescentOptimizer(0.1).minimize(weight * 2.0, global_step=counter)
        with v1.train.MonitoredSession() as session, profile(tmp_path / "log") as found:
            for _ in range(3):
                session.run(train)
            session.run(weight)
    spans = capture.spans("train_step")
    assert len(spans) == 3
    assert_linked(found, spans)


def test_what_is_no_step_has_no_ids(capture: Capture, tmp_path: Path) -> None:
    weight = tf.Variable(1.0)
    iterator = iter(tf.data.Dataset.range(1))

    @tf.function
    def train() -> None:
        weight.assign_sub(tf.cast(next(iterator), tf.float32))

    @tf.function
    def infer() -> Any:
        return weight * 2.0

    with profile(tmp_path / "log") as found:
        infer()
        train()
        with pytest.raises(tf.errors.OutOfRangeError):
            train()
    (span,) = capture.spans("train_step")
    assert_linked(found, [span])
    # The run that found no data began like a step.
    assert [sorted(event.stats) for event in found if event.name == "train_step"][1:] == [[]]
