"""A worker of MultiWorkerMirroredStrategy for the tests: every kind of collective, and what the user sees.

Prints one JSON object a line, the answers last. Uses no random numbers of its own, so that two runs can be
compared to the bit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import traceback
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import collective_all_reduce_strategy, cross_device_utils
from tensorflow.python.eager.polymorphic_function import concrete_function

import otel_tf

PATCHED = [
    (cross_device_utils.CollectiveReplicaLauncher, "all_reduce"),
    (cross_device_utils.CollectiveReplicaLauncher, "_all_gather"),
    (collective_all_reduce_strategy.CollectiveAllReduceExtended, "_initialize_strategy"),
    (concrete_function.ConcreteFunction, "_call_flat"),
]


def originals() -> list[Any]:
    return [vars(owner)[name] for owner, name in PATCHED]


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


class Job:
    """A model with a dense and a sparse gradient, trained by a custom loop."""

    def __init__(self, strategy: Any, slow_ms: float) -> None:
        self.strategy = strategy
        self.slow_s = slow_ms / 1000
        self.tracings = 0
        with strategy.scope():
            self.weight = tf.Variable([[0.5], [-0.25]], name="weight")
            self.table = tf.Variable(tf.ones([8, 2]), name="table")
            self.iterations = tf.Variable(
                40,
                dtype=tf.int64,
                trainable=False,
                name="iterations",
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )

    def replica_step(self, x: Any, y: Any) -> Any:
        context = tf.distribute.get_replica_context()
        # A random op: its seed must not depend on what we add to the graph.
        x = tf.nn.dropout(x, 0.25) + tf.random.uniform(tf.shape(x), -0.01, 0.01)
        with tf.GradientTape() as tape:
            row = tf.cast(tf.clip_by_value(x[:, 0], 0.0, 1.0) * 7.0, tf.int64)
            rows = tf.nn.embedding_lookup(self.table, row)
            loss = tf.reduce_mean(tf.square((x + rows) @ self.weight - y))
        dense, sparse = tape.gradient(loss, [self.weight, self.table])
        with tf.control_dependencies([dense, self.busy()]):
            dense = tf.identity(dense)
        dense, sparse = context.all_reduce("SUM", [dense, sparse])
        self.weight.assign_sub(0.05 * dense)
        self.table.scatter_sub(tf.IndexedSlices(0.05 * sparse.values, sparse.indices))
        self.iterations.assign_add(1)
        return context.all_reduce("SUM", loss)

    def busy(self) -> Any:
        """Keeps a slow worker busy, as a slow machine would be."""
        if not self.slow_s:
            return tf.constant(0)
        until = tf.timestamp() + self.slow_s
        return tf.while_loop(lambda _: tf.timestamp() < until, lambda n: (n + 1,), [0])[0]

    @tf.function
    def train_step(self, x: Any, y: Any) -> Any:
        self.tracings += 1
        return self.strategy.run(self.replica_step, args=(x, y))

    @tf.function
    def gather(self, x: Any) -> Any:
        return self.strategy.gather(self.strategy.run(lambda: x), axis=0)

    def traced_anew(self, x: Any, y: Any, **how: Any) -> Any:
        return tf.function(self.train_step.python_function, **how).get_concrete_function(x, y)


def stamps_in(concrete: Any) -> int:
    return sum(op.type == "Timestamp" for op in concrete.graph.get_operations())


def data(index: int) -> tuple[Any, Any]:
    x = np.arange(32, dtype="float32").reshape(16, 2) / (32.0 + index)
    return tf.constant(x), tf.constant(x.sum(axis=1, keepdims=True))


def fit(strategy: Any, callbacks: list[Any]) -> dict[str, Any]:
    """tf_keras: the optimizer aggregates gradients, the metrics reduce themselves."""
    import tf_keras

    with strategy.scope():
        layers = [tf_keras.layers.Dense(n, kernel_initializer="ones") for n in (4, 1)]
        model = tf_keras.Sequential(layers)
        model.compile(tf_keras.optimizers.SGD(0.01), "mse", metrics=["mae"])
    x, y = data(0)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    history = model.fit(
        dataset.repeat(),
        epochs=2,
        steps_per_epoch=5,
        verbose=0,
        validation_data=dataset,
        validation_steps=1,
        callbacks=callbacks,
    )
    answers = {name: [float(value).hex() for value in values] for name, values in history.history.items()}
    answers["evaluate"] = [float(value).hex() for value in model.evaluate(dataset, verbose=0)]
    answers["predict"] = [float(value).hex() for value in model.predict(dataset, verbose=0).ravel()]
    return answers


def fit_of_keras_3(strategy: Any) -> str:
    """Returns what Keras 3 says."""
    import keras

    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile("sgd", "mse")
    try:
        model.fit(*data(0), verbose=0)
    except Exception as error:
        return type(error).__name__
    return "no error"


def again(job: Job, x: Any, y: Any) -> None:
    """Further instrumentations of the same processes: with the stamps turned off, and of an old graph."""
    with otel_tf.instrument(job.strategy, collective_stamps=False) as handle:
        step = job.traced_anew(x, y)
        step(x, y)
        handle.flush()
        say(run_id=handle.run_id, run_dir=str(handle.run_dir), stamps=stamps_in(step))
    with otel_tf.instrument(job.strategy) as handle:
        job.train_step(x, y)
        handle.flush()
        say(run_id=handle.run_id, run_dir=str(handle.run_dir))


def with_devices(count: int) -> None:
    """Gives each worker several devices, as one with several GPUs has them."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)

    def local_devices(_: Any, __: Any, worker: str) -> tuple[tuple[str, ...], str]:
        return tuple(f"{worker}/device:CPU:{number}" for number in range(count)), "CPU"

    extended = collective_all_reduce_strategy.CollectiveAllReduceExtended
    extended._initialize_local_devices = local_devices


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bare", action="store_true", help="without us")
    parser.add_argument("--early", action="store_true", help="instrument before there is a strategy")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--slow-ms", type=float, default=0.0, help="by how much one worker is slower")
    parser.add_argument("--slow-worker", type=int, default=0, help="which one")
    parser.add_argument("--leave", action="store_true", help="end right after the last step")
    parser.add_argument("--devices", type=int, default=1, help="of each worker")
    parser.add_argument("--fit", action="store_true", help="train with tf_keras as well")
    parser.add_argument("--die-at", type=int, default=-1, help="step before which a worker is killed")
    parser.add_argument("--dies", type=int, default=1, help="which one; 0 is the chief")
    args = parser.parse_args()
    config = json.loads(os.environ["TF_CONFIG"])
    index = config["task"]["index"]
    random.seed(7)
    np.random.seed(7)
    tf.random.set_seed(7)

    if args.devices > 1:
        with_devices(args.devices)
    before = originals()
    handle = otel_tf.instrument() if args.early and not args.bare else None
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    if handle is None and not args.bare:
        handle = otel_tf.instrument(strategy)
    job = Job(strategy, args.slow_ms if index == args.slow_worker else 0.0)
    x, y = data(index)
    losses = []
    for number in range(args.steps):
        if number == args.die_at and index == args.dies and handle is not None:
            handle.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            losses.append(job.train_step(x, y))
        except tf.errors.OpError as error:
            frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
            say(
                step=number,
                error=type(error).__name__,
                message=error.message,
                ours=[name for name in frames if "otel_tf" in name],
            )
            raise
    if args.leave:
        return
    answers: dict[str, Any] = {
        "losses": [float(loss).hex() for loss in losses],
        "weight": [float(w).hex() for w in job.weight.numpy().ravel()],
        "table": [float(w).hex() for w in job.table.numpy().ravel()],
        "iterations": int(job.iterations.numpy()),
        "tracings": job.tracings,
        "gathered": job.gather(x).shape.as_list(),
    }
    if args.fit:
        answers["fit"] = fit(strategy, [] if handle is None else [otel_tf.keras_callback()])
        answers["keras_3"] = fit_of_keras_3(strategy)
    answers["random"] = [random.random(), float(np.random.random())]
    if handle is not None:
        job.traced_anew(x, y, jit_compile=True)
        jitted = job.traced_anew(x, y, jit_compile=True)
        handle.flush()
        say(
            run_id=handle.run_id,
            run_dir=str(handle.run_dir),
            stamps=stamps_in(job.train_step.get_concrete_function(x, y)),
            jitted_stamps=stamps_in(jitted),
        )
        handle.uninstrument()
        handle.uninstrument()
    answers["restored"] = [now is then for now, then in zip(originals(), before, strict=True)]
    answers["after_uninstrument"] = float(job.train_step(x, y)).hex()
    if handle is not None and args.fit:
        again(job, x, y)
    say(**answers)


if __name__ == "__main__":
    main()
