"""Metrics about the pipeline itself, through OpenTelemetry's metrics API: the program's provider, if any."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from otel_tf import __version__, semconv

if TYPE_CHECKING:
    from otel_tf.telemetry._pipeline import Pipeline

__all__ = ["observe"]


def observe(pipeline: Pipeline) -> None:
    """Registers what a metrics reader asks for; costs nothing until one does.

    ``otel_tf.spans.dropped`` counts spans by ``error.type``: ``queue_full`` were lost, ``not_sent`` are in
    the spool but not at the endpoint. ``otel_tf.spool.size`` is what this process has spooled, in bytes.
    """
    from opentelemetry.metrics import Observation, get_meter

    # Instruments outlive pipelines.
    reference = weakref.ref(pipeline)

    def of_pipeline(read: Callable[[Pipeline], Iterable[Any]]) -> Callable[[Any], Iterable[Any]]:
        def callback(_: Any) -> Iterable[Any]:
            alive = reference()
            return read(alive) if alive is not None else ()

        return callback

    meter = get_meter(semconv.SCOPE, __version__)
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
