"""A ring of a tensor's last summaries, in a variable on the device where the tensor lives.

A variable, not a queue: nothing here can ever wait, whoever else runs the same graph or reads the ring at the
same time. It is found by name, so that a graph captures nothing (it can be saved, and run on any worker) and
any device that runs it has a ring of its own. A graph that XLA compiles captures it instead, for XLA makes
none.

Once a summary has NaN or infinite elements the ring keeps what led there: later ones only replace each other,
in one more row, until somebody has taken note.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_util

from otel_tf.diagnostics.summary import BOUNDS, ROW
from otel_tf.instrumentation.failure.rows import row_of

__all__ = ["Ring", "can_hold", "device_of", "is_compiled", "on_task", "push"]

#: Before the numbers of `ROW`: which run of the watch it was, from 1.
_RUN = 1
#: In the last row: runs, and those of them that had finite elements only or that somebody has taken note of.
_COUNTS = 2
#: Of a single number: when, and the number, from which all else follows.
_OF_NUMBER = 2
#: Keeps our ops' names apart from the user's, which stay as they are.
_SCOPE = "otel_tf"


@dataclasses.dataclass(frozen=True)
class Ring:
    """Name, place and size of a ring.

    Attributes:
        name: Of the watch.
        keep: Summaries that are kept.
        histogram: Whether they have histograms.
        number: Whether the tensor is a single number, whose rows are short: a loss is watched every step, and
            every op of its graph counts.
        device: Where it lives: of the task that runs the graph, unless it names one.
        dtype: The tensor's type.
        shape: The tensor's shape, as far as it is known; for people.
        stem: Name of its variable.
    """

    name: str
    keep: int
    histogram: bool
    number: bool
    device: str
    dtype: str
    shape: tuple[int, ...] | None
    stem: str

    @property
    def shape_of_all(self) -> list[int]:
        """Shape of its variable: the rows, one more row, the counts.

        Each row is which run of the watch it was, from 1, and then the summary, or of a number when and what.
        """
        summary = _OF_NUMBER if self.number else len(ROW) + (len(BOUNDS) + 1 if self.histogram else 0)
        return [self.keep + 2, _RUN + summary]

    @property
    def counts_at(self) -> int:
        """Place of the row with the counts."""
        return self.keep + 1

    def summary_of(self, row: Sequence[float]) -> Sequence[float]:
        """Returns the summary in a row, by `ROW`; NaN and infinity of a number are left to `of_row`."""
        if not self.number:
            return row[_RUN:]
        time_s, number = row[_RUN:]
        return [time_s, 1.0, 0.0, 0.0, *[number] * 3, number * number]

    def handle(self) -> tf.Tensor:
        """Returns its variable, as an op of the current graph or eagerly, on the current device."""
        return tf.raw_ops.VarHandleOp(dtype=tf.float64, shape=self.shape_of_all, shared_name=self.stem)

    def clear(self, handle: tf.Tensor) -> Any:
        """Makes it an empty ring."""
        empty = tf.zeros(self.shape_of_all, tf.float64)
        return tf.raw_ops.AssignVariableOp(resource=handle, value=empty)


def can_hold(graph: Any) -> bool:
    """Returns whether ops of ours can be added to a graph."""
    return getattr(graph, "experimental_acd_manager", None) is not None


def is_compiled(graph: Any) -> bool:
    """Returns whether XLA compiles a graph that is built."""
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def device_of(tensor: tf.Tensor) -> str:
    """Returns where a tensor of the graph that is built lives: a device of whichever task runs the graph."""
    with tf.name_scope(_SCOPE):
        place = tensor.device or tf.no_op().device
    spec = tf.DeviceSpec.from_string(place)
    if spec.device_type is None or spec.job == "ps":
        # A summary of what came from a parameter server is kept by the worker that asked for it.
        return "/device:CPU:0"
    found: str = tf.DeviceSpec(device_type=spec.device_type, device_index=spec.device_index or 0).to_string()
    return found


def on_task(task: str | None, device: str) -> str:
    """Returns a device of a task.

    Args:
        task: Any device of the task, such as ``/job:worker/replica:0/task:1``; default: this process.
        device: Type and number, such as ``/device:CPU:0``.
    """
    spec = tf.DeviceSpec.from_string(task or context.context().host_address_space())
    place = tf.DeviceSpec.from_string(device)
    found: str = spec.replace(device_type=place.device_type, device_index=place.device_index).to_string()
    return found


def push(ring: Ring, tensor: tf.Tensor) -> tf.Tensor:
    """Returns the tensor, so that whatever consumes it comes after its summary is in the ring.

    Adds ops to the graph that is built; the tensor's value, and its gradient, stay as they are.
    """
    graph = tensor.graph
    compiled = is_compiled(graph)
    before = len(graph.get_operations())
    with tf.name_scope(_SCOPE):
        with ops.device(ring.device), _no_callbacks():
            written = _pushed_compiled(ring, tensor) if compiled else _pushed(ring, tensor)
        for op in graph.get_operations()[before:]:
            # The order in which TensorFlow runs a function's stateful ops is that of the program's own.
            graph.experimental_acd_manager.run_independently(op)
        with ops.control_dependencies([written]):
            return tf.identity(tensor)


def _pushed(ring: Ring, tensor: tf.Tensor) -> tf.Operation:
    handle = ring.handle()

    def make() -> tf.Tensor:
        with ops.control_dependencies([ring.clear(handle)]):
            return tf.constant(True)

    there = tf.cond(tf.raw_ops.VarIsInitializedOp(resource=handle), lambda: tf.constant(True), make)
    with ops.device("/device:CPU:0"), ops.control_dependencies([tensor]):
        now = tf.timestamp()
    return _written(ring, handle, tensor, now, [there], compiled=False)


def _pushed_compiled(ring: Ring, tensor: tf.Tensor) -> tf.Operation:
    with tf.init_scope(), ops.device(ring.device):
        handle = ring.handle()
        if not tf.raw_ops.VarIsInitializedOp(resource=handle):
            ring.clear(handle)
    return _written(ring, handle, tensor, tf.zeros([], tf.float64), [], compiled=True)


def _written(
    ring: Ring, handle: tf.Tensor, tensor: tf.Tensor, time_s: tf.Tensor, after: list[Any], *, compiled: bool
) -> tf.Operation:
    width = ring.shape_of_all[1]
    with ops.control_dependencies(after):
        counts = tf.raw_ops.ResourceGather(resource=handle, indices=ring.counts_at, dtype=tf.float64)
    # Every op counts, and to cut a number out by the usual way takes five.
    runs, good, *_ = tf.raw_ops.Unpack(value=counts, num=width)
    run = runs + 1.0
    empty = width - _COUNTS
    if ring.number:
        number = tf.cast(tensor, tf.float64)
        good_now = good + tf.cast(tf.math.is_finite(number), tf.float64)
        rows = tf.stack([run, good_now, *[tf.constant(0.0, tf.float64)] * empty, run, time_s, number])
    else:
        summary, finite = row_of(tensor, histogram=ring.histogram, compiled=compiled)
        good_now = good + tf.cast(finite, tf.float64)
        counted = [tf.stack([run, good_now]), tf.zeros([empty], tf.float64)]
        rows = tf.concat([*counted, tf.stack([run, time_s]), summary], 0)
    # While nobody has taken note of what was wrong, the last row but one is the only one to change.
    place = tf.where(runs > good, tf.constant(float(ring.keep), tf.float64), runs % ring.keep)
    return tf.raw_ops.ResourceScatterUpdate(
        resource=handle,
        indices=tf.stack([tf.constant(ring.counts_at), tf.cast(place, tf.int32)]),
        updates=tf.reshape(rows, [2, width]),
    )


class _no_callbacks:  # noqa: N801
    """Keeps `tf.debugging.enable_check_numerics` from checking our ops: the program has not written them."""

    def __enter__(self) -> None:
        running = context.context()
        self._before, running.invoking_op_callbacks = running.invoking_op_callbacks, True

    def __exit__(self, *_: object) -> None:
        context.context().invoking_op_callbacks = self._before
