"""What reached an OTLP endpoint of metrics, as a test wants it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.telemetry.support import Collector, http_collector


@contextlib.contextmanager
def metrics_endpoint() -> Iterator[tuple[Collector, dict[str, str]]]:
    """An endpoint, and the variables that send a process's metrics there and nothing else."""
    with http_collector(ExportMetricsServiceRequest) as collector:
        yield (
            collector,
            {
                "OTEL_METRICS_EXPORTER": "otlp",
                "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            },
        )


def last(collector: Collector, name: str, run_id: str) -> tuple[str, dict[str, Any]]:
    """Returns a metric's unit, and its last point for each worker (of all processes) in a run."""
    unit, points = "", {}
    for request in collector.requests:
        for resource in request.resource_metrics:
            told = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            metrics = [metric for scope in resource.scope_metrics for metric in scope.metrics]
            for metric in metrics:
                if told.get("tensorflow.run.id") != run_id or metric.name != name:
                    continue
                unit = metric.unit
                for point in metric.histogram.data_points:
                    (worker,) = [
                        pair.value.string_value
                        for pair in point.attributes
                        if pair.key == "tensorflow.worker"
                    ]
                    points[worker] = point
    return unit, points
