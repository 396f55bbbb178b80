"""A coordinator whose steps know how stale their gradient was, exactly, without a profile.

`version` counts the applies to itself: what a step reads of it is the version it has read. It is applied
under a mutex of its parameter server together with a draw of a ticket, so the ticket is the place of this
apply among all. Prints one JSON object: for each closure [version read, ticket].
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import tensorflow as tf

import otel_tf

PS = "/job:ps/replica:0/task:0/device:CPU:0"


class Job:
    def __init__(self, strategy: Any) -> None:
        with strategy.scope():
            self.first = tf.Variable(tf.ones([32, 32]), name="first")
            self.second = tf.Variable(tf.ones([32, 32]), name="second")
            self.version = tf.Variable(0, dtype=tf.int64, trainable=False, name="version")
            self.spare = tf.Variable(0, dtype=tf.int64, trainable=False, name="spare")
            self.tickets = tf.Variable(0, dtype=tf.int64, trainable=False, name="tickets")
        assert [v.device for v in (self.version, self.tickets)] == [PS, PS]

        @tf.function
        def step(iterator: Any) -> Any:
            x = next(iterator)
            read = self.version.read_value()
            with tf.control_dependencies([read]):
                x = tf.identity(x)
            with tf.GradientTape() as tape:
                with otel_tf.trace("attention"):
                    y = tf.nn.relu(x @ self.first)
                    with otel_tf.trace("softmax"):
                        y = tf.nn.softmax(y)
                loss = tf.reduce_mean(tf.square(y @ self.second - 1.0))
            gradients = tape.gradient(loss, [self.first, self.second])
            self.first.assign_sub(0.01 * gradients[0])
            self.second.assign_sub(0.01 * gradients[1])
            with tf.control_dependencies(gradients):
                ticket = self._apply()
            return read, ticket, loss

        self.step = step

    def _apply(self) -> tf.Tensor:
        with tf.device(PS):
            mutex = tf.raw_ops.MutexV2(shared_name="test/mutex")
            lock = tf.raw_ops.MutexLock(mutex=mutex)
            with tf.control_dependencies([lock]):
                applied = self.version.assign_add(1, read_value=False)
            with tf.control_dependencies([applied]):
                drawn = self.tickets.assign_add(1, read_value=False)
            with tf.control_dependencies([drawn]):
                ticket = self.tickets.read_value()
            with tf.control_dependencies([ticket]):
                tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
        return ticket


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=800)
    args = parser.parse_args()
    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    handle = otel_tf.instrument(strategy)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    job = Job(strategy)
    data = iter(
        coordinator.create_per_worker_dataset(lambda: tf.data.Dataset.from_tensors(tf.ones([8, 32])).repeat())
    )
    results = []
    for _ in range(args.steps):
        results.append(coordinator.schedule(job.step, args=(data,)))
        if len(results) % 50 == 0:
            coordinator.join()
    coordinator.join()
    counted = [[int(value) for value in result.fetch()[:2]] for result in results]
    assert handle.flush(20)
    print(json.dumps({"counted": counted, "run_dir": str(handle.run_dir)}), flush=True)


if __name__ == "__main__":
    main()
