"""A training loop of one's own, with a named region in its graph and a watched loss.

With ``--poison`` one batch has a NaN in it and the program ends with the error that TensorFlow raises, for
`otel-tf incidents` to have something to explain.
"""

from __future__ import annotations

import argparse
import logging

import tensorflow as tf

import otel_tf

STEPS = 100
POISONED_STEP = 60

log = logging.getLogger("custom_loop")


def main() -> None:
    parser = argparse.ArgumentParser(description="A custom training loop on synthetic data.")
    parser.add_argument("--poison", action="store_true", help=f"put a NaN into batch {POISONED_STEP}")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")

    # Before the first step. A strategy, if there is one, is its argument: otel_tf.instrument(strategy).
    handle = otel_tf.instrument()

    hidden = tf.Variable(tf.random.stateless_normal([16, 32], seed=[0, 1]) * 0.3, name="hidden")
    output = tf.Variable(tf.random.stateless_normal([32, 1], seed=[0, 2]) * 0.3, name="output")
    # A counter called `iterations` or `global_step` that the function advances is where the spans have
    # their step numbers from; without one they are counted.
    iterations = tf.Variable(0, dtype=tf.int64, trainable=False, name="iterations")

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            # A name scope in the graph, which costs nothing when it runs. `otel-tf profile` puts the ops
            # that carry it, forward and gradient, below one span.
            with otel_tf.trace("network"):
                logits = tf.nn.relu(x @ hidden) @ output
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=logits))
            # The last summaries of the loss stay where it is computed. They appear on the span of the step
            # that fails, or in which the loss is not finite. Use what `watch` returns.
            loss = otel_tf.watch("loss", loss)
            loss = tf.debugging.check_numerics(loss, "the loss is not finite")
        gradients = tape.gradient(loss, [hidden, output])
        for variable, gradient in zip([hidden, output], gradients, strict=True):
            variable.assign_sub(0.2 * gradient)
        iterations.assign_add(1)
        return loss

    print(f"run directory: {handle.run_dir}", flush=True)
    for step in range(1, STEPS + 1):
        x = tf.random.stateless_normal([64, 16], seed=[1, step])
        y = tf.cast(tf.reduce_sum(x, axis=1, keepdims=True) > 0, tf.float32)
        if args.poison and step == POISONED_STEP:
            x = tf.tensor_scatter_nd_update(x, [[3, 5]], [float("nan")])
        loss = train_step(x, y)
        if step % 20 == 0:
            # Records of Python's logging are kept with the step they belong to: see `otel-tf logs`.
            log.info("step %d: loss %.4f", step, loss)


if __name__ == "__main__":
    main()
