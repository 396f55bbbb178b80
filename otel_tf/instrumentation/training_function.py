"""Does a traced function train? And which variable counts its steps?

A step is a run of a function whose graph writes a trainable floating-point variable. Metrics, counters
and inference write none. Answered from the graph, once a tracing, never at run time.
"""

from __future__ import annotations

from typing import Any

from tensorflow.python.framework import auto_control_deps_utils

__all__ = ["step_counter", "trains"]

_COUNTER_NAMES = ("iteration", "global_step")


def _written_variables(concrete_function: Any) -> list[Any]:
    """Returns the captured variables that the graph writes, itself or in a function it calls."""
    graph = concrete_function.graph
    # TensorFlow marks which resource inputs a graph only reads, through all nested functions, so that
    # automatic control dependencies can order the rest: the rest are the writes.
    read_only = set(auto_control_deps_utils.get_read_only_resource_input_indices_graph(graph))
    written = {id(tensor) for index, tensor in enumerate(graph.inputs) if index not in read_only}
    handles = {id(outside) for outside, inside in graph.captures if id(inside) in written}
    return [variable for variable in graph.variables if id(variable.handle) in handles]


def trains(concrete_function: Any) -> bool:
    """Returns whether a run of this ConcreteFunction is a training step."""
    return any(
        variable.trainable and variable.dtype.is_floating
        for variable in _written_variables(concrete_function)
    )


def step_counter(concrete_function: Any) -> Any | None:
    """Returns the integer scalar variable that this function advances as its step count, or None."""
    for variable in _written_variables(concrete_function):
        if (
            variable.dtype.is_integer
            and variable.shape.rank == 0
            and any(name in variable.name.lower() for name in _COUNTER_NAMES)
        ):
            return variable
    return None
