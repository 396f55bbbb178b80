"""The seam in iterators: how long a step's thread waits for the next element of its data.

Python sees the wait of a loop that takes its elements itself. Where the iterator is handed to the
`tf.function`, as Keras's `fit` does, elements are taken inside the graph: the wait is part of the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.distribute import input_lib
from tensorflow.python.eager import context

from otel_tf._guard import Guard
from otel_tf.instrumentation.around import Wait
from otel_tf.instrumentation.failure.batch import keep
from otel_tf.instrumentation.seams import Seam, Seams
from otel_tf.instrumentation.steps import Steps
from otel_tf.telemetry import Pipeline

__all__ = ["DataWaitSeam"]

#: Waits that are kept for the next step; a loop without steps would gather them for ever.
_MOST = 16

_KEEPING = Guard("keeping the batch of a graph")


class DataWaitSeam(Seam):
    """Leaves each wait for the step that comes next in its thread."""

    def __init__(self, pipeline: Pipeline, steps: Steps) -> None:
        self._now = pipeline.now
        self._around = steps.around
        self._keeps = pipeline.settings.keep_batch
        self._incarnation = steps.watches.incarnation

    def attach(self, seams: Seams) -> None:
        """Wraps the iterators of plain and of distributed datasets.

        Raises:
            DidNotInstrument: This TensorFlow's iterators are not what we know.
        """
        seams.wrap(iterator_ops.OwnedIterator, "_next_internal", self._next)
        seams.wrap(input_lib.DistributedIteratorBase, "get_next", self._next)

    def _next_in_graph(
        self, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What Python sees of an iterator in a graph: that an element is asked for, when it is built."""
        self._around.waiting = True
        try:
            element = wrapped(*args, **kwargs)
        finally:
            self._around.waiting = False
        if self._keeps:
            with _KEEPING:
                return keep(element, self._incarnation)
        return element

    def _next(
        self, wrapped: Callable[..., Any], _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        around = self._around
        # A distributed iterator is made of plain ones.
        if around.waiting:
            return wrapped(*args, **kwargs)
        if not context.executing_eagerly():
            return self._next_in_graph(wrapped, args, kwargs)
        now = self._now
        outer, begun = now(), now()
        around.waiting = True
        try:
            element = wrapped(*args, **kwargs)
        finally:
            around.waiting = False
        # The end of the data, which raises, is no wait of a step's. Nor is what another loop, such as an
        # evaluation, took and used before.
        before = () if around.others else around.waits[1 - _MOST :]
        around.others = False
        around.waits = (*before, Wait(outer, begun, time.monotonic_ns()))
        return element
