"""A worker of a MultiWorkerMirroredStrategy, as a user would write it; the second one dies."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time

import tensorflow as tf

LAST = 40
logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weight = tf.Variable(1.0)


@tf.function
def train_step() -> tf.Tensor:
    def replica() -> tf.Tensor:
        total = tf.distribute.get_replica_context().all_reduce("sum", tf.ones([4]))
        weight.assign_sub(0.1 * total[0])
        return total[0]

    return strategy.reduce("mean", strategy.run(replica), axis=None)


mine = strategy.cluster_resolver.task_id
for number in range(1, 100_000):
    train_step()
    time.sleep(0.05)
    logging.info("worker %d has done step %d", mine, number)
    if number == LAST and mine == 1:
        sys.stderr.write("the last words of worker 1")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)
