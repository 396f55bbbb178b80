"""The training program of `otel-tf demo`: what a user of ParameterServerStrategy writes, and one line.

It lives here because this package is the only one that imports TensorFlow. Every task runs it; its role
is in ``TF_CONFIG``. Workers and parameter servers only serve. The coordinator trains a small network on
the handwritten digits that scikit-learn ships, asynchronously, and prints one JSON object a line:
``{"step": n}`` as it goes, the result last.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import otel_tf

BATCH = 32
HIDDEN = 64
LEARNING_RATE = 0.2


def _serve(resolver: Any) -> None:
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    server.join()


def _train(resolver: Any, steps: int, slow_worker: int, slow_ms: float) -> dict[str, Any]:
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    handle = otel_tf.instrument(strategy)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    digits = load_digits()
    images, test_images, labels, test_labels = train_test_split(
        (digits.data / 16.0).astype("float32"), digits.target.astype("int64"), test_size=0.25, random_state=0
    )

    with strategy.scope():
        weights = [
            tf.Variable(tf.random.stateless_normal([64, HIDDEN], [0, 1]) * 0.1, name="hidden/kernel"),
            tf.Variable(tf.zeros([HIDDEN]), name="hidden/bias"),
            tf.Variable(tf.random.stateless_normal([HIDDEN, 10], [0, 2]) * 0.1, name="logits/kernel"),
            tf.Variable(tf.zeros([10]), name="logits/bias"),
        ]
        iterations = tf.Variable(0, dtype=tf.int64, trainable=False, name="iterations")

    def logits(batch: Any) -> Any:
        hidden = tf.nn.relu(batch @ weights[0] + weights[1])
        return hidden @ weights[2] + weights[3]

    def dataset() -> Any:
        digits = tf.data.Dataset.from_tensor_slices((images, labels))
        return digits.shuffle(len(images)).repeat().batch(BATCH)

    def slow_down() -> Any:
        """Keeps the slow worker busy, as a slow machine would be."""
        index = tf.distribute.coordinator.experimental_get_current_worker_index()
        busy_s = tf.where(tf.equal(index, slow_worker), slow_ms / 1000, 0.0)
        until = tf.timestamp() + tf.cast(busy_s, tf.float64)
        return tf.while_loop(lambda _: tf.timestamp() < until, lambda n: (n + 1,), [0])[0]

    @tf.function
    def train_step(iterator: Any) -> Any:
        batch, target = next(iterator)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=target, logits=logits(batch))
            )
        gradients = tape.gradient(loss, weights)
        with tf.control_dependencies([*gradients, slow_down()]):
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.assign_sub(LEARNING_RATE * gradient)
        iterations.assign_add(1)
        return loss

    iterator = iter(coordinator.create_per_worker_dataset(dataset))
    scheduled = 0
    while scheduled < steps:
        for _ in range(min(100, steps - scheduled)):
            coordinator.schedule(train_step, args=(iterator,))
            scheduled += 1
        coordinator.join()
        print(json.dumps({"step": scheduled}), flush=True)

    predicted = tf.argmax(logits(tf.constant(test_images)), axis=1).numpy()
    handle.flush()
    return {
        "accuracy": float((predicted == test_labels).mean()),
        "iterations": int(iterations.numpy()),
        "closures": scheduled,
        "run_id": handle.run_id,
    }


def main() -> None:
    """Runs the task that ``TF_CONFIG`` names."""
    parser = argparse.ArgumentParser(prog="otel-tf demo (one task)")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--slow-worker", type=int, default=1, help="index of the worker that is slowed")
    parser.add_argument("--slow-ms", type=float, default=10.0, help="by how many ms a step")
    args = parser.parse_args()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        _serve(resolver)
    else:
        print(json.dumps(_train(resolver, args.steps, args.slow_worker, args.slow_ms)), flush=True)


if __name__ == "__main__":
    main()
