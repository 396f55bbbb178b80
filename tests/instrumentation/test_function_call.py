"""Custom loops in one process: which call of a tf.function is a step, and what its span says."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.distribute import input_lib
from tensorflow.python.eager.polymorphic_function import tracing_compilation
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
from tensorflow.python.training import saver
from tensorflow.python.util import traceback_utils

import otel_tf
from otel_tf import ids
from tests.instrumentation.conftest import Capture


class Model:
    def __init__(self, start: int = 0) -> None:
        self.weight = tf.Variable([1.0, 2.0])
        self.iterations = tf.Variable(start, dtype=tf.int64, trainable=False, name="iterations")
        self.metric = tf.Variable(0.0, trainable=False)
        self.tracings = 0

    @tf.function
    def train_step(self, x: Any) -> Any:
        self.tracings += 1
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.weight * x)
        with tf.control_dependencies([tf.debugging.assert_less(loss, 1e6, message="exploded")]):
            self.weight.assign_sub(0.1 * tape.gradient(loss, self.weight))
            self.iterations.assign_add(1)
        return loss

    @tf.function
    def evaluate(self, x: Any) -> None:
        self.metric.assign_add(tf.reduce_sum(self.weight * x))


X = np.array([1.0, 1.0], dtype="float32")


def test_steps_in_order(capture: Capture) -> None:
    model = Model()
    for _ in range(5):
        model.train_step(tf.constant(X))
    steps = capture.spans("train_step")
    assert [step.attributes["tensorflow.global_step"] for step in steps] == [1, 2, 3, 4, 5]
    assert [step.attributes["tensorflow.local_step"] for step in steps] == [1, 2, 3, 4, 5]
    assert {step.attributes["tensorflow.worker"] for step in steps} == {"local:0"}
    assert {step.attributes["tensorflow.function.name"] for step in steps} == {"train_step"}
    roots = {span.span_id: span for span in capture.spans("step")}
    for number, step in enumerate(steps, start=1):
        assert step.trace_id == f"{ids.trace_id('test', 'step', number):032x}"
        root = roots[step.parent_id]
        assert (root.trace_id, root.parent_id) == (step.trace_id, "")
        assert root.span_id == f"{ids.span_id('test', 'step', number, 'root'):016x}"
        assert root.start_ns <= step.start_ns <= step.end_ns <= root.end_ns
        assert root.attributes["tensorflow.seq"] < step.attributes["tensorflow.seq"]


def test_goes_on_from_the_step_counter(capture: Capture) -> None:
    model = Model(start=41_200)
    model.train_step(tf.constant(X))
    model.train_step(tf.constant(X))
    assert [s.attributes["tensorflow.global_step"] for s in capture.spans("train_step")] == [41_201, 41_202]


def test_metrics_and_inference_are_no_steps(capture: Capture) -> None:
    model = Model()
    model.evaluate(tf.constant(X))
    tf.function(lambda x: x * 2.0)(tf.constant(X))
    assert {span.name for span in capture.spans()} == {"trace_function"}


def test_only_the_outermost_function_is_a_step(capture: Capture) -> None:
    model = Model()

    @tf.function
    def outer(x: Any) -> Any:
        return model.train_step(x) + 1.0

    outer(tf.constant(X))
    (step,) = capture.spans("train_step")
    assert step.attributes["tensorflow.function.name"] == "outer"
    assert model.tracings == 1


def test_tracing_is_not_part_of_the_step(capture: Capture) -> None:
    weight = tf.Variable(1.0)

    @tf.function
    def slow_to_trace(x: Any) -> None:
        time.sleep(0.3)  # Python runs while the graph is built, and never again
        weight.assign_sub(x)

    before_ns = time.time_ns()
    slow_to_trace(tf.constant(1.0))
    (step,) = capture.spans("train_step")
    assert step.start_ns - before_ns > 300_000_000
    assert step.end_ns - step.start_ns < 300_000_000


def test_failing_step(capture: Capture) -> None:
    model = Model()
    model.train_step(tf.constant(X))
    with pytest.raises(tf.errors.InvalidArgumentError, match="exploded"):
        model.train_step(tf.constant(X * 1e7))
    model.train_step(tf.constant(X))
    steps = capture.spans("train_step")
    # The failed step did not count: its number is given again.
    assert [step.attributes["tensorflow.global_step"] for step in steps] == [1, 2, 2]
    assert len({span.span_id for span in capture.spans() if span.name != "trace_function"}) == 6
    failed = steps[1]
    assert failed.status["code"] == 2
    assert failed.attributes["error.type"] == "INVALID_ARGUMENT"
    assert [event["name"] for event in failed.events if event["name"] != "tensor.summary"] == ["exception"]
    (root,) = [span for span in capture.spans("step") if span.span_id == failed.parent_id]
    assert root.status["code"] == 2
    assert root.events == []


def test_a_failure_while_tracing_passes_unchanged(capture: Capture) -> None:
    problem = KeyError("mine")

    @tf.function(autograph=False)
    def untraceable() -> None:
        raise problem

    with pytest.raises(KeyError) as caught:
        untraceable()
    assert caught.value is problem
    (tracing,) = capture.spans()
    assert tracing.name == "trace_function"
    assert tracing.attributes["error.type"] == "KeyError"


def test_same_tracings_and_random_streams(capture: Capture) -> None:
    random.seed(7)
    np.random.seed(7)
    model = Model()
    for _ in range(3):
        model.train_step(tf.constant(X))
    capture.handle.flush()
    assert model.tracings == 1
    assert (random.random(), float(np.random.random())) == (0.32383276483316237, 0.07630828937395717)


def test_originals_are_restored(capture: Capture) -> None:
    patched = [
        (ConcreteFunction, "_call_flat"),
        (tracing_compilation, "_create_concrete_function"),
        (iterator_ops.OwnedIterator, "_next_internal"),
        (input_lib.DistributedIteratorBase, "get_next"),
        (checkpoint.TrackableSaver, "save"),
        (checkpoint.TrackableSaver, "restore"),
        (saver.Saver, "save"),
        (saver.Saver, "restore"),
    ]
    paths = traceback_utils._EXCLUDED_PATHS
    during = [vars(owner)[name] for owner, name in patched]
    assert otel_tf.instrument() is capture.handle
    capture.handle.uninstrument()
    assert [vars(owner)[name] is now.__wrapped__ for (owner, name), now in zip(patched, during, strict=True)]
    assert len(paths) > len(traceback_utils._EXCLUDED_PATHS) == 1
    model = Model()
    model.train_step(tf.constant(X))
    assert not list(capture.handle.run_dir.glob("*.traces.jsonl")) or capture.spans() == []


def test_wrapped_again_by_others(capture: Capture) -> None:
    """Somebody who wrapped after us keeps their wrapper; ours below it only passes through."""
    import wrapt

    calls = []

    def theirs(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        calls.append(instance)
        return wrapped(*args, **kwargs)

    ours = vars(ConcreteFunction)["_call_flat"]
    original = ours.__wrapped__
    wrapt.wrap_function_wrapper(ConcreteFunction, "_call_flat", theirs)
    try:
        capture.handle.uninstrument()
        model = Model()
        model.train_step(tf.constant(X))
        assert calls
        assert capture.spans() == []
    finally:
        ConcreteFunction._call_flat = original
