"""OTLP as JSON lines (https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/).

Ids are hex, 64-bit integers are strings, enumerations are integers, as the protocol's JSON mapping has
it. `span` encodes any SDK span; `Template` encodes the records of one layout several times faster.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from otel_tf import __version__, semconv
from otel_tf.telemetry._values import clean

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from otel_tf.telemetry._resource import TaskResource

__all__ = ["any_value", "attributes", "line", "resource_head", "span", "text"]

_HAS_IS_REMOTE = 0x100
_IS_REMOTE = 0x200


def text(value: str) -> str:
    """Returns ``value`` as a JSON string."""
    return json.dumps(value, ensure_ascii=False)


def any_value(value: Any) -> str:
    """Returns OTLP's ``AnyValue`` of a value that `clean` has passed."""
    if isinstance(value, bool):
        return '{"boolValue":true}' if value else '{"boolValue":false}'
    if isinstance(value, str):
        return f'{{"stringValue":{text(value)}}}'
    if isinstance(value, int):
        return f'{{"intValue":"{value}"}}'
    if isinstance(value, float):
        return f'{{"doubleValue":{_double(value)}}}'
    if isinstance(value, bytes):
        return f'{{"bytesValue":"{base64.b64encode(value).decode()}"}}'
    if isinstance(value, Mapping):
        return f'{{"kvlistValue":{{"values":[{attributes(value)}]}}}}'
    if isinstance(value, Sequence):
        return f'{{"arrayValue":{{"values":[{",".join(map(any_value, value))}]}}}}'
    return "{}"


def _double(value: float) -> str:
    if math.isfinite(value):
        return repr(float(value))
    return '"NaN"' if math.isnan(value) else ('"Infinity"' if value > 0 else '"-Infinity"')


def attributes(values: Mapping[str, Any] | None) -> str:
    """Returns the elements of a ``KeyValue`` array, without its brackets."""
    return ",".join(
        f'{{"key":{text(key)},"value":{any_value(value)}}}' for key, value in (values or {}).items()
    )


def span(one: ReadableSpan) -> str:
    """Returns one ended SDK span."""
    context, parent = one.get_span_context(), one.parent
    assert context is not None
    parts = [f'"traceId":"{context.trace_id:032x}","spanId":"{context.span_id:016x}"']
    if context.trace_state:
        parts.append(f'"traceState":{text(context.trace_state.to_header())}')
    if parent is not None:
        parts.append(f'"parentSpanId":"{parent.span_id:016x}"')
    parts.append(
        f'"flags":{_flags(parent)},"name":{text(one.name)},"kind":{one.kind.value + 1},'
        f'"startTimeUnixNano":"{one.start_time}","endTimeUnixNano":"{one.end_time}",'
        f'"attributes":[{attributes(one.attributes)}]'
    )
    if one.dropped_attributes:
        parts.append(f'"droppedAttributesCount":{one.dropped_attributes}')
    if one.events:
        parts.append(f'"events":[{",".join(_event(each) for each in one.events)}]')
    if one.dropped_events:
        parts.append(f'"droppedEventsCount":{one.dropped_events}')
    if one.links:
        parts.append(f'"links":[{",".join(_link(each) for each in one.links)}]')
    if one.dropped_links:
        parts.append(f'"droppedLinksCount":{one.dropped_links}')
    status = one.status
    message = f'"message":{text(status.description)},' if status.description else ""
    code = f'{message}"code":{status.status_code.value}' if status.status_code.value else ""
    parts.append(f'"status":{{{code}}}')
    return "{" + ",".join(parts) + "}"


def _flags(context: Any) -> int:
    return _HAS_IS_REMOTE | (_IS_REMOTE if context is not None and context.is_remote else 0)


def _event(event: Any) -> str:
    dropped = f',"droppedAttributesCount":{event.dropped_attributes}' if event.dropped_attributes else ""
    return (
        f'{{"timeUnixNano":"{event.timestamp}","name":{text(event.name)},'
        f'"attributes":[{attributes(event.attributes)}]{dropped}}}'
    )


def _link(link: Any) -> str:
    context = link.context
    dropped = f',"droppedAttributesCount":{link.dropped_attributes}' if link.dropped_attributes else ""
    return (
        f'{{"traceId":"{context.trace_id:032x}","spanId":"{context.span_id:016x}",'
        f'"attributes":[{attributes(link.attributes)}]{dropped},"flags":{_flags(context)}}}'
    )


def resource_head(resource: TaskResource) -> str:
    """Returns a ``ResourceSpans`` up to where its spans begin; `line` ends it."""
    head = resource.templates.get("json")
    if not isinstance(head, str):
        head = (
            f'{{"resource":{{"attributes":[{attributes(clean(resource.attributes))}]}},"scopeSpans":[{{"scope":'
            f'{{"name":{text(semconv.SCOPE)},"version":{text(__version__)}}},"spans":['
        )
        resource.templates["json"] = head
    return head


def line(groups: Iterable[tuple[str, str, Sequence[str]]]) -> bytes:
    """Returns one ``TracesData`` line from (resource head, schema URL, spans)."""
    parts = []
    for head, schema_url, spans in groups:
        schema = f',"schemaUrl":{text(schema_url)}' if schema_url else ""
        parts.append(f"{head}{','.join(spans)}]}}]{schema}}}")
    return ('{"resourceSpans":[' + ",".join(parts) + "]}\n").encode()
