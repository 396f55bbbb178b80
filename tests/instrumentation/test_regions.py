"""`otel_tf.trace`: what a region is in graphs, in eager code, and where nothing is recorded."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import otel_tf
from otel_tf import ids
from otel_tf.errors import UserError
from tests.instrumentation.conftest import Capture


def names_of(function: Any, *args: Any) -> list[str]:
    return [op.name for op in function.get_concrete_function(*args).graph.get_operations()]


def test_in_a_graph_it_is_a_name_scope() -> None:
    weight = tf.Variable(tf.ones([2, 2]))

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape, otel_tf.trace("attention"):
            y = tf.nn.relu(x @ weight, name="rectified")
            with otel_tf.trace("inner"):
                y = tf.square(y, name="squared")
        return tape.gradient(y, weight)

    names = names_of(step, tf.ones([2, 2]))
    assert {"attention/rectified", "attention/inner/squared"} <= set(names)
    assert any(name.startswith("gradient_tape/attention/inner/") for name in names)
    assert any(name.startswith("gradient_tape/attention/ReluGrad") for name in names)


def test_as_a_decorator_each_call_is_a_region_and_autograph_sees_through_it() -> None:
    @otel_tf.trace("block")
    def block(x: Any) -> Any:
        """Its own words."""
        if tf.reduce_sum(x) > 0:  # only AutoGraph can do that in a graph
            x = tf.negative(x, name="minus")
        return tf.identity(x, name="out")

    @tf.function
    def twice(x: Any) -> Any:
        return block(block(x))

    names = names_of(twice, tf.ones([2]))
    assert {"block/out", "block_1/out"} <= set(names)
    np.testing.assert_array_equal(twice(tf.constant([1.0, 2.0])), [-1.0, -2.0])
    assert (block.__name__, block.__doc__) == ("block", "Its own words.")


class Draws:
    """A program that draws random numbers, makes variables and trains; with regions or without."""

    def __init__(self, region: Any) -> None:
        tf_keras.utils.set_random_seed(3)
        self.weight: Any = None
        self.layer = tf_keras.layers.Dense(2, name="dense")
        self.optimizer = tf_keras.optimizers.SGD(0.1)
        self.names: list[str] = []

        @tf.function
        def step(x: Any) -> Any:
            with tf.GradientTape() as tape, region("attention"):
                x += tf.random.normal(tf.shape(x))
                if self.weight is None:
                    with tf.name_scope("scope"):
                        self.weight = tf.Variable(tf.ones([2, 2]), name="weight")
                with region("inner"):
                    y = self.layer(tf.nn.dropout(x @ self.weight, 0.5))
                loss = tf.reduce_mean(tf.square(y))
            variables = [self.weight, *self.layer.trainable_variables]
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            return loss

        self.step = step
        self.losses = [float(step(tf.ones([4, 2]))).hex() for _ in range(5)]
        self.variables = [self.weight, *self.layer.variables, *self.optimizer.variables]


def test_nothing_else_changes() -> None:
    """Losses to the bit, weights, and the names of variables, which old checkpoints know them by."""
    bare = Draws(tf.name_scope)
    without = Draws(lambda _: contextlib.nullcontext())
    ours = Draws(otel_tf.trace)
    assert ours.losses == without.losses == bare.losses
    assert [each.name for each in ours.variables] == [each.name for each in without.variables]
    assert [each.name for each in bare.variables] != [each.name for each in without.variables]
    for mine, other in zip(ours.variables, without.variables, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_variables_of_a_tf1_graph_keep_their_names() -> None:
    def names(region: Any) -> list[str]:
        with tf.Graph().as_default():
            with tf.name_scope("outer"), region("attention"), region("inner"):
                tf.compat.v1.Variable(1.0, name="plain", use_resource=True)
                tf.compat.v1.get_variable("got", [2])
                with tf.name_scope("deep"):
                    tf.compat.v1.Variable(1.0, name="plain", use_resource=True)
            return [variable.name for variable in tf.compat.v1.global_variables()]

    assert names(otel_tf.trace) == names(lambda _: contextlib.nullcontext())
    assert names(otel_tf.trace) == ["outer/plain:0", "got:0", "outer/deep/plain:0"]


def test_each_tracing_leaves_its_regions(capture: Capture) -> None:
    @tf.function
    def encode(x: Any) -> Any:
        with tf.name_scope("encoder"):
            for _ in range(2):
                with otel_tf.trace("attention"):
                    x = tf.identity(x)
                    with otel_tf.trace("softmax"):
                        x = tf.identity(x)
        return x

    encode(tf.ones([2]))
    (traced,) = capture.spans("trace_function")
    regions = {span.attributes["tensorflow.region.scope"]: span for span in capture.spans("trace_region")}
    assert list(regions) == [
        "encoder/attention/softmax",
        "encoder/attention",
        "encoder/attention_1/softmax",
        "encoder/attention_1",
    ]
    for scope, span in regions.items():
        outer = traced if scope.count("/") == 1 else regions[scope.rpartition("/")[0]]
        assert span.parent_id == outer.span_id
        assert span.trace_id == f"{ids.trace_id('test', 'run'):032x}"
        assert span.attributes["tensorflow.function.name"] == "encode"
        assert outer.start_ns <= span.start_ns <= span.end_ns <= outer.end_ns
    assert [regions[scope].attributes["tensorflow.region.name"] for scope in regions] == [
        "softmax",
        "attention",
    ] * 2


def test_in_eager_code_it_is_a_span(capture: Capture) -> None:
    with otel_tf.trace("outer"), otel_tf.trace("inner"):
        assert tf.Variable(1.0, name="free").name == "free:0"
    with pytest.raises(ZeroDivisionError), otel_tf.trace("failing"):
        1 // 0  # noqa: B018
    spans = {span.attributes["tensorflow.region.name"]: span for span in capture.spans("region")}
    assert list(spans) == ["inner", "outer", "failing"]
    assert spans["inner"].parent_id == spans["outer"].span_id
    assert spans["outer"].parent_id == spans["failing"].parent_id == ""
    assert {span.trace_id for span in spans.values()} == {f"{ids.trace_id('test', 'run'):032x}"}
    assert spans["failing"].status["code"] == 2
    assert spans["failing"].attributes["error.type"] == "ZeroDivisionError"


def test_in_a_declared_step_it_belongs_to_the_step(capture: Capture) -> None:
    weight = tf.Variable(1.0)

    @tf.function
    def train() -> None:
        weight.assign_sub(0.1)

    with otel_tf.step(7):
        with otel_tf.trace("data"), otel_tf.trace("decode"):
            pass
        with otel_tf.trace("around"):
            train()
    with pytest.raises(KeyError), otel_tf.step(8), otel_tf.trace("bad"):
        {}["missing"]
    root, failed = (span for span in capture.spans("step"))
    steps = capture.spans("train_step")
    spans = {span.attributes["tensorflow.region.name"]: span for span in capture.spans("region")}
    assert spans["data"].parent_id == spans["around"].parent_id == root.span_id
    assert spans["decode"].parent_id == spans["data"].span_id
    for name in ("data", "decode", "around"):
        assert spans[name].trace_id == f"{ids.trace_id('test', 'step', 7):032x}"
        assert spans[name].attributes["tensorflow.global_step"] == 7
        assert root.start_ns <= spans[name].start_ns <= spans[name].end_ns <= root.end_ns
    assert spans["around"].start_ns <= steps[0].start_ns
    assert spans["bad"].trace_id == failed.trace_id
    assert (spans["bad"].status["code"], spans["bad"].events) == (2, [])
    # Where no function trains, the whole step is the worker's part.
    assert spans["bad"].parent_id == steps[1].span_id


@pytest.mark.parametrize("name", ["", "a b", "/a", "a/", "_a", 7, "ä"])
def test_a_bad_name_is_named(name: Any) -> None:
    with pytest.raises(UserError, match=r"otel_tf\.trace\("):
        otel_tf.trace(name)


def test_without_tensorflow_nothing_happens_and_nothing_is_imported() -> None:
    program = """
import sys, otel_tf
with otel_tf.trace("a"), otel_tf.trace("b"):
    pass
@otel_tf.trace("c")
def add(x, y): return x + y
assert add(1, y=2) == 3
assert "tensorflow" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
