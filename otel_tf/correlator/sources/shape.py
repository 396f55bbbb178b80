"""The nested shape of OTLP traces in Arrow, from protobuf and to it.

Field names are OTLP/JSON's: names are not on the wire, only numbers are. What is not listed is not read.
"""

from __future__ import annotations

from functools import cache
from typing import Any

__all__ = ["proto_handler"]

_MESSAGES: dict[str, list[tuple[str, int, str, bool]]] = {
    # message: (field, number, protobuf type or message, repeated)
    "Value": [
        ("stringValue", 1, "string", False),
        ("boolValue", 2, "bool", False),
        ("intValue", 3, "int64", False),
        ("doubleValue", 4, "double", False),
        # Messages again, of a recursive type: Arrow has none, so they stay serialized.
        ("arrayValue", 5, "bytes", False),
        ("kvlistValue", 6, "bytes", False),
        ("bytesValue", 7, "bytes", False),
    ],
    "Attribute": [("key", 1, "string", False), ("value", 2, "Value", False)],
    "Event": [("name", 2, "string", False), ("attributes", 3, "Attribute", True)],
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
        ("events", 11, "Event", True),
        ("links", 13, "Link", True),
        ("status", 15, "Status", False),
    ],
    "Resource": [("attributes", 1, "Attribute", True)],
    "Scope": [("name", 1, "string", False)],
    "ScopeSpans": [("scope", 1, "Scope", False), ("spans", 2, "Span", True)],
    "ResourceSpans": [("resource", 1, "Resource", False), ("scopeSpans", 2, "ScopeSpans", True)],
    "TracesData": [("resourceSpans", 1, "ResourceSpans", True)],
}
_ONEOF = ("Value",)  # which of their fields is set matters, also when it is 0 or ""


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
