"""A program for the tests: its worker runs an op of its own, which fails. Prints nothing.

The worker is a server in this very process, so that the op is there without further ado.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

import tensorflow as tf

import otel_tf


def main() -> None:
    library = tf.load_op_library(sys.argv[1])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    cluster = tf.train.ClusterSpec({"worker": [address]})
    server = tf.distribute.Server(cluster, job_name="worker", task_index=0)
    tf.config.experimental_connect_to_cluster(cluster, job_name="chief")
    handle = otel_tf.instrument()
    with tf.device("/job:worker/task:0"):
        weight = tf.Variable(1.0)

    @tf.function
    def train_step(x: Any) -> Any:
        with tf.device("/job:worker/task:0"):
            y = library.otel_tf_fail_with(x=x * weight, code=9, payload="from afar")
            weight.assign_sub(y)
        return y

    try:
        train_step(tf.constant(1.0))
    except tf.errors.FailedPreconditionError:
        handle.flush(10.0)
    del server


if __name__ == "__main__":
    main()
