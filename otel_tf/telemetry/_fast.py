"""The fast path: records to OTLP JSON and protobuf by templates, with no SDK object for a span.

It gives the very spans that the SDK would (a test compares them) where the SDK's rules leave a span as
it is: one of the SDK's own samplers, and limits that no layout reaches. Everything else, and spans with
an error, links or events, goes the SDK's way.

Protobuf's wire format: https://protobuf.dev/programming-guides/encoding/. The messages:
opentelemetry-proto, ``trace/v1/trace.proto``.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from otel_tf import __version__, semconv
from otel_tf._proto import field, varint
from otel_tf.telemetry import _json, _sdk
from otel_tf.telemetry._batch import MAX_BYTES, Batch
from otel_tf.telemetry._values import clean, clean_text

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from otel_tf.telemetry._records import Layout, Record
    from otel_tf.telemetry._resource import TaskResource

__all__ = ["FastShaper"]

_MAX_INT = (1 << 63) - 1
#: Distinct texts remembered for one field; steps carry the same few ones over and over.
_MAX_TEXTS = 512
#: Spans encoded in one go, some 100 µs.
_SLICE = 32

_Encoded = TypeVar("_Encoded", str, bytes)

_pack_times = struct.Struct("<sQsQ").pack

# Field tags of opentelemetry.proto.trace.v1.Span: (number << 3) | wire type.
_TRACE_ID, _SPAN_ID, _PARENT_ID = b"\x0a\x10", b"\x12\x08", b"\x22\x08"
_NAME, _KIND, _START, _END, _ATTRIBUTE = b"\x2a", b"\x30", b"\x39", b"\x41", b"\x4a"
_EMPTY_STATUS = b"\x7a\x00"
_FLAGS = b"\x85\x01"
_HAS_IS_REMOTE, _IS_REMOTE = 0x100, 0x200
_SPANS = b"\x12"  # of ScopeSpans


#: The last one or two bytes of a number, and two bytes from its middle, by their fourteen bits.
_LAST = [varint(value) for value in range(1 << 14)]
_MIDDLE = [bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(1 << 14)]


def _number(value: int) -> bytes:
    """Encodes a non-negative int64, as `varint` but fourteen bits at a time."""
    if value < 0x4000:
        return _LAST[value]
    if value < 0x1000_0000:
        return _MIDDLE[value & 0x3FFF] + _LAST[value >> 14]
    if value < 0x400_0000_0000:
        return _MIDDLE[value & 0x3FFF] + _MIDDLE[value >> 14 & 0x3FFF] + _LAST[value >> 28]
    return (
        _MIDDLE[value & 0x3FFF] + _MIDDLE[value >> 14 & 0x3FFF] + _MIDDLE[value >> 28 & 0x3FFF]
        + _number(value >> 42)
    )  # fmt: skip


def _attribute_by_protobuf(key: str, value: Any) -> bytes:
    """Encodes any attribute by way of OpenTelemetry's own message classes."""
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

    message = Span()
    _fill(message.attributes.add(key=key).value, value)
    return bytes(message.SerializeToString())


def _fill(message: Any, value: Any) -> None:
    if isinstance(value, bool):
        message.bool_value = value
    elif isinstance(value, str):
        message.string_value = value
    elif isinstance(value, int):
        message.int_value = value
    elif isinstance(value, float):
        message.double_value = value
    elif isinstance(value, bytes):
        message.bytes_value = value
    elif isinstance(value, Mapping):
        message.kvlist_value.SetInParent()
        for key, each in value.items():
            _fill(message.kvlist_value.values.add(key=key).value, each)
    elif value is not None:
        message.array_value.SetInParent()
        for each in value:
            _fill(message.array_value.values.add(), each)


class _Field:
    """One attribute of a layout, in both encodings."""

    __slots__ = ("_ints", "_json_int", "_key", "_texts")

    def __init__(self, key: str) -> None:
        self._key = key
        name = clean_text(key)
        encoded = field(b"\x0a", name.encode())
        self._json_int = f'{{"key":{_json.text(name)},"value":{{"intValue":"'
        # An int64 takes one to ten bytes; all that stands before them, by their number.
        self._ints = [b""]
        for size in range(1, 11):
            content = encoded + b"\x12" + varint(size + 1) + b"\x18"
            self._ints.append(_ATTRIBUTE + varint(len(content) + size) + content)
        self._texts: dict[Any, tuple[str, bytes]] = {}

    def json(self, value: Any) -> str:
        if type(value) is int and -_MAX_INT <= value <= _MAX_INT:
            return f'{self._json_int}{value}"}}}}'
        return self._other(value)[0]

    def proto(self, value: Any) -> bytes:
        if type(value) is int and 0 <= value <= _MAX_INT:
            number = _number(value)
            return self._ints[len(number)] + number
        return self._other(value)[1]

    def _other(self, value: Any) -> tuple[str, bytes]:
        if type(value) is str or type(value) is bool:
            # True and 1 are the same key, but an int never comes here.
            found = self._texts.get(value)
            if found is None:
                if len(self._texts) >= _MAX_TEXTS:
                    self._texts.clear()
                found = self._texts[value] = self._encode(value)
            return found
        return self._encode(value)

    def _encode(self, value: Any) -> tuple[str, bytes]:
        attributes = {clean_text(self._key): clean(value)}
        ((key, fit),) = attributes.items()
        return _json.attributes(attributes), _attribute_by_protobuf(key, fit)


