"""Attributes of many spans at once, from their JSON text to columns.

What most writers write is taken as it stands (`json_places`). Lists of attributes that are written in another
way, and values that hold others, are rewritten first.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from otel_tf.correlator.sources.any_value import NESTED_KIND, double, json_double, plain_attributes, written
from otel_tf.correlator.sources.attributes import Attributes, whole_number
from otel_tf.correlator.sources.json_places import DOUBLE, INTEGER, NESTED, TEXT, Int, Mask, Places, slices

__all__ = ["from_json"]

#: What values that hold others have in their text; and what only we may write.
_HOLDERS = (b"arrayValue", b"kvlistValue", NESTED_KIND.encode())


def from_json(lists: Sequence[bytes | msgspec.Raw]) -> Attributes:
    """Returns the attributes of many owners.

    Args:
        lists: For each owner, its attributes as JSON. Each is valid by itself, UTF-8 included.
    """
    found = Places.of(lists)
    if found is None and any(b'"key": ' in bytes(text) for text in lists):
        # Written with spaces, as Python's json does.
        lists = [msgspec.json.format(bytes(text), indent=-1) for text in lists]
        found = Places.of(lists)
    if found is None or found.nested:
        found = Places.of([_without_nested(text) for text in lists])
    if found is None:
        found = Places.of([_rewritten(text) for text in lists])
    assert found is not None, "what is written here is not as most writers write it"
    keys = slices(found.text, *found.key).dictionary_encode()
    names = keys.dictionary.to_pylist()
    if found.escapes:
        names = [_unescaped(name) for name in names]
    code = keys.indices.to_numpy(zero_copy_only=False)
    return Attributes(found.count, found.owner, names, code, _Values(found))


def _without_nested(text: bytes | msgspec.Raw) -> bytes | msgspec.Raw:
    """Returns a list of attributes; rewritten if values in it may hold others."""
    plain = bytes(text)
    return _rewritten(text) if any(kind in plain for kind in _HOLDERS) else text


def _rewritten(text: bytes | msgspec.Raw) -> bytes:
    """Returns a list of attributes as most writers write it."""
    return written(plain_attributes(msgspec.json.decode(text)))


class _Values:
    """See `attributes.Values`."""

    def __init__(self, found: Places) -> None:
        self._found = found

    def _texts(self, at: Int) -> pa.Array:
        begin, end = self._found.value
        return slices(self._found.text, begin[at], end[at])

    def integers(self, at: Int) -> pa.Array:
        kind = self._found.kind[at]
        if (kind == INTEGER).all():
            return pa.array(self._found.integer[at])
        pairs = zip(self._texts(at).to_pylist(), kind.tolist(), strict=True)
        return pa.array([_whole(text, a_kind) for text, a_kind in pairs], pa.int64())

    def texts(self, at: Int) -> pa.DictionaryArray:
        kind = self._found.kind[at]
        texts = self._texts(at).dictionary_encode()
        codes, names = texts.indices, texts.dictionary
        good = (kind == TEXT) | (kind == INTEGER)
        if not good.all():
            codes = pa.array(codes.to_numpy(zero_copy_only=False), mask=~good)
        if self._found.escapes:
            names = pa.array([_unescaped(name) for name in names.to_pylist()], pa.string())
        return pa.DictionaryArray.from_arrays(codes, names.cast(pa.string()))

    def json(self, at: Int) -> pa.Array:
        found, kind, quoted = self._found, self._found.kind[at], self._found.quoted[at]
        begin, end = (bounds[at] for bounds in found.value)
        texts = slices(found.text, begin - quoted, end + quoted)
        # Most need nothing done to them.
        odd = (kind == NESTED) | ((kind == DOUBLE) & quoted)
        if (kind == DOUBLE).any():
            odd |= (kind == DOUBLE) & ~_matches(texts, "[.eE]")
        if found.escapes:
            odd |= quoted & _matches(texts, r"\\")
        rows = np.flatnonzero(odd)
        if not len(rows):
            return texts
        made = [
            _mended(text, a_kind)
            for text, a_kind in zip(texts.take(pa.array(rows)).to_pylist(), kind[rows].tolist(), strict=True)
        ]
        return pc.replace_with_mask(texts, pa.array(odd), pa.array(made, texts.type))


def _matches(texts: pa.Array, pattern: str) -> Mask:
    mask: Mask = pc.match_substring_regex(texts, pattern).to_numpy(zero_copy_only=False)
    return mask


def _mended(text: str, kind: int) -> str:
    """Returns a value's JSON as it is written here."""
    value = msgspec.json.decode(text)
    if kind == NESTED:
        return str(value)
    if kind == DOUBLE:
        # 1.0, which may be written as 1, must not come back as the integer 1.
        value = double(value)
        return json_double(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
    # One text, one way to write it.
    return json.dumps(value, ensure_ascii=False)


def _whole(text: str, kind: int) -> int | None:
    if kind == DOUBLE:
        value = double(text)
        return whole_number(value) if isinstance(value, float) else None
    return whole_number(_unescaped(text)) if kind in (TEXT, INTEGER) else None


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    decoded: str = msgspec.json.decode(f'"{text}"')
    return decoded
