"""The values of attributes that protobuf left in Arrow: one leaf a kind, null where it is another kind."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from otel_tf.correlator.sources.any_value import finite, json_double
from otel_tf.correlator.sources.attributes import Attributes, quoted, whole_number

__all__ = ["from_lists", "parents"]

Int = npt.NDArray[np.int64]


def from_lists(lists: pa.Array) -> Attributes:
    """Returns attributes in columns.

    Args:
        lists: One list of OTLP ``KeyValue`` an owner, in the shape of `shape`.
    """
    items = lists.flatten()
    keys = items.field("key").fill_null("").dictionary_encode()
    code = keys.indices.to_numpy(zero_copy_only=False)
    return Attributes(
        len(lists), parents(lists), keys.dictionary.to_pylist(), code, _Values(items.field("value"))
    )


def parents(lists: pa.Array) -> Int:
    """Returns, for each item of ``lists.flatten()``, the row of the list it is in."""
    found: Int = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


class _Values:
    """See `attributes.Values`."""

    def __init__(self, value: pa.StructArray) -> None:
        self._value = value

    def _leaf(self, kind: str, at: Int) -> pa.Array:
        return self._value.field(kind).take(pa.array(at))

    def integers(self, at: Int) -> pa.Array:
        number = self._leaf("intValue", at)
        for kind in ("stringValue", "doubleValue"):
            if number.null_count:
                other = [whole_number(value) for value in self._leaf(kind, at).to_pylist()]
                number = pc.coalesce(number, pa.array(other, pa.int64()))
        return number

    def texts(self, at: Int) -> pa.DictionaryArray:
        text = self._leaf("stringValue", at)
        if text.null_count:
            text = pc.coalesce(text, self._leaf("intValue", at).cast(pa.string()))
        if text.null_count:
            text = pc.coalesce(text, _each(_base64)(self._leaf("bytesValue", at)))
        return text.dictionary_encode()

    def json(self, at: Int) -> pa.Array:
        result = quoted(self._leaf("stringValue", at))
        for kind, make in _JSON.items():
            if not result.null_count:
                break
            leaf = self._leaf(kind, at)
            if leaf.null_count < len(leaf):
                result = pc.coalesce(result, make(leaf))
        return result.fill_null("null")


def _as_written(leaf: pa.Array) -> pa.Array:
    return leaf.cast(pa.string())


def _each(make: Any) -> Any:
    def convert(leaf: pa.Array) -> pa.Array:
        return pa.array([None if x is None else make(x) for x in leaf.to_pylist()], pa.string())

    return convert


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _list(data: bytes) -> str:
    from opentelemetry.proto.common.v1.common_pb2 import ArrayValue

    return _nested(ArrayValue, data, lambda message: [_plain(item) for item in message.values])


def _map(data: bytes) -> str:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValueList

    return _nested(KeyValueList, data, _plain_map)


def _nested(kind: Any, data: bytes, plain: Any) -> str:
    from google.protobuf.message import DecodeError

    try:
        return msgspec.json.encode(plain(kind.FromString(data))).decode()
    except (DecodeError, RecursionError):
        return "null"


def _plain_map(message: Any) -> dict[str, Any]:
    return {item.key: _plain(item.value) for item in message.values}


def _plain(value: Any) -> Any:
    """Returns an ``AnyValue`` message as JSON has it."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    inner = getattr(value, kind)
    if kind == "array_value":
        return [_plain(item) for item in inner.values]
    if kind == "kvlist_value":
        return _plain_map(inner)
    if kind == "bytes_value":
        return _base64(inner)
    return finite(inner)


_JSON = {
    "intValue": _as_written,
    "boolValue": _as_written,
    "doubleValue": _each(json_double),
    "arrayValue": _each(_list),
    "kvlistValue": _each(_map),
    "bytesValue": _each(lambda data: f'"{_base64(data)}"'),
}
