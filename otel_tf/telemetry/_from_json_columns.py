"""Lines of the spool into OTLP protobuf, whole columns at a time: six times as fast as by messages.

It takes what the spool mostly holds. A line with something else in it, such as lists in lists or a NaN,
is left to `_from_json`, which takes everything.
"""

from __future__ import annotations

import binascii
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json

from otel_tf import _proto

__all__ = ["NotColumns", "to_protobuf"]

_LINES = "lines"

_ATTRIBUTES = ("attributes", "Attribute", True)
_DROPPED_ATTRIBUTES = ("droppedAttributesCount", "uint32", False)

#: message: number of each field in opentelemetry-proto's ``trace.proto``: (name, type or message, repeated).
_MESSAGES: dict[str, dict[int, tuple[str, str, bool]]] = {
    "Scalar": {
        1: ("stringValue", "string", False),
        2: ("boolValue", "bool", False),
        3: ("intValue", "int64", False),
        4: ("doubleValue", "double", False),
    },
    "ScalarPair": {1: ("key", "string", False), 2: ("value", "Scalar", False)},
    "ScalarList": {1: ("values", "Scalar", True)},
    "ScalarMap": {1: ("values", "ScalarPair", True)},
    "Value": {
        1: ("stringValue", "string", False),
        2: ("boolValue", "bool", False),
        3: ("intValue", "int64", False),
        4: ("doubleValue", "double", False),
        5: ("arrayValue", "ScalarList", False),
        6: ("kvlistValue", "ScalarMap", False),
    },
    "Attribute": {1: ("key", "string", False), 2: ("value", "Value", False)},
    "Event": {
        1: ("timeUnixNano", "fixed64", False),
        2: ("name", "string", False),
        3: _ATTRIBUTES,
        4: _DROPPED_ATTRIBUTES,
    },
    "Link": {
        1: ("traceId", "bytes", False),
        2: ("spanId", "bytes", False),
        4: _ATTRIBUTES,
        5: _DROPPED_ATTRIBUTES,
        6: ("flags", "fixed32", False),
    },
    "Status": {2: ("message", "string", False), 3: ("code", "int32", False)},
    "Span": {
        1: ("traceId", "bytes", False),
        2: ("spanId", "bytes", False),
        3: ("traceState", "string", False),
        4: ("parentSpanId", "bytes", False),
        5: ("name", "string", False),
        6: ("kind", "int32", False),
        7: ("startTimeUnixNano", "fixed64", False),
        8: ("endTimeUnixNano", "fixed64", False),
        9: _ATTRIBUTES,
        10: _DROPPED_ATTRIBUTES,
        11: ("events", "Event", True),
        12: ("droppedEventsCount", "uint32", False),
        13: ("links", "Link", True),
        14: ("droppedLinksCount", "uint32", False),
        15: ("status", "Status", False),
        16: ("flags", "fixed32", False),
    },
    "Resource": {1: _ATTRIBUTES},
    "Scope": {1: ("name", "string", False), 2: ("version", "string", False)},
    "ScopeSpans": {1: ("scope", "Scope", False), 2: ("spans", "Span", True)},
    "ResourceSpans": {
        1: ("resource", "Resource", False),
        2: ("scopeSpans", "ScopeSpans", True),
        3: ("schemaUrl", "string", False),
    },
    "TracesData": {1: ("resourceSpans", "ResourceSpans", True)},
}
_ONEOF = ("Scalar", "Value")  # which of their fields is set matters, also when it is 0 or ""

#: What most spans do not have.
_NOT_PLAIN = frozenset(
    {
        *("arrayValue", "kvlistValue", "events", "links", "traceState"),
        *("droppedAttributesCount", "droppedEventsCount", "droppedLinksCount"),
    }
)
#: How JSON has them: ids in hex and 64-bit integers as texts.
_JSON_LEAF = {
    "string": pa.string(),
    "bool": pa.bool_(),
    "int32": pa.int32(),
    "uint32": pa.uint32(),
    "fixed32": pa.uint32(),
    "double": pa.float64(),
    "int64": pa.string(),
    "fixed64": pa.string(),
    "bytes": pa.string(),
}
_AS_NUMBER = {"int64": pa.int64(), "fixed64": pa.uint64()}


