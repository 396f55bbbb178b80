"""One of two synchronous workers: a loop with two collectives a step; worker 1 is now and then late."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import tensorflow as tf

import otel_tf


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--late", action="store_true")
    args = parser.parse_args()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    handle = otel_tf.instrument(strategy)
    with strategy.scope():
        first = tf.Variable(tf.ones([32, 32]), name="first")
        second = tf.Variable(tf.ones([32, 32]), name="second")
        iterations = tf.Variable(0, dtype=tf.int64, trainable=False, name="iterations")

    @tf.function
    def train_step(x: Any) -> Any:
        def replica(x: Any) -> Any:
            with tf.GradientTape() as tape:
                with otel_tf.trace("attention"):
                    y = tf.nn.relu(x @ first)
                loss = tf.reduce_mean(tf.square(y @ second - 1.0))
            gradients = tape.gradient(loss, [first, second])
            gradients = tf.distribute.get_replica_context().all_reduce("sum", gradients)
            first.assign_sub(0.01 * gradients[0])
            second.assign_sub(0.01 * gradients[1])
            iterations.assign_add(1)
            return loss

        return strategy.reduce("mean", strategy.run(replica, args=(x,)), axis=None)

    x = tf.ones([8, 32])
    for number in range(args.steps):
        if args.late and number % 2:
            time.sleep(0.004)
        train_step(x)
    assert handle.flush(20)
    print(json.dumps({"run_dir": str(handle.run_dir)}), flush=True)


if __name__ == "__main__":
    main()
