"""A worker or a parameter server: nothing of otel-tf is in it. Which of them it is, ``TF_CONFIG`` says."""

from __future__ import annotations

import tensorflow as tf


def main() -> None:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id, protocol="grpc"
    )
    print(f"{resolver.task_type}:{resolver.task_id} serves at {server.target}", flush=True)
    server.join()  # Never returns: whoever started the server ends it, as run.sh does.


if __name__ == "__main__":
    main()
