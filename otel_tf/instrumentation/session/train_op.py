"""Does a run of a session train? And what in it tells the global step?

Answered from the graph, once for each set of fetches. A run trains when what it fetches depends on an op
that updates a trainable variable, hands a gradient to an accumulator (SyncReplicas) or counts the global
step. Initialising and restoring, which assign, do not.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.training import training_util

__all__ = ["FetchJudge", "Fetches", "find"]

#: Op types that apply a gradient, on whatever variable.
_APPLIES = ("Apply", "SparseApply", "ResourceApply", "ResourceSparseApply")
#: Op types that take a gradient for an update that another op makes.
_GATHERS = ("AccumulatorApplyGradient", "SparseAccumulatorApplyGradient", "ResourceAccumulatorApplyGradient")
#: Op types that change a variable in place: training where the variable is trainable or the global step.
_CHANGES = ("AssignAdd", "AssignSub", "Scatter", "ResourceScatter")
#: Op types through which a value passes unchanged.
_PASSES = ("Identity", "ReadVariableOp", "Snapshot", "PreventGradient", "StopGradient", "Cast")


class Fetches(NamedTuple):
    """What is known of one set of fetches.

    Attributes:
        train: Whether a run of it is a step.
        global_step: The fetched tensor that is the global step, if one is; so no run reads more for us.
    """

    train: bool
    global_step: Any | None


_NOTHING = Fetches(train=False, global_step=None)


class FetchJudge:
    """Judges fetches, and remembers by graph."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, dict[tuple[int, ...], Fetches]] = (
            weakref.WeakKeyDictionary()
        )

    def judge(self, graph: Any, fetches: Any) -> Fetches:
        """Returns what is known of fetches as they are given to `Session.run`."""
        elements = list(_elements(graph, fetches))
        # Ops and tensors live as long as their graph.
        key = tuple(map(id, elements))
        known = self._known.get(graph)
        if known is None:
            known = self._known[graph] = {}
        found = known.get(key)
        if found is None:
            found = known[key] = _judge(graph, elements)
        return found


def find(wanted: Any, fetches: Any, results: Any) -> Any | None:
    """Returns the result of the fetch that is ``wanted``, from a structure of results."""
    if fetches is wanted:
        return results
    if isinstance(fetches, Mapping):
        pairs = [(value, results[key]) for key, value in fetches.items()]
    elif isinstance(fetches, list | tuple):
        pairs = list(zip(fetches, results, strict=True))
    else:
        return None
    for fetch, result in pairs:
        found = find(wanted, fetch, result)
        if found is not None:
            return found
    return None


def _elements(graph: Any, fetches: Any) -> Iterator[Any]:
    """Yields the ops, tensors and variables in a structure of fetches; sparse tensors change nothing."""
    if isinstance(fetches, tf.Operation | tf.Tensor | tf.Variable):
        yield fetches
    elif isinstance(fetches, str):
        yield graph.as_graph_element(fetches, allow_tensor=True, allow_operation=True)
    elif isinstance(fetches, Mapping):
        for value in fetches.values():
            yield from _elements(graph, value)
    elif isinstance(fetches, list | tuple):
        for value in fetches:
            yield from _elements(graph, value)


def _judge(graph: Any, elements: list[Any]) -> Fetches:
    if not elements:
        return _NOTHING
    counter = training_util.get_global_step(graph)
    source = None if counter is None else _source(counter)
    trainable = {variable.op for variable in graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)}
    updated = trainable | {source}
    waiting = [
        element.op if isinstance(element, tf.Tensor) else element
        for element in elements
        if not isinstance(element, tf.Variable)
    ]
    seen = set(waiting)
    train = False
    while waiting and not train:
        op = waiting.pop()
        train = _trains(op, updated)
        for before in (*(tensor.op for tensor in op.inputs), *op.control_inputs):
            if before not in seen:
                seen.add(before)
                waiting.append(before)
    if not train:
        return _NOTHING
    # What TensorFlow's own hooks fetch is the counter's value in disguise.
    read = graph.get_collection(training_util.GLOBAL_STEP_READ_KEY)
    for element in elements:
        if isinstance(element, tf.Operation) or source is None:
            continue
        if any(element is each for each in read) or _source(element) is source:
            return Fetches(train=True, global_step=element)
    return Fetches(train=True, global_step=None)


def _trains(op: Any, updated: set[Any]) -> bool:
    kind: str = op.type
    if kind.startswith(_APPLIES) or kind in _GATHERS:
        return True
    return kind.startswith(_CHANGES) and bool(op.inputs) and _source(op.inputs[0]) in updated


def _source(value: Any) -> Any:
    """Returns the op of the variable whose value a tensor is, where it is one's."""
    op = value.op
    while op.type in _PASSES and op.inputs:
        op = op.inputs[0].op
    return op
