"""One worker of a MultiWorkerMirroredStrategy. Every worker runs this; ``TF_CONFIG`` says which it is.

Step n of all workers becomes one trace, with each worker's waits in the collectives. The workers agree on
the name of the run by themselves.
"""

from __future__ import annotations

import tensorflow as tf

import otel_tf

STEPS = 60


def main() -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    # In every worker, before the first step is traced: the collectives are stamped inside its graph.
    handle = otel_tf.instrument(strategy)
    worker = strategy.cluster_resolver.task_id

    with strategy.scope():
        weight = tf.Variable(tf.zeros([8, 1]), name="weight")
        iterations = tf.Variable(
            0,
            dtype=tf.int64,
            trainable=False,
            name="iterations",
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    def replica_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        replica = tf.distribute.get_replica_context()
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ weight - y))
        # Here the workers wait for one another.
        gradient = replica.all_reduce("MEAN", tape.gradient(loss, weight))
        weight.assign_sub(0.1 * gradient)
        iterations.assign_add(1)
        return replica.all_reduce("MEAN", loss)

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return strategy.run(replica_step, args=(x, y))

    for step in range(1, STEPS + 1):
        x = tf.random.stateless_normal([32, 8], seed=[worker, step])
        y = tf.reduce_sum(x, axis=1, keepdims=True)
        loss = train_step(x, y)
        if worker == 0 and step % 20 == 0:
            print(f"step {step}: loss {loss:.6f}", flush=True)
    if worker == 0:
        print(f"run directory: {handle.run_dir}", flush=True)


if __name__ == "__main__":
    main()
