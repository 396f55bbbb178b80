"""Where the keys and values of attributes are in their JSON text, found by comparing whole buffers of bytes.

Writers of OTLP/JSON write an attribute in one way: ``{"key":"K","value":{"intValue":"V"}}``. In valid JSON
two of its parts can only stand between texts, never inside of one, since a quote inside would end it:
``{"key":"`` and ``","value":{"``. So their places delimit every key and value, and no Python object is made
for either. Counting all quotes proves that nothing else is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from otel_tf.correlator.sources.any_value import NESTED_KIND

__all__ = ["DOUBLE", "INTEGER", "NESTED", "TEXT", "Int", "Mask", "Places", "slices"]

Int = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

_KEY, _VALUE = b'{"key":"', b'","value":{"'
#: Bytes that are compared at once: few enough to stay in a processor's cache.
_BLOCK = 1 << 18

#: Kinds of values, by the name's first letter and length.
OTHER, TEXT, INTEGER, DOUBLE, NESTED = range(5)
#: By kind, whether it may be within quotes, and with which letters it may begin without.
_WITHIN_QUOTES = np.array([False, True, True, True, True])
_BEGINS = np.zeros((5, 256), np.bool_)
_BEGINS[OTHER, list(b"tfn")] = _BEGINS[INTEGER, list(b"-0123456789")] = _BEGINS[
    DOUBLE, list(b"-0123456789")
] = True
_LENGTH = np.zeros(256, np.int64)
_KIND = np.zeros(256, np.uint8)
for _name, _kind in (
    ("stringValue", TEXT),
    ("intValue", INTEGER),
    ("doubleValue", DOUBLE),
    ("boolValue", OTHER),
    (NESTED_KIND, NESTED),
):
    _LENGTH[ord(_name[0])], _KIND[ord(_name[0])] = len(_name), _kind


class Places:
    """Where the keys and values in a text of many lists are.

    Attributes:
        text: The lists, one after another.
        escapes: Whether there are escapes in its texts.
        count: How many lists there are.
        owner: Of each attribute, the number of its list.
        key: Where its key begins and ends.
        value: Where its value does, without quotes.
        kind: `TEXT`, `INTEGER`, `DOUBLE`, `NESTED` or another kind.
        quoted: Whether the value is a text in JSON, and to remain one.
        integer: The value, where ``kind`` is `INTEGER`.
    """

    def __init__(self, text: bytes, count: int) -> None:
        self.text = text
        self.escapes = b"\\" in text
        self.count = count
        none = np.empty(0, np.int64)
        self.owner: Int = none
        self.key: tuple[Int, Int] = (none, none)
        self.value: tuple[Int, Int] = (none, none)
        self.kind: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self.quoted: Mask = np.empty(0, np.bool_)
        self.integer: Int = none

    @classmethod
    def of(cls, lists: Sequence[bytes | msgspec.Raw]) -> Places | None:
        """Returns what is in the lists; None if they are not written as most are."""
        text = b"".join(lists)
        lengths = np.fromiter(map(len, lists), np.int64, len(lists))
        found = cls(text, len(lists))
        data = np.frombuffer(text, np.uint8)
        ends = np.cumsum(lengths)
        begins = ends - lengths
        if len(text) == 0 or not ((data[begins] == ord("[")) & (data[ends - 1] == ord("]"))).all():
            return found if len(text) == 0 else None
        start, middle = _places(data, _KEY), _places(data, _VALUE)
        if len(start) != len(middle) or not ((start < middle).all() and (middle[:-1] < start[1:]).all()):
            return None
        if not len(start):
            return found if (lengths == 2).all() else None
        # A list begins with its first attribute and ends with its last one.
        first = data[start - 1] == ord("[")
        filled = np.flatnonzero(lengths > 2)
        if np.count_nonzero(first) != len(filled) or not (start[first] == begins[filled] + 1).all():
            return None
        found.owner = filled[np.cumsum(first) - 1]
        last = np.append(first[1:], True)
        end = np.append(start[1:] - 1, 0)
        end[last] = ends[filled] - 1
        if not found._fill(data, start, middle, end, last):
            return None
        return found

    def _fill(self, data: Bytes, start: Int, middle: Int, end: Int, last: Mask) -> bool:
        """Fills in keys and values; returns whether all is as it is written here.

        Args:
            data: The text.
            start: Where each attribute's brace is.
            middle: Where its key ends.
            end: Where the character after its last brace is.
            last: Whether that is the end of its list.
        """
        name = middle + len(_VALUE)
        letter = data[name]
        length, kind = _LENGTH[letter], _KIND[letter]
        if (bytes_or_bool := letter == ord("b")).any():
            is_bytes = bytes_or_bool & (data[name + 1] == ord("y"))
            length[is_bytes] += 1
            kind[is_bytes] = TEXT  # in base64
        quote = name + length  # of the kind's name; then a colon
        if not length.all() or quote[-1] + 2 >= len(data):
            return False
        text = data[quote + 2] == ord('"')
        begin, stop = quote + 2 + text, end - 2 - text
        if not (begin <= stop).all():
            return False
        good = (
            (data[quote] == ord('"'))
            & (data[quote + 1] == ord(":"))
            & (~text | (data[stop] == ord('"')))
            & (data[end - 2] == ord("}"))
            & (data[end - 1] == ord("}"))
            & (data[end] == np.where(last, np.uint8(ord("]")), np.uint8(ord(","))))
            & np.where(text, _WITHIN_QUOTES[kind], _BEGINS[kind, data[begin]])
        )
        quotes = 8 * len(start) + 2 * int(np.count_nonzero(text))
        if not good.all() or _quotes(self.text, data, escapes=self.escapes) != quotes:
            return False
        integer = np.flatnonzero(kind == INTEGER)
        numbers = _integers(self.text, data, begin[integer], stop[integer])
        if numbers is None:
            return False
        self.integer = np.zeros(len(start), np.int64)
        self.integer[integer] = numbers
        self.key, self.value, self.kind = (start + len(_KEY), middle), (begin, stop), kind
        self.quoted = text & (kind != INTEGER)
        return True

    @property
    def nested(self) -> bool:
        """Whether there is a value of a kind that only we may write."""
        return bool((self.kind == NESTED).any())


def _integers(text: bytes, data: Bytes, begin: Int, stop: Int) -> Int | None:
    """Returns integers; None if one is not as JSON writes them (no plus, no zeros in front) or too large."""
    digit = data[begin + (data[begin] == ord("-"))] - ord("0")
    if not (((digit >= 1) & (digit <= 9)) | ((digit == 0) & (stop - begin == 1))).all():
        return None
    try:
        numbers: Int = slices(text, begin, stop).cast(pa.int64()).to_numpy()
    except pa.ArrowInvalid:
        return None
    return numbers


def _places(data: Bytes, pattern: bytes) -> Int:
    """Returns where ``pattern`` is, at least 8 bytes long."""
    # Two bytes that are seldom there together find the candidates, words of 8 bytes decide.
    one, other = (0, 2) if pattern is _KEY else (1, 3)
    size = len(data) - len(pattern) + 1
    found = []
    for block in range(0, size, _BLOCK):
        stop = min(block + _BLOCK, size)
        here = data[block + one : stop + one] == pattern[one]
        here &= data[block + other : stop + other] == pattern[other]
        found.append(np.flatnonzero(here) + block)
    places = np.concatenate(found) if found else np.empty(0, np.int64)
    for offset in {0, len(pattern) - 8}:
        words: Any = np.ndarray(max(len(data) - 7, 0), "<u8", data, strides=(1,))
        word = int.from_bytes(pattern[offset : offset + 8], "little")
        right = words[places + offset] == word
        if not right.all():
            places = places[right]
    return places


def _quotes(text: bytes, data: Bytes, *, escapes: bool) -> int:
    """Returns how many quotes begin or end a text."""
    count = int(np.count_nonzero(data == ord('"')))
    if escapes:
        count -= text.replace(b"\\\\", b"  ").count(b'\\"')
    return count


def slices(text: bytes, begin: Int, end: Int) -> pa.Array:
    """Returns the parts of ``text`` from ``begin`` to ``end``, both growing, as texts."""
    # Every part, and what lies between it and the next one, without a copy; then every second of these.
    wide = len(text) >= 2**31
    offsets = np.empty(2 * len(begin) + 1, np.int64 if wide else np.int32)
    offsets[0:-1:2], offsets[1::2], offsets[-1] = begin, end, len(text)
    kind = pa.large_string() if wide else pa.string()
    both = pa.Array.from_buffers(kind, 2 * len(begin), [None, pa.py_buffer(offsets), pa.py_buffer(text)])
    return both.take(pa.array(np.arange(0, 2 * len(begin), 2)))
