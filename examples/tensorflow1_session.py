"""A TensorFlow 1 program: a graph, a monitored session, and one line of otel-tf."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

import otel_tf

STEPS = 100


def main() -> None:
    # Before the session is made. In a cluster: in every worker, and the same OTEL_TF_RUN_ID for all of them.
    handle = otel_tf.instrument()

    with tf.Graph().as_default():
        tf.set_random_seed(0)
        # What the spans have their step numbers from.
        global_step = tf.train.get_or_create_global_step()
        x = tf.random.normal([32, 8])
        y = tf.reduce_sum(x, axis=1, keepdims=True)
        weight = tf.get_variable("weight", [8, 1], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(x @ weight - y))
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=global_step)

        # Those who would rather pass a hook: hooks=[..., otel_tf.session_run_hook()] instead of `instrument`.
        hooks = [tf.train.StopAtStepHook(last_step=STEPS)]
        with tf.train.MonitoredTrainingSession(hooks=hooks) as session:
            while not session.should_stop():
                _, last, step = session.run([train_op, loss, global_step])
                if step % 20 == 0:
                    print(f"step {step}: loss {last:.5f}", flush=True)
    print(f"run directory: {handle.run_dir}", flush=True)


if __name__ == "__main__":
    main()
