"""The seam in `tf.function`: a run of the outermost training function is a step.

The step is the run, not the tracing before it: where a call traces first, the step starts when the tracing
is over.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import polymorphic_function, tracing_compilation

from otel_tf._guard import Guard
from otel_tf.instrumentation.hidden_frames import HiddenFrames
from otel_tf.instrumentation.seams import Seam, Seams
from otel_tf.instrumentation.steps import Begun, Steps
from otel_tf.instrumentation.training_function import step_counter, trains

__all__ = ["FunctionCallSeam"]

Call = Callable[..., Any]

_RECORDING = Guard("recording a step")


class _Thread(threading.local):
    #: A tf.function is running in this thread; what it calls is part of it.
    busy = False
    #: Monotonic ns when the last tracing in this thread was over.
    traced_ns = 0


class FunctionCallSeam(Seam):
    """Finds the steps of this process among its calls of tf.functions."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._thread = _Thread()
        #: Per tf.function: how many tracings it had when it was judged, and whether one of them trains.
        self._verdicts: weakref.WeakKeyDictionary[Any, tuple[int, bool]] = weakref.WeakKeyDictionary()

    def attach(self, seams: Seams) -> None:
        """Wraps the call of a tf.function and its tracing.

        Raises:
            DidNotInstrument: This TensorFlow's tf.function is not one we know.
        """
        seams.wrap(polymorphic_function.Function, "__call__", self._call)
        seams.wrap(tracing_compilation, "_create_concrete_function", self._traced)

    def _traced(self, wrapped: Call, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            with HiddenFrames():
                return wrapped(*args, **kwargs)
        finally:
            self._thread.traced_ns = time.monotonic_ns()

    def _call(self, wrapped: Call, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        thread = self._thread
        # Called while a graph is built, or from a tf.function that runs eagerly: not the outermost.
        if thread.busy or not context.executing_eagerly():
            return wrapped(*args, **kwargs)
        verdict = self._verdicts.get(function)
        if verdict is not None and not verdict[1] and verdict[0] == function.experimental_get_tracing_count():
            return wrapped(*args, **kwargs)
        begun = self._steps.begin()
        thread.busy = True
        try:
            result = wrapped(*args, **kwargs)
        except Exception as error:
            with _RECORDING:
                self._finish(function, begun, error)
            raise
        finally:
            thread.busy = False
        with _RECORDING:
            self._finish(function, begun, None)
        return result

    def _finish(self, function: Any, begun: Begun, error: Exception | None) -> None:
        if self._is_training(function, failed=error is not None):
            self._steps.finish(
                begun, function=function.name, not_before_mono_ns=self._thread.traced_ns, error=error
            )

    def _is_training(self, function: Any, *, failed: bool) -> bool:
        tracings = function.experimental_get_tracing_count()
        verdict = self._verdicts.get(function)
        if verdict is None or verdict[0] != tracings:
            training = [c for c in function._list_all_concrete_functions() if trains(c)]
            verdict = self._verdicts[function] = (tracings, bool(training))
            if training and not self._steps.knows_number:
                counter = step_counter(training[0])
                # Read once in a run, after its first step: training may go on from a checkpoint.
                applied = 0 if failed else 1
                self._steps.start_from(0 if counter is None else int(counter.numpy()) - applied)
        return verdict[1]
