"""Lines of the spool back into OTLP protobuf: what `_json` writes, read with the official messages."""

from __future__ import annotations

import base64
from collections.abc import Container, Mapping, Sequence
from typing import Any

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

__all__ = ["add_line", "span_keys"]


class _Span(msgspec.Struct, gc=False):
    traceId: str  # noqa: N815 - OTLP/JSON's names
    spanId: str  # noqa: N815


class _ScopeSpans(msgspec.Struct):
    spans: list[_Span]


class _ResourceSpans(msgspec.Struct):
    scopeSpans: list[_ScopeSpans]  # noqa: N815


class _Line(msgspec.Struct):
    resourceSpans: list[_ResourceSpans]  # noqa: N815


_decode = msgspec.json.Decoder(_Line).decode


def span_keys(line: bytes) -> list[tuple[str, str]]:
    """Returns (trace id, span id), in hex, of each span of a line.

    Raises:
        ValueError: The line is no ``TracesData`` of the spool's.
    """
    try:
        document = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
    return [
        (span.traceId, span.spanId)
        for resource_spans in document.resourceSpans
        for scope_spans in resource_spans.scopeSpans
        for span in scope_spans.spans
    ]


def add_line(
    request: ExportTraceServiceRequest,
    document: Mapping[str, Any],
    without: Container[tuple[str, str]] = (),
) -> int:
    """Adds a line's spans to a request; returns how many.

    Args:
        request: What to add to.
        document: The line, parsed.
        without: (trace id, span id) of spans to leave out.

    Raises:
        KeyError, TypeError, ValueError: The line is no ``TracesData`` of the spool's.
    """
    count = 0
    for resource_spans, scope_spans, spans in _groups(document):
        wanted = [span for span in spans if (span["traceId"], span["spanId"]) not in without]
        if not wanted:
            continue
        group = request.resource_spans.add(schema_url=resource_spans.get("schemaUrl", ""))
        if "resource" in resource_spans:
            group.resource.SetInParent()
            _attributes(group.resource.attributes, resource_spans["resource"].get("attributes", ()))
        scope = group.scope_spans.add()
        if "scope" in scope_spans:
            scope.scope.SetInParent()
            scope.scope.name = scope_spans["scope"].get("name", "")
            scope.scope.version = scope_spans["scope"].get("version", "")
        for span in wanted:
            _span(scope.spans.add(), span)
        count += len(wanted)
    return count


def _groups(document: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], Mapping[str, Any], Sequence[Any]]]:
    return [
        (resource_spans, scope_spans, scope_spans["spans"])
        for resource_spans in document["resourceSpans"]
        for scope_spans in resource_spans["scopeSpans"]
    ]


def _span(message: Any, span: Mapping[str, Any]) -> None:
    message.trace_id = bytes.fromhex(span["traceId"])
    message.span_id = bytes.fromhex(span["spanId"])
    message.parent_span_id = bytes.fromhex(span.get("parentSpanId", ""))
    message.trace_state = span.get("traceState", "")
    message.flags = span.get("flags", 0)
    message.name = span["name"]
    message.kind = span["kind"]
    message.start_time_unix_nano = int(span["startTimeUnixNano"])
    message.end_time_unix_nano = int(span["endTimeUnixNano"])
    _attributes(message.attributes, span.get("attributes", ()))
    message.dropped_attributes_count = span.get("droppedAttributesCount", 0)
    for event in span.get("events", ()):
        added = message.events.add(
            name=event["name"],
            time_unix_nano=int(event["timeUnixNano"]),
            dropped_attributes_count=event.get("droppedAttributesCount", 0),
        )
        _attributes(added.attributes, event.get("attributes", ()))
    message.dropped_events_count = span.get("droppedEventsCount", 0)
    for link in span.get("links", ()):
        added = message.links.add(
            trace_id=bytes.fromhex(link["traceId"]),
            span_id=bytes.fromhex(link["spanId"]),
            flags=link.get("flags", 0),
            dropped_attributes_count=link.get("droppedAttributesCount", 0),
        )
        _attributes(added.attributes, link.get("attributes", ()))
    message.dropped_links_count = span.get("droppedLinksCount", 0)
    if "status" in span:
        message.status.SetInParent()
        message.status.code = span["status"].get("code", 0)
        message.status.message = span["status"].get("message", "")


def _attributes(messages: Any, attributes: Sequence[Mapping[str, Any]]) -> None:
    for attribute in attributes:
        _value(messages.add(key=attribute["key"]).value, attribute["value"])


def _value(message: Any, value: Mapping[str, Any]) -> None:
    message.SetInParent()
    for kind, content in value.items():
        if kind == "stringValue":
            message.string_value = content
        elif kind == "intValue":
            message.int_value = int(content)
        elif kind == "boolValue":
            message.bool_value = content
        elif kind == "doubleValue":
            message.double_value = float(content)  # also "NaN", "Infinity" and "-Infinity"
        elif kind == "bytesValue":
            message.bytes_value = base64.b64decode(content)
        elif kind == "arrayValue":
            message.array_value.SetInParent()
            for each in content.get("values", ()):
                _value(message.array_value.values.add(), each)
        elif kind == "kvlistValue":
            message.kvlist_value.SetInParent()
            _attributes(message.kvlist_value.values, content.get("values", ()))
