"""A coordinator program for the tests: every kind of closure, and what the user sees of us.

Run by `otel_tf.demo.cluster.Cluster` as the coordinator of two workers and one parameter server; prints
one JSON object. Uses no random numbers of its own, so that two runs can be compared to the bit.
"""

from __future__ import annotations

import argparse
import json
import random
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.eager.polymorphic_function import polymorphic_function

import otel_tf

PATCHED = [
    (cluster_coordinator.Closure, "__init__"),
    (cluster_coordinator.Closure, "execute_on"),
    (cluster_coordinator.Closure, "mark_cancelled"),
    (cluster_coordinator.Worker, "_process_closure"),
    (cluster_coordinator._CoordinatedClosureQueue, "put_back"),
    (cluster_coordinator._CoordinatedClosureQueue, "mark_failed"),
    (polymorphic_function.Function, "__call__"),
]


def originals() -> list[Any]:
    return [vars(owner)[name] for owner, name in PATCHED]


class Job:
    """A linear model on the parameter server and the functions that are scheduled."""

    def __init__(self, strategy: Any) -> None:
        self.tracings = 0
        with strategy.scope():
            self.weight = tf.Variable([[0.5], [-0.25]], name="weight")
            self.iterations = tf.Variable(40, dtype=tf.int64, trainable=False, name="iterations")
            self.seen = tf.Variable(0.0, trainable=False, name="metric/seen")

        @tf.function(reduce_retracing=True)
        def train_step(iterator: Any) -> dict[str, Any]:
            self.tracings += 1
            x, y = next(iterator)
            # A random op: its seed must not depend on whether the function is wrapped.
            x += tf.random.uniform(tf.shape(x), -0.01, 0.01)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(x @ self.weight - y))
            self.weight.assign_sub(0.05 * tape.gradient(loss, self.weight))
            self.iterations.assign_add(1)
            return {"loss": loss, "pair": (loss, tf.shape(x))}

        @tf.function
        def evaluate(iterator: Any) -> None:
            x, y = next(iterator)
            self.seen.assign_add(tf.reduce_mean(tf.square(x @ self.weight - y)))

        @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([])])
        def signed(x: Any, scale: Any) -> Any:
            return tf.reduce_sum(x) * scale

        @tf.function
        def failing(iterator: Any) -> Any:
            x, _ = next(iterator)
            tf.debugging.assert_less(tf.reduce_max(x), -1.0, message="too large on purpose")
            self.weight.assign_sub(tf.zeros_like(self.weight))
            return x

        self.train_step, self.evaluate, self.signed, self.failing = train_step, evaluate, signed, failing


def dataset() -> Any:
    x = np.arange(64, dtype="float32").reshape(32, 2) / 64.0
    y = x.sum(axis=1, keepdims=True)
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(8)


def outcome(coordinator: Any) -> str:
    try:
        coordinator.join()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bare", action="store_true", help="without us")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    random.seed(7)
    np.random.seed(7)
    tf.random.set_seed(7)

    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    before = originals()
    handle = None if args.bare else otel_tf.instrument(strategy)
    if handle is not None:
        assert otel_tf.instrument(strategy) is handle, "a second call returns the first handle"
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    job = Job(strategy)
    iterator = iter(coordinator.create_per_worker_dataset(dataset))

    losses = [coordinator.schedule(job.train_step, args=(iterator,)) for _ in range(args.steps)]
    coordinator.join()
    answers: dict[str, Any] = {
        "losses": [float(loss.fetch()["loss"]).hex() for loss in losses],
        "pair": losses[0].fetch()["pair"][1].tolist(),
        "weight": [float(w).hex() for w in job.weight.numpy().ravel()],
        "iterations": int(job.iterations.numpy()),
        "tracings": job.tracings,
    }

    for _ in range(3):
        coordinator.schedule(job.evaluate, args=(iterator,))
    signed = [coordinator.schedule(job.signed, args=(tf.ones([n]), tf.constant(2.0))) for n in (1, 2, 3)]
    concrete = job.signed.get_concrete_function()
    signed.append(coordinator.schedule(concrete, args=(tf.ones([5]), tf.constant(2.0))))
    coordinator.join()
    answers["signed"] = [float(value.fetch()) for value in signed]
    answers["signed_tracings"] = job.signed.experimental_get_tracing_count()

    coordinator.schedule(job.failing, args=(iterator,))
    answers["failure"] = outcome(coordinator)
    coordinator.schedule(job.train_step, args=(iterator,))
    answers["after_failure"] = outcome(coordinator)
    try:
        coordinator.schedule(job.signed, args=(tf.constant("text"), tf.constant(2.0)))
        answers["untraceable"] = "no error"
    except Exception as error:
        answers["untraceable"] = f"{type(error).__name__}: {error}"

    answers["random"] = [random.random(), float(np.random.random())]
    if handle is not None:
        answers["run_dir"] = str(handle.run_dir)
        handle.uninstrument()
        handle.uninstrument()
    answers["restored"] = [now is then for now, then in zip(originals(), before, strict=True)]
    coordinator.schedule(job.evaluate, args=(iterator,))
    answers["after_uninstrument"] = outcome(coordinator)
    print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    main()
