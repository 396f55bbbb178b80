"""Stamping a scheduled tf.function with its worker's own clock, inside the graph.

The function that a closure runs is wrapped in an outer one: a timestamp, the user's function, a second
timestamp once its outputs are there; both go into a queue that lives on the worker and is fetched now
and then. The user's function is traced once, not again, its outputs pass through unchanged, and no
argument is added: one more remote tensor per step would cost a quarter of a short step.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import concrete_function as concrete_functions
from tensorflow.python.framework import ops

__all__ = ["RING_CAPACITY", "fetch", "name_of", "ring_name", "stamped"]

#: Steps that a worker's queue holds until they are fetched; the oldest go first when it is full.
RING_CAPACITY = 8192

_ORIGINAL_NAME = re.compile(r"^__inference_(.*)_\d+$")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def name_of(function: Any) -> str:
    """Returns the name that the user gave a `tf.function` or ConcreteFunction."""
    if isinstance(function, concrete_functions.ConcreteFunction):
        return _ORIGINAL_NAME.sub(r"\1", function.name.decode())
    return getattr(function.python_function, "__name__", "function")


def ring_name(incarnation: str) -> str:
    """Returns the queue's shared name on every worker; queues may outlive the coordinator that made them."""
    return f"otel_tf/{incarnation}"


def _ring(name: str) -> Any:
    # Found by its shared name from every function that runs on the same worker; needs no initialiser.
    return tf.raw_ops.FIFOQueueV2(
        component_types=[tf.float64], shapes=[[2]], capacity=RING_CAPACITY, shared_name=name
    )


def _push(name: str, entry: tf.Tensor) -> tf.Operation:
    ring = _ring(name)
    # A full queue would block the training step for ever.
    full = tf.raw_ops.QueueSizeV2(handle=ring) >= RING_CAPACITY

    def drop_oldest() -> tf.Tensor:
        with tf.control_dependencies(tf.raw_ops.QueueDequeueV2(handle=ring, component_types=[tf.float64])):
            return tf.constant(1)

    made_room = tf.cond(full, drop_oldest, lambda: tf.constant(0))
    with tf.control_dependencies([made_room]):
        return tf.raw_ops.QueueEnqueueV2(handle=ring, components=[entry])


def stamped(function: Any, ring: str) -> Any:
    """Returns a tf.function that runs ``function`` and leaves (start, end) in the worker's queue ``ring``.

    The stamps are float64 seconds of the worker's wall clock, in steps of about 0.24 µs.

    Args:
        function: A `tf.function`, whose signature, input signature and retracing rules are kept, or a
            ConcreteFunction.
        ring: Shared name of the queue.
    """

    def stamped_step(*args: Any, **kwargs: Any) -> Any:
        graph = ops.get_default_graph()
        with tf.device("/device:CPU:0"):
            start = tf.timestamp()
        before = len(graph.get_operations())
        outputs = function(*args, **kwargs)
        calls = [op for op in graph.get_operations()[before:] if op.type in _CALLS]
        # The call itself, not only its outputs: a function may return nothing, and its writes on the
        # parameter servers belong to the step.
        done = [*calls, *(x for x in tf.nest.flatten(outputs, expand_composites=True) if tf.is_tensor(x))]
        with tf.device("/device:CPU:0"):
            with tf.control_dependencies(done):
                end = tf.timestamp()
            _push(ring, tf.stack([start, end]))
        return outputs

    # The name shows in errors and profiles, as __inference_<name>_<n>.
    stamped_step.__name__ = name_of(function)
    if isinstance(function, concrete_functions.ConcreteFunction):
        return tf.function(stamped_step, autograph=False)
    user = function.python_function
    stamped_step.__signature__ = inspect.signature(user)  # type: ignore[attr-defined]
    return tf.function(
        stamped_step,
        input_signature=function.input_signature,
        autograph=False,
        reduce_retracing=function._reduce_retracing,
    )


def fetch(ring: str) -> Any:
    """Returns a tf.function that empties the queue ``ring`` of the worker it runs on: float64 [n, 2]."""

    @tf.function(autograph=False, input_signature=())
    def otel_tf_fetch_stamps() -> tf.Tensor:
        with tf.device("/device:CPU:0"):
            queue = _ring(ring)
            count = tf.raw_ops.QueueSizeV2(handle=queue)
            (entries,) = tf.raw_ops.QueueDequeueManyV2(handle=queue, n=count, component_types=[tf.float64])
        return entries

    return otel_tf_fetch_stamps
