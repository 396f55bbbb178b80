"""A coordinator program for the tests: tf_keras's `fit` under ParameterServerStrategy.

Run by `otel_tf.demo.cluster.Cluster` as the coordinator of two workers and one parameter server; prints
one JSON object.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras

import otel_tf


def dataset(_: Any = None) -> Any:
    x = np.arange(64, dtype="float32").reshape(32, 2) / 64.0
    y = x.sum(axis=1, keepdims=True)
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(8)


def spoiled(_: Any = None) -> Any:
    return dataset().map(lambda x, y: (tf.debugging.check_numerics(x / 0.0, "spoiled"), y))


def failure(run: Any) -> str:
    try:
        run()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", required=True)
    args = parser.parse_args()
    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    handle = otel_tf.instrument(strategy)

    def model(kind: Any, **options: Any) -> Any:
        with strategy.scope():
            made = kind.Sequential([kind.layers.Dense(1)])
            made.compile("sgd", "mse", **options)
        return made

    creator = tf_keras.utils.experimental.DatasetCreator
    trained = model(tf_keras)
    history = trained.fit(
        creator(dataset),
        epochs=2,
        steps_per_epoch=10,
        verbose=0,
        validation_data=dataset(),
        validation_steps=2,
        # Which Keras does not refuse here, and which does nothing beside `instrument`.
        callbacks=[otel_tf.keras_callback()],
    )
    trained.save_weights(args.checkpoint)
    trained.fit(creator(dataset), epochs=3, initial_epoch=2, steps_per_epoch=5, verbose=0)
    trained.load_weights(args.checkpoint)
    trained.fit(creator(dataset), epochs=4, initial_epoch=3, steps_per_epoch=3, verbose=0)
    trained.compile("sgd", "mse", steps_per_execution=3)
    trained.fit(creator(dataset), epochs=1, steps_per_epoch=7, verbose=0)
    answers = {
        "losses": len(history.history["val_loss"]),
        "iterations": int(trained.optimizer.iterations.numpy()),
        "failure": failure(lambda: trained.fit(creator(spoiled), steps_per_epoch=7, verbose=0)),
        "keras_3": failure(lambda: model(keras).fit(np.ones([8, 2]), np.ones([8, 1]), verbose=0)),
        "patience": handle.flush(10.0),
    }
    print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    main()
