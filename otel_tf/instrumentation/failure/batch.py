"""The batch that a graph takes from its iterator, kept until it takes the next one.

Keras's `fit` and closures hand an iterator to their function: the batch exists only inside of the graph, and
when a step fails nobody has it any more. So a graph that takes an element leaves it in variables beside the
iterator, found by name; to assign a tensor there copies nothing. One batch is kept on each device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_util

from otel_tf.instrumentation.failure.call import Named
from otel_tf.instrumentation.failure.nodes import graphs_in
from otel_tf.instrumentation.failure.rows import takes
from otel_tf.instrumentation.watching.ring import can_hold, on_task

__all__ = ["keep", "kept"]

_STEM = "otel_tf/batch"
_SCOPE = "otel_tf"
#: Of one element; a structure of hundreds of features would make for as many variables.
_MOST = 32


def keep(element: Any, incarnation: str) -> Any:
    """Returns an element of an iterator, in whose graph ops are added that keep it.

    The element's tensors stay as they are.

    Args:
        element: A structure, as the iterator gave it while a graph is built.
        incarnation: Tells this process from an earlier one, whose variables a worker may still have.
    """
    graph = ops.get_default_graph()
    if not can_hold(graph) or control_flow_util.GraphOrParentsInXlaContext(graph):
        return element
    parts = tf.nest.flatten(element, expand_composites=True)
    before = len(graph.get_operations())
    with tf.name_scope(_SCOPE):
        done = [
            _kept(part, f"{_STEM}/{incarnation}/{number}") if number < _MOST else part
            for number, part in enumerate(parts)
        ]
        for op in graph.get_operations()[before:]:
            graph.experimental_acd_manager.run_independently(op)
    return tf.nest.pack_sequence_as(element, done, expand_composites=True)


def _kept(part: Any, name: str) -> Any:
    if not tf.is_symbolic_tensor(part) or not takes(part.dtype):
        return part
    with ops.device(part.device or "/device:CPU:0"):
        # Of a type each: another iterator's element may have another one in this place.
        handle = tf.raw_ops.VarHandleOp(
            dtype=part.dtype, shape=tf.TensorShape(None), shared_name=f"{name}/{part.dtype.name}"
        )
        assigned = tf.raw_ops.AssignVariableOp(resource=handle, value=part)
    with ops.device(part.device), ops.control_dependencies([assigned]):
        return tf.identity(part)


def kept(graph: Any, task: str | None) -> Iterator[Named]:
    """Yields what a graph, and the functions it calls, kept of its last batch.

    Args:
        graph: What ran.
        task: A device of the task it ran on; default: this process.
    """
    for each in graphs_in(graph):
        for op in each.get_operations():
            if op.type == "VarHandleOp" and op.get_attr("shared_name").startswith(_STEM.encode()):
                name, dtype = op.get_attr("shared_name").decode(), op.get_attr("dtype")
                device = on_task(task, op.device)
                number = name.split("/")[-2]
                yield Named("batch", f"batch/{number}", _reading(name, dtype, device), device)


def _reading(name: str, dtype: Any, device: str) -> Any:
    def read() -> Any:
        with ops.device(device):
            handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=tf.TensorShape(None), shared_name=name)
            return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)

    return read
