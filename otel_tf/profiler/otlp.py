"""OTLP's two ways of writing a span, for tables of bytes: protobuf and JSON; see `encode`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from otel_tf import semconv
from otel_tf._proto import field, varint
from otel_tf.profiler.encode import Bytes, Int, Layout, Piece

__all__ = ["Json", "Proto"]


def _byte_rows(values: Int, kind: str) -> Bytes:
    """Returns the bytes of 8-byte numbers, a row each."""
    return np.ascontiguousarray(values.astype(kind)).view(np.uint8).reshape(-1, 8)


class Proto:
    """OTLP protobuf, with the fields in the order of their numbers, as protobuf's own encoder has them."""

    def width(self, values: Int) -> Int:
        """See `Format`."""
        width = np.ones(len(values), np.int64)
        for bits in range(7, 63, 7):
            reached = values >= 1 << bits
            if not reached.any():
                break
            width += reached
        return np.where(values < 0, 10, width)

    def length(self, width: int) -> int:
        """See `Format`."""
        return width

    def integer(self, values: Int, width: int) -> Bytes:
        """See `Format`."""
        shifts = np.arange(0, 7 * width, 7, dtype=np.uint64)
        found = (values.astype(np.uint64)[:, None] >> shifts & np.uint64(0x7F)).astype(np.uint8)
        found[:, :-1] |= 0x80
        return found

    def identifier(self, values: Int) -> Bytes:
        """See `Format`."""
        return _byte_rows(values, ">i8")

    def time_width(self, values: Int) -> Int:
        """See `Format`."""
        return np.full(len(values), 8, np.int64)

    def time(self, values: Int, width: int) -> Bytes:
        """See `Format`."""
        return _byte_rows(values, "<i8")

    def row(self, layout: Layout, widths: Mapping[str, int], *, child: bool) -> list[Piece]:
        """See `Format`."""
        from opentelemetry.proto.trace.v1.trace_pb2 import Span

        pieces: list[Piece] = [b"\x0a\x10", ("trace_hi", 8), ("trace_lo", 8), b"\x12\x08", ("span", 8)]
        if child:
            pieces += [b"\x22\x08", ("parent", 8)]
        pieces += [
            Span(name=layout.name, kind=layout.kind).SerializeToString(),  # type: ignore[arg-type]
            b"\x39",
            ("start_ns", 8),
            b"\x41",
            ("end_ns", 8),
        ]
        for key, value in layout.fixed:
            pieces.append(field(b"\x4a", _key_value(key, value)))
        for key in layout.integers:
            width = widths[key]
            name = field(b"\x0a", key.encode())
            inside = len(name) + 3 + width
            pieces += [
                b"\x4a" + varint(inside) + name + b"\x12" + varint(1 + width) + b"\x18",
                (key, width),
            ]
        if layout.linked:
            pieces += [b"\x6a\x1c\x0a\x10", ("link_hi", 8), ("link_lo", 8), b"\x12\x08", ("link_span", 8)]
        size = sum(len(piece) if isinstance(piece, bytes) else piece[1] for piece in pieces)
        return [b"\x12" + varint(size), *pieces]

    def request(self, resource: Mapping[str, Any], rows: list[bytes]) -> bytes:
        """See `Format`."""
        about = b"".join(field(b"\x0a", _key_value(key, value)) for key, value in resource.items())
        scope = field(b"\x0a", field(b"\x0a", semconv.SCOPE.encode()))
        size = len(scope) + sum(map(len, rows))
        head = field(b"\x0a", about) + b"\x12" + varint(size) + scope
        return b"".join([b"\x0a", varint(len(head) - len(scope) + size), head, *rows])


