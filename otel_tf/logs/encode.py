"""OTLP's JSON for log records, with the standard library only: the reader of stderr has no more."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from otel_tf import __version__, semconv

__all__ = ["attribute_list", "log_record", "logs_line", "text"]


def text(value: str) -> str:
    """Returns ``value`` as a JSON string; what UTF-8 cannot hold becomes a question mark."""
    if not value.isascii():
        value = value.encode("utf-8", "replace").decode()
    return json.dumps(value, ensure_ascii=False)


def attribute_list(values: Mapping[str, str | int | None]) -> str:
    """Returns the elements of a ``KeyValue`` array; None leaves an attribute out."""
    return ",".join(
        f'{{"key":{text(key)},"value":{{"intValue":"{value}"}}}}'
        if isinstance(value, int)
        else f'{{"key":{text(key)},"value":{{"stringValue":{text(value)}}}}}'
        for key, value in values.items()
        if value is not None
    )


def log_record(
    wall_ns: int,
    observed_ns: int,
    severity: int,
    severity_text: str,
    body: str,
    attributes: str,
    *,
    trace_id: int = 0,
    span_id: int = 0,
) -> str:
    """Returns one log record.

    Args:
        wall_ns: When it was made, ns since the epoch.
        observed_ns: When it was taken.
        severity: OTLP's number.
        severity_text: The level's own name, or "".
        body: The message.
        attributes: Elements of a ``KeyValue`` array, in JSON.
        trace_id: 128 bits; 0 for none.
        span_id: 64 bits.
    """
    level = f'"severityText":{text(severity_text)},' if severity_text else ""
    ids = f',"traceId":"{trace_id:032x}","spanId":"{span_id:016x}","flags":1' if trace_id else ""
    return (
        f'{{"timeUnixNano":"{wall_ns}","observedTimeUnixNano":"{observed_ns}","severityNumber":{severity},'
        f'{level}"body":{{"stringValue":{text(body)}}},"attributes":[{attributes}]{ids}}}'
    )


def logs_line(resource_attributes: str, scopes: Mapping[str, Sequence[str]], schema_url: str = "") -> bytes:
    """Returns one ``LogsData`` line.

    Args:
        resource_attributes: Elements of a ``KeyValue`` array, in JSON.
        scopes: Log records by the name of their logger; "" is our own scope.
        schema_url: Schema of the resource.
    """
    own = f'{{"name":{text(semconv.SCOPE)},"version":{text(__version__)}}}'
    named = ((f'{{"name":{text(name)}}}' if name else own, records) for name, records in scopes.items())
    parts = ",".join(f'{{"scope":{scope},"logRecords":[{",".join(records)}]}}' for scope, records in named)
    schema = f',"schemaUrl":{text(schema_url)}' if schema_url else ""
    return (
        f'{{"resourceLogs":[{{"resource":{{"attributes":[{resource_attributes}]}},'
        f'"scopeLogs":[{parts}]{schema}}}]}}\n'
    ).encode()
