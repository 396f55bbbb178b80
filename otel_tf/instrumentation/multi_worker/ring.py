"""Where a graph leaves the times of its collectives, until a thread of this process fetches them.

A queue in the process's own memory: it needs no initialiser, is found by its name from every graph, and a
failed step leaves it as it is. It has no capacity to run full against; a graph looks how long it is and
leaves an entry out rather than wait.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.framework import ops

__all__ = ["MOST_ENTRIES", "fetch", "push", "stamp"]

_NAME = "otel_tf/collectives"
#: Entries that may wait; more are left out. Fetched several times a second.
MOST_ENTRIES = 65_536
#: Start and end in s, group key, instance key: whole numbers up to 2**53 are exact.
_WIDTH = 4


def _ring() -> tf.Tensor:
    return tf.raw_ops.FIFOQueueV2(
        component_types=[tf.float64], shapes=[[_WIDTH]], capacity=-1, shared_name=_NAME
    )


def stamp(after: list[tf.Tensor | tf.Operation]) -> tf.Tensor:
    """Returns the wall clock of this process's CPU after some ops of the same graph: float64 seconds."""
    with ops.device("/device:CPU:0"), ops.control_dependencies(after):
        return tf.timestamp()


def push(start: tf.Tensor, end: tf.Tensor, group_key: tf.Tensor, instance_key: tf.Tensor) -> None:
    """Adds an op to the graph that leaves an entry; it never waits.

    Args:
        start: From `stamp`.
        end: From `stamp`.
        group_key: int32 [].
        instance_key: int32 [].
    """
    with ops.device("/device:CPU:0"):
        keys = [tf.cast(key, tf.float64) for key in (group_key, instance_key)]
        entry = tf.stack([start, end, *keys])[tf.newaxis]
        ring = _ring()
        # To enqueue no entry is no effect: there is no need for a branch.
        room = tf.cast(tf.raw_ops.QueueSizeV2(handle=ring) < MOST_ENTRIES, tf.int32)
        entries = tf.raw_ops.Slice(input=entry, begin=[0, 0], size=tf.stack([room, _WIDTH]))
        tf.raw_ops.QueueEnqueueManyV2(handle=ring, components=[entries])


def fetch() -> npt.NDArray[np.float64]:
    """Empties the ring of this process, outside of any graph: float64 [n, 4], `push`'s arguments.

    Raises:
        tf.errors.OpError: TensorFlow is going down.
    """
    with ops.device("/device:CPU:0"):
        ring = _ring()
        count = tf.raw_ops.QueueSizeV2(handle=ring)
        # Nobody else takes from the queue: as many are there.
        (entries,) = tf.raw_ops.QueueDequeueManyV2(handle=ring, n=count, component_types=[tf.float64])
    found: npt.NDArray[np.float64] = entries.numpy()
    return found
