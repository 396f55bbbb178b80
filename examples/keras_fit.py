"""Keras 3's own `fit`, and one line of otel-tf: every batch, epoch and evaluation becomes a span."""

from __future__ import annotations

import keras
import numpy as np

import otel_tf

# The one line. Anywhere before `fit`; the settings are in OTEL_* variables, see `otel-tf config`.
otel_tf.instrument()


def main() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1024, 16)).astype("float32")
    y = (x.sum(axis=1) > 0).astype("float32")

    model = keras.Sequential(
        [
            keras.Input([16]),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    model.fit(x[:896], y[:896], batch_size=32, epochs=3, validation_data=(x[896:], y[896:]), verbose=2)


if __name__ == "__main__":
    main()
