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
from otel_tf.telemetry import Pipeline

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
        """Wraps tracing, and TensorFlow's own count of calls that trace.

        Raises:
            DidNotInstrument: This TensorFlow's tf.function is not one we know.
        """
        seams.wrap(tracing_compilation, "_create_concrete_function", self._trace)
        manager = polymorphic_function._FrequentTracingDetectorManager
        seams.wrap(manager, "called_with_tracing", self._called_with_tracing)

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
        return self._run_spans.begin(
            semconv.SPAN_TRACE_FUNCTION,
            {
                semconv.FUNCTION_NAME: name,
                semconv.FUNCTION_TRACING_COUNT: (
                    None if options.function_cache is None else len(options.function_cache) + 1
                ),
                semconv.FUNCTION_SIGNATURE: signature,
            },
        )

    def _called_with_tracing(
        self, wrapped: Call, manager: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        result = wrapped(*args, **kwargs)
        with _RECORDING:
            self._look_for_storm(manager, *args, **kwargs)
        return result

    def _look_for_storm(self, manager: Any, key: Any, function: Any, *_: Any, **__: Any) -> None:
        detector = manager._detectors.get(key)
        tracings = 0 if detector is None else len(detector._calls_per_tracings)
        name = str(getattr(function, "__name__", function))
        if tracings < _STORM or name in self._warned:
            return
        self._warned.add(name)
        signatures = self._signatures.get(name, ())
        _logger.warning(
            "tf.function %s is traced over and over: %d of its last %d calls, the last one after step %s; "
            "its last signatures: %s",
            name,
            tracings,
            detector._call_count,
            self._steps.at,
            " then ".join(signatures),
        )


def _is_internal(name: str, function: Any) -> bool:
    """Returns whether a function is TensorFlow's own plumbing, such as a distributed dataset's."""
    if not name.startswith("_"):
        return False
    _, plain = tf_decorator.unwrap(function)
    return str(getattr(plain, "__module__", "")).startswith("tensorflow.")
