"""Custom loops under the strategies of one process: a step of all replicas is one, results are the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import otel_tf
from tests.instrumentation.conftest import Capture
from tests.spool import SpooledSpan, spans

STRATEGIES: dict[str, Callable[[], Any]] = {
    "default": tf.distribute.get_strategy,
    "one_device": lambda: tf.distribute.OneDeviceStrategy("CPU:1"),
    # Without collectives: TensorFlow gives those of every new strategy in a process the same keys.
    "mirrored": lambda: tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    ),
}


def values(found: list[SpooledSpan], name: str) -> list[Any]:
    return [span.attributes.get(f"tensorflow.{name}") for span in found]


class Distributed:
    """A model with dropout, trained under a strategy by a loop of the program's own."""

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        with strategy.scope():
            self.weight = tf.Variable(tf.ones([4, 1]))
            self.iterations = tf.Variable(
                0,
                dtype=tf.int64,
                trainable=False,
                name="iterations",
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )

    def replica_step(self, x: Any) -> Any:
        context = tf.distribute.get_replica_context()
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.nn.dropout(x, 0.5) @ self.weight - 1.0))
        gradient = context.all_reduce("SUM", tape.gradient(loss, self.weight))
        self.weight.assign_sub(0.05 * gradient)
        self.iterations.assign_add(1)
        return loss

    def dataset(self) -> Any:
        rows = np.random.default_rng(3).normal(size=(16, 4)).astype("float32")
        return self.strategy.experimental_distribute_dataset(
            tf.data.Dataset.from_tensor_slices(rows).shuffle(16, seed=5).batch(4)
        )


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_step_of_every_replica_is_one(capture: Capture, name: str) -> None:
    job = Distributed(STRATEGIES[name]())

    @tf.function
    def train_step(x: Any) -> Any:
        return job.strategy.run(job.replica_step, args=(x,))

    replica_step = tf.function(job.replica_step)
    for x in job.dataset():
        train_step(x)
    for x in job.dataset():
        # A function of each replica's own, called from eager code.
        job.strategy.run(replica_step, args=(x,))
    steps, roots = capture.spans("train_step"), capture.spans("step")
    assert values(steps, "global_step") == values(steps, "local_step") == list(range(1, 9))
    assert [step.parent_id for step in steps] == [root.span_id for root in roots]
    assert values(steps[:4], "function.name") == ["train_step"] * 4
    assert set(values(steps, "worker")) == {"local:0"}
    assert int(job.iterations.numpy()) == 8


@pytest.mark.parametrize("name", STRATEGIES)
def test_training_is_the_same_to_the_bit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")

    def train() -> list[Any]:
        random.seed(7)
        np.random.seed(7)
        tf.random.set_seed(7)
        job = Distributed(STRATEGIES[name]())

        @tf.function
        def train_step(x: Any) -> Any:
            return job.strategy.reduce("MEAN", job.strategy.run(job.replica_step, args=(x,)), axis=None)

        losses = [float(train_step(x)).hex() for _ in range(3) for x in job.dataset()]
        numbers = [random.random(), float(np.random.random()), float(tf.random.uniform([]))]
        return [losses, job.weight.numpy().tobytes(), numbers]

    bare = train()
    with otel_tf.instrument(run_dir=tmp_path):
        watched = train()
    assert watched == bare
    assert len(spans(tmp_path, "train_step")) == 12


def test_mirrored(capture: Capture) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        weight = tf.Variable(1.0, aggregation=tf.VariableAggregation.MEAN)
        iterations = tf.Variable(
            5,
            dtype=tf.int64,
            trainable=False,
            name="iterations",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(tf.ones([2])).repeat(3))

    @tf.function
    def train_step(x: Any) -> Any:
        def replica(x: Any) -> Any:
            weight.assign_sub(0.1 * tf.reduce_mean(x))
            iterations.assign_add(1)
            return x

        return strategy.run(replica, args=(x,))

    for x in dataset:
        train_step(x)
    steps = capture.spans("train_step")
    assert values(steps, "global_step") == [6, 7, 8]
    assert set(values(steps, "step.stream")) == {None}
    assert int(iterations.numpy()) == 8
