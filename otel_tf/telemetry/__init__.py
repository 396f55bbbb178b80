"""From a step's record to the spool and the network: what the seams build on.

`start` gives a `Pipeline`; a seam makes one `Layout` for each kind of span, takes its instants from
`Pipeline.now` and hands finished spans to `Pipeline.record`. Importing this is cheap: OpenTelemetry's
SDK and exporters are imported by `start`.
"""

from __future__ import annotations

from otel_tf.telemetry._log_records import LogRecord
from otel_tf.telemetry._pipeline import Pipeline, start
from otel_tf.telemetry._records import (
    AttributeValue,
    Layout,
    Record,
    SpanError,
    SpanEvent,
    SpanKind,
    SpanLink,
)
from otel_tf.telemetry._resource import TaskResource

__all__ = [
    "AttributeValue",
    "Layout",
    "LogRecord",
    "Pipeline",
    "Record",
    "SpanError",
    "SpanEvent",
    "SpanKind",
    "SpanLink",
    "TaskResource",
    "start",
]
