"""Where a graph leaves the times of its collectives, until a thread of this process fetches them.

A queue in the process's own memory: it needs no initialiser, is found by its name from every graph, and a
failed step leaves it as it is. It has no capacity to run full against: a graph looks how long it is, once
a run, and leaves its entries out rather than wait.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.framework import ops

__all__ = ["MOST_ENTRIES", "RingEnd", "can_take", "fetch", "stamp"]

_NAME = "otel_tf/collectives"
#: Entries that may wait; more are left out. Fetched several times a second.
MOST_ENTRIES = 65_536
#: Numbers of an entry: start and end in s, group key, instance key. Whole ones are exact up to 2**53.
_WIDTH = 4


def can_take(graph: Any) -> bool:
    """Returns whether ops of ours can be added to a graph."""
    return getattr(graph, "experimental_acd_manager", None) is not None


def _apart(op: tf.Operation) -> None:
    """Takes an op out of the order in which TensorFlow runs a function's stateful ops.

    That is the order in which they were added. The replicas of one process are added one after the other,
    but wait for each other in their collectives: a stamp of the second that waited for one of the first
    would wait for ever.
    """
    op.graph.experimental_acd_manager.run_independently(op)


def _ring() -> tf.Tensor:
    # Of numbers, not of entries: the fewer ops the better. Those of one op stay together.
    return tf.raw_ops.FIFOQueueV2(component_types=[tf.float64], shapes=[[]], capacity=-1, shared_name=_NAME)


def stamp(after: list[tf.Tensor | tf.Operation]) -> tf.Tensor:
    """Returns the wall clock of this process's CPU after some ops of the same graph: float64 seconds."""
    with ops.device("/device:CPU:0"), ops.control_dependencies(after):
        now = tf.timestamp()
    _apart(now.op)
    return now


class RingEnd:
    """The end of the ring that a graph puts into: ops of the graph that is built when it is made."""

    def __init__(self) -> None:
        with ops.device("/device:CPU:0"):
            self._ring = _ring()
            size = tf.raw_ops.QueueSizeV2(handle=self._ring)
            full = size // (_WIDTH * MOST_ENTRIES)
            #: Where entries are cut off: before their end, or before their beginning.
            self._cut = tf.stack([tf.minimum(full, 1) * _WIDTH])
        _apart(self._ring.op)
        _apart(size.op)

    def push(self, start: tf.Tensor, end: tf.Tensor, group_key: int, instance_key: tf.Tensor) -> None:
        """Adds an op that leaves an entry; it never waits.

        Args:
            start: From `stamp`.
            end: From `stamp`.
            group_key: Key of the group of devices.
            instance_key: int32 [].
        """
        with ops.device("/device:CPU:0"):
            keys = [tf.constant(group_key, tf.float64), tf.cast(instance_key, tf.float64)]
            entry = tf.stack([start, end, *keys])
            # To enqueue no numbers has no effect: there is no need for a branch.
            kept = tf.raw_ops.Slice(input=entry, begin=self._cut, size=[-1])
            _apart(tf.raw_ops.QueueEnqueueManyV2(handle=self._ring, components=[kept]))


def fetch() -> npt.NDArray[np.float64]:
    """Empties the ring of this process, outside of any graph: float64 [n, 4], what was pushed.

    Raises:
        tf.errors.OpError: TensorFlow is going down.
    """
    with ops.device("/device:CPU:0"):
        ring = _ring()
        count = tf.raw_ops.QueueSizeV2(handle=ring)
        # Nobody else takes from the queue: as many are there.
        (numbers,) = tf.raw_ops.QueueDequeueManyV2(handle=ring, n=count, component_types=[tf.float64])
    entries: npt.NDArray[np.float64] = numbers.numpy().reshape(-1, _WIDTH)
    return entries
