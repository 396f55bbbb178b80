"""What differs between the two signals that go the same way: traces and logs."""

from __future__ import annotations

import dataclasses
from typing import Any

__all__ = ["LOGS", "TRACES", "Signal"]


@dataclasses.dataclass(frozen=True)
class Signal:
    """One kind of telemetry.

    Attributes:
        exporter_variable: Which variable names its exporters.
        default: What it names when it is unset.
        protocol_variables: Which variables name its OTLP protocol, the first one wins.
        group: Entry point group of its exporters.
        unit: What it consists of, for people.
        verb: What becomes of it without a network, for people.
    """

    exporter_variable: str
    default: str
    protocol_variables: tuple[str, ...]
    group: str
    unit: str
    verb: str

    def request(self) -> Any:
        """Returns the message class of OTLP's request."""
        if self is LOGS:
            from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

            return ExportLogsServiceRequest
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        return ExportTraceServiceRequest

    def response(self) -> Any:
        """Returns the message class of OTLP's answer."""
        if self is LOGS:
            from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse

            return ExportLogsServiceResponse
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

        return ExportTraceServiceResponse

    def rejected(self, partial: Any) -> int:
        """Returns how many were rejected, from an answer's ``partial_success``."""
        return int(partial.rejected_log_records if self is LOGS else partial.rejected_spans)

    def success(self) -> Any:
        """Returns what an exporter's ``export`` returns when it has sent everything."""
        if self is LOGS:
            from opentelemetry.sdk._logs import export

            # Renamed in 1.39.
            result = getattr(export, "LogRecordExportResult", None) or export.LogExportResult
            return result.SUCCESS
        from opentelemetry.sdk.trace.export import SpanExportResult

        return SpanExportResult.SUCCESS


TRACES = Signal(
    exporter_variable="OTEL_TRACES_EXPORTER",
    default="otlp",
    protocol_variables=("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"),
    group="opentelemetry_traces_exporter",
    unit="spans",
    verb="spans are only spooled",
)
#: Unlike spans, they are not sent unless the variable says so: a Jaeger takes none.
LOGS = Signal(
    exporter_variable="OTEL_LOGS_EXPORTER",
    default="none",
    protocol_variables=("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"),
    group="opentelemetry_logs_exporter",
    unit="log records",
    verb="log records are only spooled",
)
