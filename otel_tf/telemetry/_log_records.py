"""Log records on their way: what a logging thread leaves behind, and OTLP's forms of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_tf import __version__, semconv
from otel_tf.logs.encode import log_record, logs_line
from otel_tf.telemetry import _json
from otel_tf.telemetry._values import clean, clean_text

if TYPE_CHECKING:
    from otel_tf.telemetry._resource import TaskResource

__all__ = ["LogRecord", "line", "sdk_record"]


class LogRecord(NamedTuple):
    """One log record.

    Attributes:
        wall_ns: When it was made, ns since the epoch.
        observed_ns: When it was taken; the same where one process does both.
        severity: OTLP's number.
        severity_text: The level as the program calls it.
        body: The message.
        scope: Name of the logger; "" for our own scope.
        attributes: Further attributes.
        trace_id: 128 bits; 0 where no span was in flight.
        span_id: 64 bits, or 0.
    """

    wall_ns: int
    observed_ns: int
    severity: int
    severity_text: str
    body: str
    scope: str
    attributes: Mapping[str, Any]
    trace_id: int = 0
    span_id: int = 0


def line(resource: TaskResource, records: Iterable[LogRecord]) -> bytes:
    """Returns one ``LogsData`` line, the records in order within their loggers."""
    scopes: dict[str, list[str]] = {}
    for record in records:
        scopes.setdefault(record.scope, []).append(
            log_record(
                record.wall_ns,
                record.observed_ns,
                record.severity,
                record.severity_text,
                record.body,
                _json.attributes(clean(record.attributes)),
                trace_id=record.trace_id,
                span_id=record.span_id,
            )
        )
    return logs_line(resource.as_json(), scopes, resource.schema_url)


def sdk_record(record: LogRecord, resource: Any) -> Any:
    """Returns a record as the SDK's exporters take it.

    Args:
        record: The record.
        resource: The SDK's resource.
    """
    from opentelemetry._logs import LogRecord as ApiRecord
    from opentelemetry._logs import SeverityNumber
    from opentelemetry.sdk._logs import ReadableLogRecord
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import TraceFlags

    made = ApiRecord(
        timestamp=record.wall_ns,
        observed_timestamp=record.observed_ns,
        trace_id=record.trace_id or None,
        span_id=record.span_id or None,
        trace_flags=TraceFlags(TraceFlags.SAMPLED if record.trace_id else TraceFlags.DEFAULT),
        severity_text=record.severity_text or None,
        severity_number=SeverityNumber(record.severity),
        body=clean_text(record.body),
        attributes=clean(record.attributes),
    )
    scope = InstrumentationScope(record.scope or semconv.SCOPE, "" if record.scope else __version__)
    return ReadableLogRecord(made, resource, scope)
