"""A step that fails, in one process: what is kept of its tensors, and what the program notices (nothing)."""

from __future__ import annotations

import random
import time
import traceback
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from otel_tf import _guard, ids
from otel_tf.instrumentation.failure import capture as capturing
from tests.instrumentation.conftest import Capture
from tests.instrumentation.failure.support import events, failures, tensors

v1 = tf.compat.v1


class Model:
    def __init__(self) -> None:
        self.weight = tf.Variable([[1.0, 2.0], [3.0, 4.0]], name="weight")
        self.velocity = tf.Variable(tf.zeros([2, 2]), trainable=False, name="velocity")
        self.names = tf.Variable(["a"], trainable=False, name="names")
        self.tracings = 0

    @tf.function
    def train_step(self, x: Any) -> Any:
        self.tracings += 1
        loss = tf.debugging.check_numerics(x @ self.weight, "loss is spoiled")
        with tf.control_dependencies([loss]):
            self.velocity.assign(0.9 * self.velocity + 0.1)
            self.weight.assign_sub(self.velocity)
        return tf.strings.length(self.names)


GOOD = np.ones([2, 2], "float32")
BAD = np.array([[1.0, np.nan], [np.inf, 5.0]], "float32")


def test_the_tensors_of_a_custom_loop(capture: Capture) -> None:
    model = Model()
    model.train_step(tf.constant(GOOD))
    with pytest.raises(tf.errors.InvalidArgumentError):
        model.train_step(tf.constant(BAD))
    _, failed = capture.spans("train_step")
    kept = tensors(failed)
    assert {name: one["group"] for name, one in kept.items()} == {
        "x": "batch",
        "weight": "variable",
        "velocity": "state",
    }
    batch = kept["x"]
    assert (batch["nan"], batch["inf"], batch["size"], batch["min"], batch["max"]) == (1, 1, 4, 1.0, 5.0)
    assert (batch["shape"], batch["dtype"], batch["mean"]) == ([2, 2], "float32", 3.0)
    assert batch["norm"] == pytest.approx(26**0.5)
    assert sum(batch["histogram"]) == 2
    assert kept["weight"]["min"] == pytest.approx(0.9)
    # The worst first, and all of it on the span as well.
    first, *others = events(failed, "tensor.summary")
    assert (first["tensor.name"], first["tensor.nan"], first["tensor.inf"]) == ("x", 1, 1)
    assert {one["tensor.name"] for one in others} == {"weight", "velocity"}
    assert failed.attributes["tensorflow.failure.tensors"] == 3
    assert failed.attributes["tensorflow.failure.spoiled"] == {"values": [{"stringValue": "x"}]}
    assert (failures(failed)["global_step"], failures(failed)["worker"]) == (2, "local:0")
    assert failed.attributes["tensorflow.error.op"] == "CheckNumerics"
    assert failed.attributes["tensorflow.error.label"] == "loss is spoiled"
    assert "test_loops.py" in failed.attributes["tensorflow.error.stack"]


def test_nothing_is_touched(capture: Capture) -> None:
    model = Model()
    state = random.getstate()
    tf.random.set_seed(3)
    expected = tf.random.uniform([2]).numpy().tolist()
    tf.random.set_seed(3)
    model.train_step(tf.constant(GOOD))
    before = [model.weight.numpy().tolist(), model.velocity.numpy().tolist()]
    with pytest.raises(tf.errors.InvalidArgumentError):
        model.train_step(tf.constant(BAD))
    assert [model.weight.numpy().tolist(), model.velocity.numpy().tolist()] == before
    assert tf.random.uniform([2]).numpy().tolist() == expected
    assert random.getstate() == state
    assert model.tracings == 1
    assert [span.name for span in capture.spans("trace_function")] == ["trace_function"]


