"""A cluster whose closures train until one asserts and one runs out of memory: nothing of ours in it.

Run with ``server`` in the workers and parameter servers, ``chief`` in the coordinator.
"""

from __future__ import annotations

import logging
import sys

import tensorflow as tf

tf.get_logger().setLevel(logging.INFO)


def serve() -> None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    ).join()


def coordinate() -> None:
    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weight = tf.Variable(1.0)

    @tf.function
    def train_step() -> None:
        weight.assign_sub(0.1)

    @tf.function
    def spoil() -> None:
        weight.assign_sub(0.1)
        tf.print("seen by the worker", output_stream=sys.stderr)
        tf.debugging.Assert(weight > 1000.0, ["boom", weight])

    @tf.function
    def ask_too_much() -> None:
        # The shape is only known when it runs.
        weight.assign_sub(tf.reduce_sum(tf.random.uniform([tf.cast(weight, tf.int64) + 2**42])))

    for _ in range(8):
        coordinator.schedule(train_step)
    coordinator.join()
    logging.getLogger("job").warning("now it will fail")
    coordinator.schedule(spoil)
    try:
        coordinator.join()
    except tf.errors.InvalidArgumentError:
        logging.getLogger("job").exception("it failed")
    for _ in range(3):
        coordinator.schedule(train_step)
    coordinator.schedule(ask_too_much)
    try:
        coordinator.join()
    except tf.errors.ResourceExhaustedError:
        logging.getLogger("job").info("no memory")


if __name__ == "__main__":
    serve() if sys.argv[1] == "server" else coordinate()
