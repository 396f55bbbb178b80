"""A coordinator program for the tests: closures that fail, each in its own way, and a watched tensor.

Run by `otel_tf.demo.cluster.Cluster` as the coordinator of two workers and one parameter server; prints
one JSON object.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import tensorflow as tf

import otel_tf

STEPS = 12
SPOILED_STEP = 6


def dataset() -> Any:
    x = np.arange(64, dtype="float32").reshape(32, 2) / 64.0
    return tf.data.Dataset.from_tensor_slices(x).repeat().batch(8)


def main() -> None:
    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    handle = otel_tf.instrument(strategy)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weight = tf.Variable([[0.5], [-0.25]], name="weight")
        slot = tf.Variable(tf.zeros([2, 1]), trainable=False, name="weight/momentum")
        count = tf.Variable(0, dtype=tf.int64, trainable=False, name="iterations")
    iterator = iter(coordinator.create_per_worker_dataset(dataset))

    def train(iterator: Any, check: Any) -> Any:
        x = next(iterator)
        loss = otel_tf.watch("loss", tf.reduce_mean(tf.square(x @ weight - 1.0)), keep=4)
        with tf.control_dependencies([check(x, loss)]):
            slot.assign(0.9 * slot + 0.1)
            weight.assign_sub(0.01 * slot)
            count.assign_add(1)
        return loss

    @tf.function
    def train_step(iterator: Any) -> Any:
        return train(iterator, lambda x, loss: tf.no_op())

    @tf.function
    def asserting(iterator: Any) -> Any:
        return train(iterator, lambda x, loss: tf.debugging.assert_less(loss, 0.0, message="loss too large"))

    @tf.function
    def too_large(iterator: Any) -> Any:
        def check(x: Any, _: Any) -> Any:
            return tf.random.uniform(tf.cast(tf.shape(x)[:1], tf.int64) * 2**40)

        return train(iterator, check)

    @tf.function
    def spoiling(iterator: Any) -> Any:
        x = next(iterator)
        loss = otel_tf.watch("spoiled", tf.reduce_mean(x) / 0.0)
        count.assign_add(1)
        weight.assign_sub(0.0 * weight)
        return loss

    said: dict[str, Any] = {}

    def outcome() -> Any:
        try:
            coordinator.join()
        except tf.errors.OpError as error:
            return [type(error).__name__, error.message]
        return None

    for _ in range(STEPS):
        coordinator.schedule(train_step, args=(iterator,))
    said["good"] = outcome()
    said["watched"] = {
        name: [[one.run, one.device] for one in found] for name, found in otel_tf.watched().items()
    }
    before = [weight.numpy().tolist(), slot.numpy().tolist()]
    for name, function in {"assert": asserting, "oom": too_large}.items():
        coordinator.schedule(function, args=(iterator,))
        said[name] = outcome()
    said["untouched"] = [weight.numpy().tolist(), slot.numpy().tolist()] == before
    coordinator.schedule(spoiling, args=(iterator,))
    said["spoiled"] = outcome()
    coordinator.schedule(train_step, args=(iterator,))
    said["after"] = outcome()
    compiled = tf.function(lambda x: otel_tf.watch("compiled", x) * 2.0, jit_compile=True)
    coordinator.schedule(tf.function(lambda: compiled(tf.constant(2.0))))
    said["compiled"] = outcome()
    handle.flush(10.0)
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