class NotColumns(ValueError):
    """The lines hold something that the columns have no place for."""


def to_protobuf(lines: list[bytes]) -> bytes:
    """Returns lines of the spool as one serialized ``ExportTraceServiceRequest``.

    Args:
        lines: Each one JSON object that holds ``resourceSpans``, with or without its newline.

    Raises:
        NotColumns: See there.
    """
    text = b'{"%s":[%s]}' % (_LINES.encode(), b",".join(line.rstrip(b"\n") for line in lines))
    try:
        try:
            documents = _documents(text, plain=True)
        except pa.ArrowInvalid:
            documents = _documents(text, plain=False)
        spans = _converted(documents.field("resourceSpans").flatten(), "ResourceSpans")
    except (pa.ArrowInvalid, binascii.Error) as error:
        raise NotColumns(str(error)) from None
    whole = pa.ListArray.from_arrays(pa.array([0, len(spans)], pa.int32()), spans)
    batch = pa.RecordBatch.from_arrays([whole], names=["resourceSpans"])
    return bytes(_handler().record_batch_to_array(batch)[0].as_py())


def _documents(text: bytes, *, plain: bool) -> pa.StructArray:
    table = pyarrow.json.read_json(
        pa.BufferReader(text),
        # One block: a text that is longer than a block is an error.
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=max(len(text) + 1, 1 << 16)),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=_json_schema(plain=plain), unexpected_field_behavior="error"
        ),
    )
    return table[_LINES].combine_chunks().flatten()


def _converted(array: Any, kind: str) -> Any:
    """Returns a column as JSON has it in the types of protobuf."""
    if kind == "bytes":
        return _unhexed(array)
    if kind in _AS_NUMBER:
        return array.cast(_AS_NUMBER[kind])
    if kind not in _MESSAGES:
        return array
    columns: dict[str, Any] = {}
    for name, inner, repeated in _MESSAGES[kind].values():
        if array.type.get_field_index(name) < 0:
            continue
        column = array.field(name)
        if repeated:
            columns[name] = pa.ListArray.from_arrays(_offsets(column), _converted(column.flatten(), inner))
        else:
            columns[name] = _converted(column, inner)
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns), mask=array.is_null())


def _offsets(lists: Any) -> pa.Array:
    """Returns where lists begin in what `flatten` gives of them; null is as empty."""
    lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())


def _unhexed(texts: Any) -> pa.BinaryArray:
    """Returns ids in hex as bytes.

    Raises:
        binascii.Error: One has something else in it.
    """
    _, offsets_buffer, data = texts.buffers()
    if data is None:
        return pa.nulls(len(texts), pa.binary()).fill_null(b"")
    at = np.frombuffer(offsets_buffer, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    if ((at - at[0]) % 2).any():
        raise binascii.Error("an id with an odd number of digits")
    raw = binascii.unhexlify(memoryview(data)[int(at[0]) : int(at[-1])])
    offsets = ((at - at[0]) // 2).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(raw)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(texts), buffers)


def _json_type(kind: str, without: frozenset[str]) -> pa.DataType:
    if kind in _JSON_LEAF:
        return _JSON_LEAF[kind]
    # A resource is there once for many spans, and often has lists.
    inside = frozenset[str]() if kind == "Resource" else without
    fields = [
        pa.field(name, pa.list_(_json_type(inner, inside)) if repeated else _json_type(inner, inside))
        for name, inner, repeated in _MESSAGES[kind].values()
        if name not in inside
    ]
    return pa.struct(fields)


@cache
def _json_schema(*, plain: bool) -> pa.Schema:
    """Returns the schema of an array of lines; of plain spans a quarter faster to parse."""
    without = _NOT_PLAIN if plain else frozenset[str]()
    return pa.schema([pa.field(_LINES, pa.list_(_json_type("TracesData", without)))])


@cache
def _handler() -> Any:
    """Returns what writes Arrow columns as serialized ``TracesData``."""
    messages = {
        name: [(field, number, kind, repeated) for number, (field, kind, repeated) in fields.items()]
        for name, fields in _MESSAGES.items()
    }
    oneof = {name: [field for field, *_ in messages[name]] for name in _ONEOF}
    return _proto.handlers("otel_tf.spool", messages, oneof, ["TracesData"])["TracesData"]
