"""Where metrics go: to the program's meter provider, or to one of ours where the environment asks for it."""

from __future__ import annotations

import logging
import os
from importlib import metadata
from typing import TYPE_CHECKING, Any

from otel_tf import __version__, semconv
from otel_tf._guard import Guard
from otel_tf.telemetry._values import clean

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from otel_tf.telemetry._resource import TaskResource

__all__ = ["Meters"]

_logger = logging.getLogger("otel_tf")
_GROUP = "opentelemetry_metrics_exporter"
_STOPPING = Guard("ending the metrics")


class Meters:
    """Chooses the provider with the first measurement, when the run has its name.

    Without one, measurements go nowhere: unlike spans they are not sent unless ``OTEL_METRICS_EXPORTER``
    says so, since a Jaeger takes none.

    Args:
        resource: This process's resource, for a provider of our own.
    """

    def __init__(self, resource: TaskResource) -> None:
        self._resource = resource
        self._exporters: list[type[Any]] = []
        self._own: Any = None

    def prepare(self) -> bool:
        """Imports what `meter` needs, on the caller's thread; returns whether it may be called already."""
        from opentelemetry import metrics  # noqa: F401

        names = [name.strip() for name in os.environ.get("OTEL_METRICS_EXPORTER", "").split(",")]
        if any(name not in ("", "none") for name in names):
            from opentelemetry.sdk.metrics import MeterProvider, export  # noqa: F401

            for name in names:
                try:
                    if name not in ("", "none"):
                        self._exporters.append(_exporter(name))
                except (LookupError, ImportError) as error:
                    _logger.warning("OTEL_METRICS_EXPORTER=%s is ignored: %s", name, error)
        # A provider of our own waits until the run, which its resource names, has its name.
        return not self._exporters

    def meter(self) -> Meter:
        """Returns the meter of our scope."""
        from opentelemetry import metrics

        # The API's own stand-in: the program has set none.
        if self._exporters and type(metrics.get_meter_provider()).__module__.startswith(
            "opentelemetry.metrics"
        ):
            if self._own is None:
                self._own = self._make()
            own: Meter = self._own.get_meter(semconv.SCOPE, __version__)
            return own
        return metrics.get_meter(semconv.SCOPE, __version__)

    def stop(self, timeout_s: float) -> None:
        """Sends what was measured and ends; a provider of the program's is the program's to end.

        Args:
            timeout_s: The longest wait, in s.
        """
        if self._own is not None:
            with _STOPPING:
                self._own.shutdown(timeout_millis=max(timeout_s * 1000, 1))

    def abandon(self) -> None:
        """In a fork's child: the provider is the parent's."""
        self._own = None

    def _make(self) -> Any:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource

        return MeterProvider(
            [
                made() if issubclass(made, MetricReader) else PeriodicExportingMetricReader(made())
                for made in self._exporters
            ],
            resource=Resource(clean(self._resource.attributes), self._resource.schema_url),
            shutdown_on_exit=False,
        )


def _exporter(name: str) -> type[Any]:
    if name == "otlp":
        variables = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
        protocol = next(
            (os.environ[key].strip() for key in variables if os.environ.get(key)), "http/protobuf"
        )
        name = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    for entry in metadata.entry_points(group=_GROUP, name=name):
        made: type[Any] = entry.load()
        return made
    raise LookupError(f"no metrics exporter {name!r} is installed (entry point group {_GROUP})")
