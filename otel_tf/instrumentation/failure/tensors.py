"""The tensors of a run: its batch, the variables it read or wrote, and what an optimizer keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops

from otel_tf.instrumentation.failure.batch import kept
from otel_tf.instrumentation.failure.call import FailedCall, Named
from otel_tf.instrumentation.failure.rows import takes

__all__ = ["arrays", "of_optimizer", "tensors_of", "variables_of"]


def tensors_of(call: FailedCall) -> Iterator[Named]:
    """Yields what there is to look at, the batch first."""
    if call.tensors is not None:
        yield from call.tensors()
        return
    if call.graph is None:
        return
    yield from kept(call.graph, None)
    inputs = call.graph.inputs
    for placeholder, argument in zip(inputs, call.arguments, strict=False):
        if isinstance(argument, tf.Tensor) and takes(argument.dtype):
            yield _tensor("batch", placeholder.op.name, argument)
    yield from variables_of(call.graph.variables, call.optimizer)


def arrays(group: str, structure: Any) -> Iterator[Named]:
    """Yields the tensors and arrays of a structure, named by their place in it."""
    for number, value in enumerate(tf.nest.flatten(structure, expand_composites=True)):
        if isinstance(value, tf.Tensor):
            if takes(value.dtype):
                yield _tensor(group, f"{group}/{number}", value)
        elif hasattr(value, "dtype") and hasattr(value, "reshape"):
            yield Named(group, f"{group}/{number}", _giving(value))


def variables_of(variables: Any, optimizer: Any = None) -> Iterator[Named]:
    """Yields variables, each replica's own; those of an optimizer are told apart, where there is one."""
    kept = set() if optimizer is None else {id(each.handle) for each in _plain(of_optimizer(optimizer))}
    seen = set()
    for variable in _plain(variables):
        if id(variable.handle) in seen or not takes(variable.dtype):
            continue
        seen.add(id(variable.handle))
        group = "variable" if variable.trainable else "state"
        yield Named(
            "optimizer" if id(variable.handle) in kept else group,
            variable.name.removesuffix(":0"),
            _reading(variable.handle, variable.dtype),
            variable.handle.device,
            tuple(variable.shape) if variable.shape.is_fully_defined() else None,
            variable.dtype.name,
        )


def of_optimizer(optimizer: Any) -> Any:
    """Returns the variables of a Keras optimizer, or none."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    variables = getattr(optimizer, "variables", ())
    return variables() if callable(variables) else variables


def _plain(variables: Any) -> Iterator[Any]:
    """Yields the variables that a device holds: of Keras's, and of those that a strategy distributes."""
    for variable in variables:
        # Keras 3 wraps its variables, and names types by text.
        inner = variable._value if isinstance(variable.dtype, str) else variable
        for each in getattr(inner, "values", None) or (inner,):
            if hasattr(each, "handle"):
                yield each


def _tensor(group: str, name: str, tensor: Any) -> Named:
    shape = tuple(tensor.shape) if tensor.shape.is_fully_defined() else None
    return Named(group, name, _giving(tensor), tensor.device, shape, tensor.dtype.name)


def _giving(value: Any) -> Callable[[], Any]:
    return lambda: value


def _reading(handle: Any, dtype: Any) -> Callable[[], Any]:
    def read() -> Any:
        # The value stays where the variable is.
        with ops.device(handle.device):
            return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)

    return read
