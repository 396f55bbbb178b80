"""The type of a node that an error names, looked up in the graph that ran."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import func_graph

from otel_tf.diagnostics.messages import Frame, ParsedError, RootError

__all__ = ["graphs_in", "with_ops"]

_MOST_GRAPHS = 1_000
#: Folders whose frames say nothing of the program.
_INSIDE = (f"{Path(tf.__file__).parent}{os.sep}", f"{Path(__file__).parents[2]}{os.sep}", "<frozen ")
_SECOND_REPLICA = "replica_1/"


def with_ops(parsed: ParsedError, error: Any, graph: Any) -> ParsedError:
    """Adds to each root error the type of its op, and which replica it was where only others are named.

    Args:
        parsed: The message.
        error: The `tf.errors.OpError`; a session's carries the op.
        graph: The graph that ran, or None.
    """
    if error.op is not None:
        root = parsed.first
        told = dataclasses.replace(root, op=root.op or error.op.type, node=root.node or error.op.name)
        return ParsedError((told, *parsed.roots[1:]))
    if graph is None:
        return parsed
    return ParsedError(tuple(_with_op(root, graph) for root in parsed.roots))


def _with_op(root: RootError, graph: Any) -> RootError:
    if root.node is None:
        return root
    op = _find(graph, root.node)
    return dataclasses.replace(
        root,
        op=root.op or (None if op is None else str(op.type)),
        # TensorFlow leaves the stack out where it takes the node to be in another function.
        stack=root.stack or (() if op is None else _stack(op)),
        # The first replica's nodes bear no number, where there are several.
        replica=0 if root.replica is None and _has_replicas(graph) else root.replica,
    )


def _find(graph: Any, name: str) -> Any | None:
    """Returns the op of a node by its name in errors.

    That is its name in the function it was made in, or, below a branch, the name of the branching op, a
    slash and its name in the branch. A node that only an optimised graph has is not found: None.
    """
    for each in graphs_in(graph):
        op = _reached(each, name)
        if op is not None:
            return op
    return None


def _stack(op: Any) -> tuple[Frame, ...]:
    """Returns the program's own lines among those that an op was made at."""
    return tuple(
        Frame(frame.filename, frame.lineno, frame.name)
        for frame in op.traceback
        if not frame.filename.startswith(_INSIDE)
    )


def graphs_in(graph: Any) -> list[Any]:
    """Returns a graph and those of all functions that are called in it, callers first."""
    found, known = [graph], {id(graph)}
    for each in found:
        for call in each.get_operations():
            for inner in _functions_of(each, call):
                if id(inner) not in known and len(found) < _MOST_GRAPHS:
                    known.add(id(inner))
                    found.append(inner)
    return found


def _reached(graph: Any, name: str) -> Any | None:
    op = _op(graph, name)
    place = len(name)
    while op is None and (place := name.rfind("/", 0, place)) > 0:
        call = _op(graph, name[:place])
        for inner in [] if call is None else _functions_of(graph, call):
            op = op or _reached(inner, name[place + 1 :])
    return op


def _op(graph: Any, name: str) -> Any | None:
    try:
        return graph.get_operation_by_name(name)
    except (KeyError, ValueError):
        return None


def _functions_of(graph: Any, op: Any) -> list[Any]:
    """Returns the graphs of the functions that an op calls: a branch, a loop's body, a function."""
    found = []
    for value in op.node_def.attr.values():
        named = [value.func.name] if value.HasField("func") else [each.name for each in value.list.func]
        for name in named:
            inner = _graph_of(graph, name)
            if inner is not None:
                found.append(inner)
    return found


def _graph_of(graph: Any, name: str) -> Any | None:
    function = graph._get_function(name) if name else None
    inner = getattr(function, "graph", None)
    return inner if isinstance(inner, func_graph.FuncGraph) else None


def _has_replicas(graph: Any) -> bool:
    return any(
        op.name.startswith(_SECOND_REPLICA) for each in graphs_in(graph) for op in each.get_operations()
    )
