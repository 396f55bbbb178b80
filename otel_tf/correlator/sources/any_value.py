"""OTLP's ``AnyValue`` in JSON: what values mean, and how most writers write them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec

__all__ = [
    "NESTED_KIND",
    "clean_text",
    "double",
    "finite",
    "json_double",
    "plain",
    "plain_attributes",
    "written",
]

#: Our own kind of value: JSON in a text, for what is a list or a map.
NESTED_KIND = "jsonValue"

#: As deep as protobuf's own readers go.
_DEEPEST = 100


def clean_text(text: str) -> str:
    """Returns ``text`` without what no encoding has: a lone surrogate is valid in JSON's escapes."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def json_double(number: float) -> str:
    """Returns a double as JSON. 1.0 does not come back as the integer 1; NaN and infinity are texts."""
    return repr(number) if math.isfinite(number) else f'"{_named(number)}"'


def plain_attributes(value: Any) -> list[tuple[str, Any]]:
    """Returns keys and `plain` values of what should be a list of ``KeyValue``; what is none is left out."""
    items = value if isinstance(value, list) else []
    pairs = ((item.get("key"), item.get("value")) for item in items if isinstance(item, dict))
    return [(clean_text(key) if isinstance(key, str) else "", plain(inner)) for key, inner in pairs]


def plain(value: Any, depth: int = 0) -> Any:
    """Returns what an ``AnyValue`` holds, bytes in base64; None where it holds nothing.

    Lists and maps come with what is in them, to a depth of 100.
    """
    if not isinstance(value, dict):
        return None
    for kind, inner in value.items():
        if kind in ("stringValue", "bytesValue") and isinstance(inner, str):
            return clean_text(inner)
        if kind == "boolValue" and isinstance(inner, bool):
            return inner
        if kind == "intValue" and inner is not None:
            return _integer(inner)
        if kind == "doubleValue" and inner is not None:
            return double(inner)
        if kind in ("arrayValue", "kvlistValue") and isinstance(inner, dict) and depth < _DEEPEST:
            return _nested(kind, inner.get("values"), depth + 1)
    return None


def _nested(kind: str, values: Any, depth: int) -> Any:
    items = [item for item in values if isinstance(item, dict)] if isinstance(values, list) else []
    if kind == "arrayValue":
        return [finite(plain(item, depth)) for item in items]
    return {clean_text(str(item.get("key") or "")): finite(plain(item.get("value"), depth)) for item in items}


def _integer(value: Any) -> int | str:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return clean_text(str(value))
    same = isinstance(value, (int, str)) or number == value
    return number if same and -(2**63) <= number < 2**63 else clean_text(str(value))


def double(value: Any) -> float | str:
    """Returns what should be a double as one, a text if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return clean_text(str(value))


def finite(value: Any) -> Any:
    """Returns ``value``; the name of a double that JSON does not have."""
    return _named(value) if isinstance(value, float) and not math.isfinite(value) else value


def _named(number: float) -> str:
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def written(pairs: Iterable[tuple[str, Any]]) -> bytes:
    """Returns attributes as the JSON that most writers write, lists and maps as `NESTED_KIND`."""
    encode = msgspec.json.encode
    return b"[%s]" % b",".join(
        b'{"key":%s,"value":{%s}}' % (encode(key), _value(value)) for key, value in pairs
    )


def _value(value: Any) -> bytes:
    encode = msgspec.json.encode
    if isinstance(value, bool) or value is None:
        return b'"boolValue":' + encode(value)
    if isinstance(value, int):
        return b'"intValue":"%d"' % value
    if isinstance(value, float):
        return b'"doubleValue":' + json_double(value).encode()
    if isinstance(value, str):
        return b'"stringValue":' + encode(value)
    return b'"%s":' % NESTED_KIND.encode() + encode(encode(value).decode())
