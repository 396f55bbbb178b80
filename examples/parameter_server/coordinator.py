"""The coordinator of a ParameterServerStrategy: the only process of the cluster that knows of otel-tf.

It schedules the steps; the workers run them, each on its own and as fast as it can. Started by run.sh, or
on a real cluster by whatever sets ``TF_CONFIG`` there.
"""

from __future__ import annotations

import tensorflow as tf

import otel_tf

STEPS = 200


def main() -> None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    # Before the coordinator and the variables are made: the steps of all workers are stamped from here.
    handle = otel_tf.instrument(strategy)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    with strategy.scope():
        weight = tf.Variable(tf.zeros([8, 1]), name="weight")
        # Where the spans have their global steps from, and what staleness is measured by.
        iterations = tf.Variable(0, dtype=tf.int64, trainable=False, name="iterations")

    def dataset() -> tf.data.Dataset:
        x = tf.random.stateless_normal([1024, 8], seed=[0, 1])
        y = tf.reduce_sum(x, axis=1, keepdims=True)
        return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1024).repeat().batch(32)

    @tf.function
    def train_step(iterator: tf.data.Iterator) -> tf.Tensor:
        x, y = next(iterator)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ weight - y))
        weight.assign_sub(0.02 * tape.gradient(loss, weight))
        iterations.assign_add(1)
        return loss

    iterator = iter(coordinator.create_per_worker_dataset(dataset))
    losses = [coordinator.schedule(train_step, args=(iterator,)) for _ in range(STEPS)]
    coordinator.join()
    print(f"{STEPS} steps: loss {losses[0].fetch():.4f} -> {losses[-1].fetch():.4f}", flush=True)
    print(f"run directory: {handle.run_dir}", flush=True)


if __name__ == "__main__":
    main()
