"""One task of an asynchronous TensorFlow 1 cluster: a process per worker around a parameter server.

Its role is in ``TF_CONFIG``. A worker prints each global step it reached, as ``{"step": n}``.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import time
from typing import Any

import tensorflow as tf
from tensorflow.python.training import session_manager

import otel_tf

v1 = tf.compat.v1


def train(target: str, cluster: Any, index: int, args: argparse.Namespace) -> None:
    with tf.Graph().as_default():
        with v1.device(v1.train.replica_device_setter(cluster=cluster)):
            global_step = v1.train.get_or_create_global_step()
            weight = v1.get_variable("weight", [2, 1], initializer=v1.zeros_initializer())
            x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
            loss = tf.reduce_mean(tf.square(x @ weight - 1.0))
            train_op = v1.train.GradientDescentOptimizer(0.01).minimize(loss, global_step=global_step)
        hooks = [otel_tf.session_run_hook()] if args.hook else []
        filters = ["/job:ps", f"/job:worker/task:{index}"]
        with v1.train.MonitoredTrainingSession(
            master=target,
            is_chief=index == 0,
            checkpoint_dir=args.checkpoints,
            save_checkpoint_steps=60,
            save_checkpoint_secs=None,
            save_summaries_steps=None,
            hooks=[v1.train.StopAtStepHook(last_step=args.steps), *hooks],
            config=v1.ConfigProto(device_filters=filters),
        ) as session:
            while not session.should_stop():
                _, step = session.run([train_op, global_step])
                print(json.dumps({"step": int(step)}), flush=True)
                time.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--checkpoints", required=True)
    parser.add_argument("--hook", action="store_true", help="record by a hook, with nothing wrapped")
    args = parser.parse_args()
    config = json.loads(os.environ["TF_CONFIG"])
    kind, index = config["task"]["type"], config["task"]["index"]
    cluster = tf.train.ClusterSpec(config["cluster"])
    server = v1.train.Server(cluster, job_name=kind, task_index=index)
    if kind == "ps":
        server.join()
    # A worker looks for its session every 30 s where nobody says otherwise.
    manager: Any = session_manager.SessionManager
    manager.__init__ = functools.partialmethod(manager.__init__, recovery_wait_secs=0.2)
    if not args.hook:
        otel_tf.instrument()
    train(server.target, cluster, index, args)


if __name__ == "__main__":
    main()
