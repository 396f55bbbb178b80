"""The detail of the last steps: held back while all is well, written when a step fails or is slow."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import tensorflow as tf

import otel_tf
from otel_tf.instrumentation.flight_recorder import FlightRecorder
from tests.instrumentation.conftest import Capture
from tests.instrumentation.failure.support import events

MS = 1_000_000


def loop(steps: int, bad: Any) -> None:
    """Runs steps that wait a little for their data; ``bad`` is called in the last one."""
    weight = tf.Variable(1.0)

    @tf.function
    def train_step(x: Any) -> Any:
        x = otel_tf.watch("x", x)
        with tf.control_dependencies([tf.debugging.assert_less(x, 100.0)]):
            weight.assign_sub(0.1 * x)

    iterator = iter(tf.data.Dataset.range(steps).map(lambda n: tf.cast(n, tf.float32)))
    for number, x in enumerate(iterator):
        with otel_tf.step():
            train_step(bad(x) if number == steps - 1 else x)


def waits_of(capture: Capture) -> list[int]:
    return [span.attributes["tensorflow.global_step"] for span in capture.spans("data_wait")]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait is long enough for a span of its own."""
    monkeypatch.setenv("OTEL_TF_DATA_WAIT_THRESHOLD", "100000")
    monkeypatch.setenv("OTEL_TF_FLIGHT_RECORDER", "5")


def test_a_failure_brings_the_last_steps(patient: None, capture: Capture) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError):
        loop(12, lambda _: tf.constant(1000.0))
    assert waits_of(capture) == [8, 9, 10, 11, 12]
    parents = {span.span_id: span for span in capture.spans("step")}
    for wait in capture.spans("data_wait"):
        assert parents[wait.parent_id].trace_id == wait.trace_id


def test_a_slow_step_brings_them_too(patient: None, capture: Capture) -> None:
    def slow(x: Any) -> Any:
        time.sleep(1.0)
        return x

    recorder = capture.handle.core.steps.spans._recorder
    monkeypatched = recorder.slowdown
    # What a busy machine takes for a step is not the point here.
    recorder.slowdown = lambda took_ns: 7.0 if took_ns > 500 * MS else monkeypatched(took_ns) and None
    weight = tf.Variable(1.0)

    @tf.function
    def train_step(x: Any) -> None:
        until = tf.timestamp() + tf.cast(x, tf.float64)
        tf.while_loop(lambda _: tf.timestamp() < until, lambda n: (n + 1,), [0])
        weight.assign_sub(otel_tf.watch("x", x))

    for x in tf.data.Dataset.from_tensor_slices([0.0] * 7 + [0.6, 0.0]):
        train_step(x)
    *_, slow_step, after = capture.spans("train_step")
    assert slow_step.attributes["tensorflow.step.slowdown"] == 7.0
    assert "tensorflow.step.slowdown" not in after.attributes
    assert waits_of(capture) == [4, 5, 6, 7, 8]
    (event,) = events(slow_step, "tensor.watch")
    assert 0.6 in [pytest.approx(one["max"]) for one in json.loads(event["watch.summaries"])]


def test_nothing_while_all_is_well(patient: None, capture: Capture) -> None:
    capture.handle.core.steps.spans._recorder.slowdown = lambda _: None
    loop(12, lambda x: x)
    assert waits_of(capture) == []


def test_what_is_slow() -> None:
    recorder = FlightRecorder(3)
    assert [recorder.slowdown(10 * MS) for _ in range(25)] == [None] * 25
    assert recorder.slowdown(29 * MS) is None
    assert recorder.slowdown(31 * MS) == pytest.approx(3.1)
    # Of short steps thrice the time is nothing.
    recorder = FlightRecorder(3)
    assert [recorder.slowdown(MS // 10) for _ in range(25)] == [None] * 25
    assert recorder.slowdown(MS) is None
    assert recorder.slowdown(2 * MS) is not None
    # What lasts is usual.
    recorder = FlightRecorder(3)
    seen = [recorder.slowdown(10 * MS) for _ in range(40)] + [recorder.slowdown(50 * MS) for _ in range(80)]
    assert seen[40] is not None
    assert seen[-1] is None
    assert [FlightRecorder(0).slowdown(10**9) for _ in range(30)] == [None] * 30
