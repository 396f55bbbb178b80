"""The nested shape of OTLP traces in Arrow, from protobuf and to it.

Field names are OTLP/JSON's: names are not on the wire, only numbers are. What is not listed is not read.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from otel_tf import _proto

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
#: Which of these is set matters, also when it is 0 or "".
_ONEOF = {"Value": [field for field, *_ in _MESSAGES["Value"]]}


@cache
def proto_handler() -> Any:
    """Returns the handler that turns serialized ``TracesData`` messages into Arrow and back."""
    return _proto.handlers("otel_tf.traces", _MESSAGES, _ONEOF, ["TracesData"])["TracesData"]