class _Template:
    """One layout in both encodings; parts that differ for roots (0) and children (1) come in pairs."""

    __slots__ = ("fields", "json_attributes", "json_heads", "proto_heads")

    def __init__(self, layout: Layout) -> None:
        self.fields = [_Field(key) for key in layout.fields]
        constants = {clean_text(key): clean(value) for key, value in layout.constants.items()}
        name = clean_text(layout.name)
        self.json_attributes = _json.attributes(constants)
        proto_constants = b"".join(_attribute_by_protobuf(key, value) for key, value in constants.items())
        self.json_heads, self.proto_heads = [], []
        for flags in (_HAS_IS_REMOTE, _HAS_IS_REMOTE | (_IS_REMOTE if layout.remote_parent else 0)):
            self.json_heads.append(f'"flags":{flags},"name":{_json.text(name)},"kind":{int(layout.kind)}')
            self.proto_heads.append(
                field(_NAME, name.encode()) + _KIND + varint(layout.kind) + _EMPTY_STATUS
                + _FLAGS + struct.pack("<I", flags) + proto_constants
            )  # fmt: skip


def _template(layout: Layout) -> _Template:
    found = layout.templates.get("fast")
    if not isinstance(found, _Template):
        found = layout.templates["fast"] = _Template(layout)
    return found


def _json_span(template: _Template, record: Record) -> str:
    _, trace_id, span_id, parent_id, start_ns, end_ns, values, _, _, _ = record
    head = template.json_heads[parent_id != 0]
    attributes = [
        field.json(value) for field, value in zip(template.fields, values, strict=True) if value is not None
    ]
    if template.json_attributes:
        attributes.insert(0, template.json_attributes)
    parent = f'"parentSpanId":"{parent_id:016x}",' if parent_id else ""
    return (
        f'{{"traceId":"{trace_id:032x}","spanId":"{span_id:016x}",{parent}{head},'
        f'"startTimeUnixNano":"{start_ns}","endTimeUnixNano":"{end_ns}",'
        f'"attributes":[{",".join(attributes)}],"status":{{}}}}'
    )


def _proto_span(template: _Template, record: Record) -> bytes:
    """Returns one span as a field of ``ScopeSpans``, tag and length included."""
    _, trace_id, span_id, parent_id, start_ns, end_ns, values, _, _, _ = record
    parts = [
        _TRACE_ID, trace_id.to_bytes(16, "big"),
        _SPAN_ID, span_id.to_bytes(8, "big"),
        _pack_times(_START, start_ns, _END, end_ns),
        template.proto_heads[parent_id != 0],
    ]  # fmt: skip
    parts += [
        field.proto(value) for field, value in zip(template.fields, values, strict=True) if value is not None
    ]
    if parent_id:
        parts += (_PARENT_ID, parent_id.to_bytes(8, "big"))
    content = b"".join(parts)
    return _SPANS + _number(len(content)) + content


def _scope_spans(spans: Sequence[bytes]) -> bytes:
    from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans

    head = ScopeSpans()
    head.scope.name, head.scope.version = semconv.SCOPE, __version__
    return bytes(head.SerializeToString()) + b"".join(spans)


def _resource_spans(resource: TaskResource, spans: Sequence[bytes]) -> bytes:
    """Returns one ``ResourceSpans`` as a field of ``ExportTraceServiceRequest``."""
    head = resource.templates.get("proto")
    if not isinstance(head, bytes):
        from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

        message = ResourceSpans(schema_url=resource.schema_url)
        message.resource.SetInParent()
        for key, value in resource.attributes.items():
            _fill(message.resource.attributes.add(key=clean_text(key)).value, clean(value))
        head = resource.templates["proto"] = bytes(message.SerializeToString())
    return field(b"\x0a", head + field(b"\x12", _scope_spans(spans)))


class FastShaper:
    """Shapes records without the SDK.

    Args:
        sampled: The sampler's decision for a trace id; None where every trace is sampled.
    """

    def __init__(self, sampled: Callable[[int], bool] | None) -> None:
        self._sampled = sampled

    def shape(self, records: Sequence[Record]) -> list[Batch]:
        """Encodes the records as JSON; as protobuf when the batch's payload is asked for."""
        if self._sampled is not None:
            records = [record for record in records if self._sampled(record.trace_id)]
        return self._batches(records) if records else []

    def _batches(self, records: Sequence[Record]) -> list[Batch]:
        groups: dict[int, tuple[TaskResource, list[Record]]] = {}
        for record in records:
            resource = record.layout.resource
            groups.setdefault(id(resource), (resource, []))[1].append(record)
        line = _json.line(
            (_json.resource_head(resource), resource.schema_url, _gently(_json_of, members))
            for resource, members in groups.values()
        )
        if len(line) > MAX_BYTES and len(records) > 1:
            half = len(records) // 2
            return self._batches(records[:half]) + self._batches(records[half:])

        def payload() -> bytes:
            return b"".join(
                _resource_spans(resource, _gently(_proto_of, members))
                for resource, members in groups.values()
            )

        def spans() -> list[ReadableSpan]:
            return [_sdk.readable(record) for record in records]

        return [Batch(len(records), len(records), line, payload, spans)]


def _gently(encode: Callable[[Record], _Encoded], records: Sequence[Record]) -> list[_Encoded]:
    """Encodes records, with pauses in which the training gets the interpreter.

    Python would let it wait for 5 ms otherwise, longer than many a step lasts.
    """
    encoded = []
    for first in range(0, len(records), _SLICE):
        encoded += [encode(record) for record in records[first : first + _SLICE]]
        time.sleep(0)
    return encoded


def _is_plain(record: Record) -> bool:
    return record.error is None and not record.links and not record.events


def _json_of(record: Record) -> str:
    if _is_plain(record):
        return _json_span(_template(record.layout), record)
    return _json.span(_sdk.readable(record))


def _proto_of(record: Record) -> bytes:
    if _is_plain(record):
        return _proto_span(_template(record.layout), record)
    return field(_SPANS, _sdk.encode_one(_sdk.readable(record)))
