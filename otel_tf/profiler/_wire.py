"""Protobuf's outermost layer: where the fields of a message begin and end, whatever is in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Damaged", "Field", "fields"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}


class Damaged(Exception):
    """A message goes on, but not as protobuf does.

    Attributes:
        at: Where the first field that is not whole begins.
        cut: Whether its length leads beyond the end, as in a file that was cut off.
    """

    def __init__(self, at: int, *, cut: bool) -> None:
        super().__init__(at)
        self.at = at
        self.cut = cut


class Field(NamedTuple):
    """A field: its number, where its tag begins, where its content begins, where both end."""

    number: int
    begin: int
    content: int
    end: int


def fields(data: memoryview, begin: int, end: int) -> Iterator[Field]:
    """Yields the fields of the message that is ``data[begin:end]``.

    Raises:
        Damaged: After the last field that is whole, if that is not the end.
    """
    at = begin
    while at < end:
        tag, content = _varint(data, at, end, at)
        wire = tag & 7
        if wire == _BYTES:
            length, content = _varint(data, content, end, at)
            stop = content + length
        elif wire == _VARINT:
            _, stop = _varint(data, content, end, at)
        elif wire in _FIXED:
            stop = content + _FIXED[wire]
        else:
            raise Damaged(at, cut=False)
        if not tag >> 3:
            raise Damaged(at, cut=False)
        if stop > end:
            raise Damaged(at, cut=True)
        yield Field(tag >> 3, at, content, stop)
        at = stop


def _varint(data: memoryview, at: int, end: int, field: int) -> tuple[int, int]:
    """Returns a number and where it ends."""
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise Damaged(field, cut=False)
    raise Damaged(field, cut=True)
