"""The seam in `tf.function`: a run of the outermost training function is a step.

For custom loops in one process. The step is the run, not the tracing before it: where a call traces
first, the step starts when the tracing is over.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import polymorphic_function, tracing_compilation

from otel_tf import ids, semconv
from otel_tf._guard import Guard
from otel_tf.identity import Identity
from otel_tf.instrumentation.errors import describe_error, status_only
from otel_tf.instrumentation.hidden_frames import HiddenFrames
from otel_tf.instrumentation.seams import Seams
from otel_tf.instrumentation.training_function import step_counter, trains
from otel_tf.telemetry import Pipeline, SpanKind

__all__ = ["FunctionCallSeam"]

Call = Callable[..., Any]

_RECORDING = Guard("recording a step")


class _Thread(threading.local):
    #: A tf.function is running in this thread; what it calls is part of it.
    busy = False
    #: Monotonic ns when the last tracing in this thread was over.
    traced_ns = 0


class FunctionCallSeam:
    """Steps of single-process training: `step`, and `train_step` under it."""

    def __init__(self, pipeline: Pipeline, identity: Identity) -> None:
        self._pipeline = pipeline
        self._run_id = identity.run_id
        self._incarnation = f"{ids.random_span_id():016x}"
        self._thread = _Thread()
        self._lock = threading.Lock()
        self._steps: int | None = None
        self._local_steps = 0
        #: Per tf.function: how many tracings it had when it was judged, and whether one of them trains.
        self._verdicts: weakref.WeakKeyDictionary[Any, tuple[int, bool]] = weakref.WeakKeyDictionary()
        common = (semconv.SEQ, semconv.MONOTONIC_NS, semconv.GLOBAL_STEP)
        self._step = pipeline.layout(
            semconv.SPAN_STEP, kind=SpanKind.INTERNAL, resource=pipeline.resource, fields=common
        )
        self._train_step = pipeline.layout(
            semconv.SPAN_TRAIN_STEP,
            kind=SpanKind.INTERNAL,
            resource=pipeline.resource,
            fields=(*common, semconv.LOCAL_STEP, semconv.FUNCTION_NAME),
            constants={semconv.WORKER: identity.task},
        )

    def attach(self, seams: Seams) -> None:
        """Wraps the call of a tf.function and the end of its tracing.

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
        outer = self._pipeline.now()
        inner = self._pipeline.now()
        thread.busy = True
        try:
            result = wrapped(*args, **kwargs)
        except Exception as error:
            with _RECORDING:
                self._finish(function, outer, inner, error)
            raise
        finally:
            thread.busy = False
        with _RECORDING:
            self._finish(function, outer, inner, None)
        return result

    def _finish(
        self,
        function: Any,
        outer: tuple[int, int, int],
        inner: tuple[int, int, int],
        error: Exception | None,
    ) -> None:
        end_mono_ns = time.monotonic_ns()
        if not self._is_training(function, failed=error is not None):
            return
        with self._lock:
            self._local_steps += 1
            local_step = self._local_steps
            step = (self._steps or 0) + 1
            if error is None:
                self._steps = step
        # The two readings are a microsecond apart; the second one is the step.
        _, start_mono_ns, start_ns = inner
        late_ns = self._thread.traced_ns - start_mono_ns
        if late_ns > 0:
            start_mono_ns, start_ns = start_mono_ns + late_ns, start_ns + late_ns
        end_ns = start_ns + end_mono_ns - start_mono_ns
        trace_id = ids.trace_id(self._run_id, "step", step)
        # A step that failed may be run again under its number: only the one that counts has the root's id.
        root_id = ids.span_id(self._run_id, "step", step, "root") if error is None else ids.random_span_id()
        problem = None if error is None else describe_error(error)
        self._pipeline.record(
            self._train_step,
            trace_id,
            ids.span_id(self._run_id, self._incarnation, "step", local_step),
            root_id,
            start_ns,
            end_ns,
            (inner[0], start_mono_ns, step, local_step, function.name),
            error=problem,
        )
        self._pipeline.record(
            self._step,
            trace_id,
            root_id,
            0,
            start_ns,
            end_ns,
            (outer[0], start_mono_ns, step),
            error=None if problem is None else status_only(problem),
        )

    def _is_training(self, function: Any, *, failed: bool) -> bool:
        tracings = function.experimental_get_tracing_count()
        verdict = self._verdicts.get(function)
        if verdict is None or verdict[0] != tracings:
            training = [c for c in function._list_all_concrete_functions() if trains(c)]
            verdict = self._verdicts[function] = (tracings, bool(training))
            if training and self._steps is None:
                counter = step_counter(training[0])
                # Read once in a run, after its first step: training may go on from a checkpoint.
                applied = 0 if failed else 1
                self._steps = 0 if counter is None else int(counter.numpy()) - applied
        return verdict[1]
