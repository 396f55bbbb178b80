"""Metrics of training and of the pipeline, by OpenTelemetry's API: for the program's provider, if any."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from otel_tf import semconv

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, Histogram, Meter

    from otel_tf.telemetry._pipeline import Pipeline

__all__ = ["Instruments", "instruments"]

#: Bounds in s from half a millisecond to minutes; the SDK's own are for milliseconds.
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 120.0)
_STEPS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0, 128.0, 512.0)

#: By magnitude, either sign.
_VALUES = (*(-(10.0**n) for n in range(6, -7, -2)), 0.0, *(10.0**n for n in range(-6, 7, 2)))


@dataclasses.dataclass(frozen=True)
class Instruments:
    """What the seams measure; to record costs microseconds: off the training thread.

    Attributes:
        step_duration: ``tensorflow.step.duration``, s.
        data_wait_duration: ``tensorflow.data_wait.duration``, s.
        staleness: ``tensorflow.staleness``, steps.
        worker_lag: ``tensorflow.worker.lag``, steps.
        collective_wait: ``tensorflow.collective.wait``, s.
        function_tracings: ``tensorflow.function.tracings``.
        watch_value: ``tensorflow.watch.value``.
    """

    step_duration: Histogram
    data_wait_duration: Histogram
    staleness: Histogram
    worker_lag: Histogram
    collective_wait: Histogram
    function_tracings: Counter
    watch_value: Histogram


def instruments(pipeline: Pipeline, meter: Meter) -> Instruments:
    """Returns the instruments of training, and registers those of the pipeline itself."""
    _observe(pipeline, meter)

    def histogram(name: str, unit: str, description: str, bounds: tuple[float, ...]) -> Histogram:
        try:
            return meter.create_histogram(name, unit, description, explicit_bucket_boundaries_advisory=bounds)
        except TypeError:  # an API that does not know bounds yet
            return meter.create_histogram(name, unit, description)

    return Instruments(
        step_duration=histogram(
            semconv.METRIC_STEP_DURATION, "s", "Time of a training step on its worker.", _SECONDS
        ),
        data_wait_duration=histogram(
            semconv.METRIC_DATA_WAIT_DURATION, "s", "Time a step waited for its data.", _SECONDS
        ),
        staleness=histogram(
            semconv.METRIC_STALENESS, "{step}", "Steps that others applied while one ran.", _STEPS
        ),
        worker_lag=histogram(
            semconv.METRIC_WORKER_LAG,
            "{step}",
            "Steps that a worker is behind the one that has taken the most.",
            _STEPS,
        ),
        collective_wait=histogram(
            semconv.METRIC_COLLECTIVE_WAIT,
            "s",
            "Time of a step's collectives on one worker, the wait for the others included.",
            _SECONDS,
        ),
        function_tracings=meter.create_counter(
            semconv.METRIC_FUNCTION_TRACINGS, "{tracing}", "Tracings of tf.functions."
        ),
        watch_value=histogram(
            semconv.METRIC_WATCH_VALUE, "1", "Means of watched tensors, those that were read.", _VALUES
        ),
    )


def _observe(pipeline: Pipeline, meter: Meter) -> None:
    """Registers what a metrics reader asks for; costs nothing until one does.

    ``otel_tf.spans.dropped`` counts spans by ``error.type``: ``queue_full`` were lost, ``not_sent`` are in
    the spool but not at the endpoint. ``otel_tf.spool.size`` is what this process has spooled, in bytes.
    """
    from opentelemetry.metrics import Observation

    # Instruments outlive pipelines.
    reference = weakref.ref(pipeline)

    def of_pipeline(read: Callable[[Pipeline], Iterable[Any]]) -> Callable[[Any], Iterable[Any]]:
        def callback(_: Any) -> Iterable[Any]:
            alive = reference()
            return read(alive) if alive is not None else ()

        return callback

    meter.create_observable_counter(
        semconv.METRIC_SPANS_DROPPED,
        [
            of_pipeline(
                lambda alive: (
                    Observation(alive.dropped, {semconv.ERROR_TYPE: "queue_full"}),
                    Observation(alive.not_sent, {semconv.ERROR_TYPE: "not_sent"}),
                )
            )
        ],
        unit="{span}",
        description="Spans that did not make it into the spool, or to the endpoint.",
    )
    meter.create_observable_up_down_counter(
        semconv.METRIC_SPOOL_SIZE,
        [of_pipeline(lambda alive: (Observation(alive.spool_size),))],
        unit="By",
        description="Spans spooled by this process.",
    )
