"""The nested shape of OTLP traces in Arrow, the same for JSON and protobuf.

Field names are OTLP/JSON's. The protobuf twin of each message uses them too: names are not on the
wire, only numbers are, so one extraction reads both. The types of the leaves differ (JSON writes ids in
hex and 64-bit integers as texts). Attribute values may hold lists and maps of scalars; what is nested
deeper reads as null, since the wire type is recursive and Arrow's types are not.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pyarrow as pa

__all__ = ["LINES", "json_schema", "proto_handler"]

#: Field of the array that lines are put into.
LINES = "lines"

_MESSAGES: dict[str, list[tuple[str, int, str, bool]]] = {
    # message: (field, number, protobuf type or message, repeated)
    "Scalar": [
        ("stringValue", 1, "string", False),
        ("boolValue", 2, "bool", False),
        ("intValue", 3, "int64", False),
        ("doubleValue", 4, "double", False),
        ("bytesValue", 7, "bytes", False),
    ],
    "ScalarPair": [("key", 1, "string", False), ("value", 2, "Scalar", False)],
    "ScalarList": [("values", 1, "Scalar", True)],
    "ScalarMap": [("values", 1, "ScalarPair", True)],
    "Value": [
        ("stringValue", 1, "string", False),
        ("boolValue", 2, "bool", False),
        ("intValue", 3, "int64", False),
        ("doubleValue", 4, "double", False),
        ("arrayValue", 5, "ScalarList", False),
        ("kvlistValue", 6, "ScalarMap", False),
        ("bytesValue", 7, "bytes", False),
    ],
    "Plain": [
        ("stringValue", 1, "string", False),
        ("boolValue", 2, "bool", False),
        ("intValue", 3, "int64", False),
        ("doubleValue", 4, "double", False),
    ],
    "Attribute": [("key", 1, "string", False), ("value", 2, "Value", False)],
    "Link": [("traceId", 1, "bytes", False), ("spanId", 2, "bytes", False)],
    "Status": [("message", 2, "string", False), ("code", 3, "int32", False)],
    "Span": [
        ("traceId", 1, "bytes", False),
        ("spanId", 2, "bytes", False),
        ("parentSpanId", 4, "bytes", False),
        ("name", 5, "string", False),
        ("kind", 6, "int32", False),
        ("startTimeUnixNano", 7, "fixed64", False),
        ("endTimeUnixNano", 8, "fixed64", False),
        ("attributes", 9, "Attribute", True),
        ("links", 13, "Link", True),
        ("status", 15, "Status", False),
    ],
    "Resource": [("attributes", 1, "Attribute", True)],
    "Scope": [("name", 1, "string", False)],
    "ScopeSpans": [("scope", 1, "Scope", False), ("spans", 2, "Span", True)],
    "ResourceSpans": [("resource", 1, "Resource", False), ("scopeSpans", 2, "ScopeSpans", True)],
    "TracesData": [("resourceSpans", 1, "ResourceSpans", True)],
}
_ONEOF = ("Plain", "Scalar", "Value")  # which of their fields is set matters, also when it is 0 or ""

_JSON_LEAF = {
    "string": pa.string(),
    "bool": pa.bool_(),
    "int32": pa.int32(),
    "double": pa.float64(),
    # Decimal texts, hex and base64.
    "int64": pa.string(),
    "fixed64": pa.string(),
    "bytes": pa.string(),
}


def _json_type(name: str, values: str) -> pa.DataType:
    if name in _JSON_LEAF:
        return _JSON_LEAF[name]
    fields = []
    for field, _, kind, repeated in _MESSAGES[values if name == "Value" else name]:
        # A resource is there once for many spans, and often has lists.
        inner = _json_type(kind, "Value" if kind == "Resource" else values)
        fields.append(pa.field(field, pa.list_(inner) if repeated else inner))
    return pa.struct(fields)


@cache
def json_schema(*, plain: bool = False) -> pa.Schema:
    """Returns the schema of an array, `LINES`, of OTLP/JSON; ``result`` is where Jaeger's v3 answers have it.

    Args:
        plain: Of the attributes of spans, take no lists, maps and bytes: a fifth faster to parse.
    """
    traces = _json_type("TracesData", "Plain" if plain else "Value")
    line = pa.struct([*traces, pa.field("result", traces)])
    return pa.schema([pa.field(LINES, pa.list_(line))])


@cache
def proto_handler() -> Any:
    """Returns the handler that turns serialized ``TracesData`` messages into Arrow and back."""
    import ptars
    from google.protobuf import descriptor_pb2, descriptor_pool

    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="otel_tf/traces.proto", package="otel_tf", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if name in _ONEOF:
            message.oneof_decl.add(name="value")
        for field, number, kind, repeated in fields:
            added = message.field.add(name=field, number=number, json_name=field)
            added.label = field_type.LABEL_REPEATED if repeated else field_type.LABEL_OPTIONAL
            if kind in _MESSAGES:
                added.type, added.type_name = field_type.TYPE_MESSAGE, f".otel_tf.{kind}"
            else:
                added.type = getattr(field_type, f"TYPE_{kind.upper()}")
            if name in _ONEOF:
                added.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    handlers = ptars.HandlerPool([pool.FindFileByName(file.name)])
    return handlers.get_for_message(pool.FindMessageTypeByName("otel_tf.TracesData"))