class Json:
    """OTLP/JSON: one line, without its newline."""

    def width(self, values: Int) -> Int:
        """See `Format`."""
        negative = values < 0
        size = _magnitude(values)
        digits = np.ones(len(values), np.int64)
        for power in range(1, 20):
            reached = size >= np.uint64(10**power)
            if not reached.any():
                break
            digits += reached
        return digits + 20 * negative

    def length(self, width: int) -> int:
        """See `Format`."""
        return width - 19 if width > 20 else width

    def integer(self, values: Int, width: int) -> Bytes:
        """See `Format`."""
        if width <= 20:
            return _digits(values.astype(np.uint64), width)
        found = _digits(_magnitude(values), width - 20)
        return np.concatenate([np.full((len(found), 1), ord("-"), np.uint8), found], axis=1)

    def identifier(self, values: Int) -> Bytes:
        """See `Format`."""
        rows = _byte_rows(values, ">i8")
        found = np.empty((len(rows), 16), np.uint8)
        found[:, 0::2], found[:, 1::2] = _HEX[rows >> 4], _HEX[rows & 15]
        return found

    def time_width(self, values: Int) -> Int:
        """See `Format`."""
        return self.width(values)

    def time(self, values: Int, width: int) -> Bytes:
        """See `Format`."""
        return _digits(values.astype(np.uint64), width)

    def row(self, layout: Layout, widths: Mapping[str, int], *, child: bool) -> list[Piece]:
        """See `Format`."""
        half = 16
        pieces: list[Piece] = [b'{"traceId":"', ("trace_hi", half), ("trace_lo", half)]
        pieces += [b'","spanId":"', ("span", half)]
        if child:
            pieces += [b'","parentSpanId":"', ("parent", half)]
        name = json.dumps(layout.name, ensure_ascii=False)
        pieces += [f'","name":{name},"kind":{layout.kind},"startTimeUnixNano":"'.encode()]
        pieces += [("start_ns", widths["start_ns"]), b'","endTimeUnixNano":"', ("end_ns", widths["end_ns"])]
        fixed = ",".join(json.dumps(_json_pair(*pair), **_COMPACT) for pair in layout.fixed)
        text = f'","attributes":[{fixed}'
        comma = "," if layout.fixed else ""
        for key in layout.integers:
            text += f'{comma}{{"key":{json.dumps(key)},"value":{{"intValue":"'
            pieces += [text.encode(), (key, self.length(widths[key]))]
            text, comma = '"}}', ","
        text += "]"
        if layout.linked:
            pieces += [f'{text},"links":[{{"traceId":"'.encode(), ("link_hi", half), ("link_lo", half)]
            pieces += [b'","spanId":"', ("link_span", half)]
            text = '"}]'
        return [*pieces, f"{text}}},".encode()]

    def request(self, resource: Mapping[str, Any], rows: list[bytes]) -> bytes:
        """See `Format`."""
        about = json.dumps({"attributes": [_json_pair(*pair) for pair in resource.items()]}, **_COMPACT)
        head = f'{{"resourceSpans":[{{"resource":{about},"scopeSpans":[{{"scope":{{"name":"{semconv.SCOPE}"}}'
        spans = b"".join(rows)[:-1]  # after the last one there is no comma
        return b"".join([head.encode(), b',"spans":[', spans, b"]}]}]}"])


_COMPACT: Any = {"ensure_ascii": False, "separators": (",", ":")}
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_FOUR_DIGITS = np.frombuffer(b"".join(b"%04d" % number for number in range(10_000)), np.uint32)


def _magnitude(values: Int) -> npt.NDArray[np.uint64]:
    bits = values.astype(np.uint64)
    return np.where(values < 0, ~bits + np.uint64(1), bits)


def _digits(values: npt.NDArray[np.uint64], count: int) -> Bytes:
    """Returns decimal digits, four at a time: a look-up is cheaper than three divisions."""
    fours = -(-count // 4)
    found = np.empty((len(values), fours), np.uint32)
    rest = values
    for place in range(fours - 1, -1, -1):
        # numpy divides by one number fast, but not with the remainder.
        left = rest // np.uint64(10_000)
        found[:, place] = _FOUR_DIGITS[(rest - left * np.uint64(10_000)).view(np.int64)]
        rest = left
    return found.view(np.uint8)[:, 4 * fours - count :]


def _key_value(key: str, value: Any) -> bytes:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    found: bytes = KeyValue(key=key, value=_any_value(value)).SerializeToString()
    return found


def _any_value(value: Any) -> Any:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue

    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=value)
    return AnyValue(array_value=ArrayValue(values=map(_any_value, value)))


def _json_pair(key: str, value: Any) -> dict[str, Any]:
    return {"key": key, "value": _json_value(value)}


def _json_value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, str):
        return {"stringValue": value}
    return {"arrayValue": {"values": [_json_value(item) for item in value]}}
