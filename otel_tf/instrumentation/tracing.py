"""The seam in graph tracing: `trace_function` spans, and a word where functions are traced over and over."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from tensorflow.python.eager.polymorphic_function import polymorphic_function, tracing_compilation
from tensorflow.python.util import tf_decorator

from otel_tf import semconv
from otel_tf._guard import Guard
from otel_tf.instrumentation.hidden_frames import HiddenFrames
from otel_tf.instrumentation.run_spans import RunSpan, RunSpans
from otel_tf.instrumentation.seams import Seam, Seams
from otel_tf.instrumentation.steps import Steps
from otel_tf.telemetry import Pipeline, SpanEvent

__all__ = ["TracingSeam"]

Call = Callable[..., Any]

_logger = logging.getLogger("otel_tf")
_BEGINNING = Guard("beginning to record a tracing")
_RECORDING = Guard("recording a tracing")
_SIGNATURE_LIMIT = 1024
#: Functions whose last signatures are remembered.
_MAX_FUNCTIONS = 256
#: Tracings among a function's last ten calls that make a storm: TensorFlow's own measure.
_STORM = polymorphic_function.FREQUENT_TRACING_WARNING_THRESHOLD


class TracingSeam(Seam):
    """Every tracing of a `tf.function`; inner functions that are traced with it are its children."""

    def __init__(self, pipeline: Pipeline, steps: Steps, run_spans: RunSpans) -> None:
        self._pipeline = pipeline
        self._steps = steps
        self._run_spans = run_spans
        #: The last two signatures by function name, the latest used last.
        self._signatures: OrderedDict[str, deque[str]] = OrderedDict()
        self._warned: set[str] = set()

    def attach(self, seams: Seams) -> None:
        """Wraps tracing.

        Raises:
            DidNotInstrument: This TensorFlow's tf.function is not one we know.
        """
        seams.wrap(tracing_compilation, "_create_concrete_function", self._trace)

    def _trace(self, wrapped: Call, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        span: RunSpan | None = None
        with _BEGINNING:
            span = self._begin(*args, **kwargs)
        try:
            with HiddenFrames():
                result = wrapped(*args, **kwargs)
        except BaseException as error:
            with _RECORDING:
                if span is not None:
                    self._run_spans.end(span, error)
            raise
        with _RECORDING:
            if span is not None:
                self._run_spans.end(span)
                self._pipeline.record_later(self._count, str(span.attributes[semconv.FUNCTION_NAME]))
        return result

    def _count(self, name: str) -> tuple[()]:
        self._pipeline.metrics.function_tracings.add(1, {semconv.FUNCTION_NAME: name})
        return ()

    def _begin(self, function_type: Any, _: Any, __: Any, options: Any) -> RunSpan | None:
        name = str(options.name)
        if name.startswith("otel_tf_") or _is_internal(name, options.python_function):
            return None
        signature = str(function_type)[:_SIGNATURE_LIMIT]
        signatures = self._signatures.setdefault(name, deque(maxlen=2))
        signatures.append(signature)
        self._signatures.move_to_end(name)
        if len(self._signatures) > _MAX_FUNCTIONS:
            self._signatures.popitem(last=False)
        span = self._run_spans.begin(
            semconv.SPAN_TRACE_FUNCTION,
            {
                semconv.FUNCTION_NAME: name,
                semconv.FUNCTION_TRACING_COUNT: (
                    None if options.function_cache is None else len(options.function_cache) + 1
                ),
                semconv.FUNCTION_SIGNATURE: signature,
            },
        )
        tracings, calls = _tracings_of_late(options.python_function)
        if tracings >= _STORM:
            self._storm(span, name, tracings, calls)
        return span

    def _storm(self, span: RunSpan, name: str, tracings: int, calls: int) -> None:
        """Puts the event on the span of each tracing; says it once a function."""
        told = {semconv.STORM_TRACINGS: tracings, semconv.STORM_CALLS: calls}
        span.events = (SpanEvent(semconv.EVENT_RETRACING_STORM, span.begun[2], told),)
        if name in self._warned:
            return
        self._warned.add(name)
        _logger.warning(
            "tf.function %s is traced over and over: %d of its last %d calls, the last one after step %s; "
            "its last signatures: %s",
            name,
            tracings,
            calls,
            self._steps.at,
            " then ".join(self._signatures[name]),
        )


def _tracings_of_late(function: Any) -> tuple[int, int]:
    """Returns how many of a function's last calls, about ten, traced, this one included; and of how many.

    TensorFlow counts them itself, but after the call, and for calls from eager code only.
    """
    _, plain = tf_decorator.unwrap(function)
    plain = getattr(plain, "__func__", plain)
    detectors = polymorphic_function._frequent_tracing_detector_manager._detectors
    detector = detectors.get(getattr(plain, "__code__", plain))
    if detector is None:
        return 1, 1
    # One number a tracing: the calls from it up to the next.
    spans, calls = [*detector._calls_per_tracings, 1], detector._call_count + 1
    while calls - spans[0] > polymorphic_function.FREQUENT_TRACING_WARNING_MAX_CALL_HISTORY:
        calls -= spans.pop(0)
    return len(spans), calls


def _is_internal(name: str, function: Any) -> bool:
    """Returns whether a function is TensorFlow's own plumbing, such as a distributed dataset's."""
    if not name.startswith("_"):
        return False
    _, plain = tf_decorator.unwrap(function)
    return str(getattr(plain, "__module__", "")).startswith("tensorflow.")