def test_the_exception_passes_unchanged_also_when_looking_fails(
    capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, raised = Model(), []
    before = _guard.strict(False)
    try:
        for broken in (False, True):
            if broken:
                monkeypatch.setattr(capturing, "tensors_of", None)
                monkeypatch.setattr(capturing, "_SHARE", 0)
            with pytest.raises(tf.errors.InvalidArgumentError) as caught:
                model.train_step(tf.constant(BAD))
            raised.append(caught.value)
    finally:
        _guard.strict(before)
    for error in raised:
        assert error.__context__ is None
        frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        assert frames[0] == __file__
    assert str(raised[0]) == str(raised[1])
    assert len(capture.spans("train_step")) == 2


def test_it_takes_no_longer_than_allowed(capture: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that never comes, as from a parameter server that is gone."""
    object.__setattr__(capture.handle.core.settings, "failure_capture_ms", 300)
    given = capturing.tensors_of

    def with_one_that_hangs(call: Any) -> Any:
        yield from given(call)
        yield capturing.Named("variable", "far away", lambda: time.sleep(5))
        yield capturing.Named("variable", "after it", lambda: np.ones(3))

    monkeypatch.setattr(capturing, "tensors_of", with_one_that_hangs)
    model = Model()
    with pytest.raises(tf.errors.InvalidArgumentError):
        model.train_step(tf.constant(BAD))
    (failed,) = capture.spans("train_step")
    assert set(tensors(failed)) == {"x", "weight", "velocity"}
    assert failed.attributes["tensorflow.failure.left_out"] == 2
    assert 0.3 <= failed.attributes["tensorflow.failure.capture_time"] < 3
    # A failure right after it is not looked at: the program may catch them and go on.
    with pytest.raises(tf.errors.InvalidArgumentError):
        model.train_step(tf.constant(BAD))
    assert "tensorflow.failure.tensors" not in capture.spans("train_step")[1].attributes


def test_it_can_be_turned_off(capture: Capture) -> None:
    object.__setattr__(capture.handle.core.settings, "failure_capture_ms", 0)
    model = Model()
    with pytest.raises(tf.errors.InvalidArgumentError):
        model.train_step(tf.constant(BAD))
    (failed,) = capture.spans("train_step")
    assert failed.attributes["tensorflow.error.kind"] == "check_numerics"
    assert not [name for name in failed.attributes if "failure" in name]


# -- NaN on one replica ----------------------------------------------------------------


def test_nan_on_one_replica_only(capture: Capture) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        weight = tf.Variable([1.0, 2.0], name="weight", aggregation=tf.VariableAggregation.MEAN)

    @tf.function
    def train_step(x: Any) -> Any:
        def replica_step(x: Any) -> Any:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            x = tf.where(replica == 1, x / 0.0, x)
            loss = tf.debugging.check_numerics(x * weight, "loss")
            with tf.control_dependencies([loss]):
                weight.assign_sub(0.1 * weight)
            return loss

        return strategy.run(replica_step, args=(x,))

    with pytest.raises(tf.errors.InvalidArgumentError):
        train_step(tf.constant([1.0, 0.0]))
    (failed,) = capture.spans("train_step")
    assert failed.attributes["tensorflow.error.replica"] == 1
    assert failed.attributes["tensorflow.error.node"] == "replica_1/CheckNumerics"
    assert failed.attributes["tensorflow.error.op"] == "CheckNumerics"
    kept = tensors(failed)
    # Each replica's own copy.
    assert set(kept) == {"x", "weight", "weight/replica_1"}
    assert kept["weight"]["device"].endswith("CPU:0")
    assert kept["weight/replica_1"]["device"].endswith("CPU:1")


# -- Keras -----------------------------------------------------------------------------


def data(spoiled: int) -> Any:
    def generate() -> Any:
        for number in range(8):
            if number == spoiled:
                raise ValueError("the file of this batch is broken")
            yield np.ones([4, 2], "float32"), np.ones([4, 1], "float32")

    return generate


def compiled(kind: Any, **options: Any) -> Any:
    model = kind.Sequential([kind.layers.Dense(3), kind.layers.Dense(1)])
    model.compile(kind.optimizers.SGD(0.01, momentum=0.9), "mse", **options)
    model.build([None, 2])
    return model


@pytest.mark.parametrize("kind", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_a_generator_that_raises_at_batch_4(capture: Capture, kind: Any) -> None:
    signature = (tf.TensorSpec([None, 2]), tf.TensorSpec([None, 1]))
    dataset = tf.data.Dataset.from_generator(data(4), output_signature=signature)
    with pytest.raises(tf.errors.OpError, match="the file of this batch is broken"):
        compiled(kind).fit(dataset, shuffle=False, verbose=0)
    *_, failed = capture.spans("train_step")
    assert failed.status["code"] == 2
    assert failed.attributes["tensorflow.batch"] == 4
    assert failed.attributes["tensorflow.global_step"] == 5
    assert failed.attributes["tensorflow.error.text"].startswith("ValueError: the file of this batch")
    groups = {one["group"] for one in tensors(failed).values()}
    assert {"variable", "optimizer"} <= groups
    slots = tensors(failed, "optimizer")
    assert [one for one in slots.values() if one["shape"] == [2, 3] and one["size"] == 6]


@pytest.mark.parametrize("kind", [keras, tf_keras], ids=["keras", "tf_keras"])
@pytest.mark.parametrize("distributed", [False, True], ids=["plain", "mirrored"])
def test_the_batch_that_a_graph_took_itself(capture: Capture, kind: Any, distributed: bool) -> None:
    class Checked(kind.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return tf.debugging.check_numerics(x, "input")

    strategy = (
        tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]) if distributed else tf.distribute.get_strategy()
    )
    with strategy.scope():
        model = kind.Sequential([Checked(), kind.layers.Dense(1)])
        # XLA has no such checks.
        model.compile("sgd", "mse", jit_compile=False)
    x = np.ones([16, 2], "float32")
    x[9, 1] = np.nan
    with pytest.raises(tf.errors.InvalidArgumentError, match="input"):
        model.fit(x, np.full([16, 1], 7.0, "float32"), batch_size=4, shuffle=False, verbose=0)
    *good, failed = capture.spans("train_step")
    assert len(good) == 2
    batch = list(tensors(failed, "batch").values()) if not distributed else failures(failed)["tensors"]
    found = [(one["shape"], one["nan"], one["max"]) for one in batch if one["group"] == "batch"]
    if distributed:
        assert sorted(found) == [([2, 1], 0, 7.0), ([2, 1], 0, 7.0), ([2, 2], 0, 1.0), ([2, 2], 1, 1.0)]
    else:
        assert found == [([4, 2], 1, 1.0), ([4, 1], 0, 7.0)]


def test_batches_are_the_programs_own(capture: Capture) -> None:
    """Ragged, sparse and text elements pass through graphs as they are; so does the end of the data."""
    elements = {
        "ragged": tf.ragged.constant([[1.0], [2.0, 3.0]]),
        "sparse": tf.sparse.from_dense([[0.0, 1.0], [2.0, 0.0]]),
        "text": tf.constant(["a", "b"]),
    }
    dataset = tf.data.Dataset.from_tensor_slices(elements)
    iterator = iter(dataset)

    @tf.function
    def take() -> Any:
        return next(iterator)

    for number in range(2):
        got = take()
        assert isinstance(got["ragged"], tf.RaggedTensor | tf.Tensor)
        assert tf.sparse.to_dense(got["sparse"]).numpy().tolist() == [[0.0, 1.0], [2.0, 0.0]][number]
        assert got["text"].numpy() == [b"a", b"b"][number]
    with pytest.raises(tf.errors.OutOfRangeError):
        take()


@pytest.mark.parametrize("kind", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_terminate_on_nan(capture: Capture, kind: Any) -> None:
    """Nothing raises: the callback sets a flag. The step was taken, and is the one to look at."""
    x = np.ones([16, 2], "float32")
    x[9] = np.nan
    model = compiled(kind)
    history = model.fit(
        x,
        np.ones([16, 1], "float32"),
        batch_size=4,
        epochs=3,
        shuffle=False,
        verbose=0,
        callbacks=[kind.callbacks.TerminateOnNaN()],
    )
    assert len(history.epoch) == 1
    *good, spoiled = capture.spans("train_step")
    assert [step.status.get("code") for step in good] == [None, None]
    assert spoiled.attributes["tensorflow.batch"] == 2
    assert spoiled.attributes["tensorflow.global_step"] == 3
    assert spoiled.attributes["error.type"] == "LOSS_NOT_FINITE"
    assert spoiled.attributes["tensorflow.error.text"] == "the loss is nan: TerminateOnNaN ends the training"
    assert spoiled.attributes["tensorflow.failure.spoiled"]
    roots = [span for span in capture.spans("step") if span.span_id == spoiled.parent_id]
    # It counts: its root bears the id that every worker knows.
    assert [root.span_id for root in roots] == [f"{ids.span_id('test', 'step', 3, 'root'):016x}"]
    # Every kernel was spoiled, and the slots of the optimizer.
    assert {one["group"] for one in tensors(spoiled).values() if one["nan"]} == {"variable", "optimizer"}
    assert capture.spans("epoch")[0].status.get("code") is None


def test_what_keras_runs_eagerly(capture: Capture) -> None:
    model = compiled(keras, run_eagerly=True)

    class Spoiled(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return tf.debugging.check_numerics(x / 0.0, "spoiled")

    model.add(Spoiled())
    with pytest.raises(tf.errors.InvalidArgumentError):
        model.fit(np.ones([4, 2], "float32"), np.ones([4, 1], "float32"), verbose=0)
    (failed,) = capture.spans("train_step")
    assert failed.attributes["tensorflow.error.op"] == "CheckNumerics"
    assert len(tensors(failed, "variable")) == 4


# -- TensorFlow 1 ----------------------------------------------------------------------


@pytest.mark.parametrize("resources", [True, False], ids=["resource", "reference"])
def test_a_session(capture: Capture, resources: bool) -> None:
    with tf.Graph().as_default() as graph:
        weight = v1.get_variable("weight", [2], initializer=v1.ones_initializer(), use_resource=resources)
        x = v1.placeholder(tf.float32, [2], name="x")
        loss = tf.reduce_sum(tf.square(tf.debugging.check_numerics(weight * x, "spoiled")))
        train = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        with v1.Session() as running:
            running.run(v1.global_variables_initializer())
            graph.finalize()
            running.run(train, {x: GOOD[0]})
            with pytest.raises(tf.errors.InvalidArgumentError) as caught:
                running.run(train, feed_dict={x: BAD[1]})
    assert caught.value.op.type == "CheckNumerics"
    _, failed = capture.spans("train_step")
    assert failed.attributes["tensorflow.error.op"] == "CheckNumerics"
    kept = tensors(failed)
    assert {name: one["group"] for name, one in kept.items()} == {
        "x": "batch",
        "weight": "variable",
        "weight/Momentum": "state",
    }
    assert kept["x"]["inf"] == 1
    assert kept["weight"]["max"] == pytest.approx(0.8)
