"""Attribute values as OTLP can hold them.

Seams hand over plain Python values and nothing here is paid for those. What else arrives (numpy scalars,
integers beyond 64 bits, text with lone surrogates from a file name) is made to fit once, so that the
spool, the network and the SDK all carry the same.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["clean", "clean_text"]

_MIN, _MAX = -(1 << 63), (1 << 63) - 1


def clean_text(text: str) -> str:
    """Returns ``text`` as UTF-8 can hold it; lone surrogates become question marks."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    # A subclass (numpy's str_, an enumeration's member) becomes plain text.
    return text if type(text) is str else str.__str__(text)


def clean(value: Any) -> Any:
    """Returns ``value`` as one of OTLP's kinds; what is none of them becomes its text."""
    kind = type(value)
    if kind is str:
        return clean_text(value)
    if kind is int:
        return value if _MIN <= value <= _MAX else str(value)
    if kind is bool or kind is float or kind is bytes or value is None:
        return value
    if isinstance(value, str):
        return clean_text(value)
    if getattr(value, "shape", None) == () and callable(getattr(value, "item", None)):
        return clean(value.item())  # a numpy scalar
    if isinstance(value, numbers.Integral):
        return clean(int(value))
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Mapping):
        return {clean_text(str(key)): clean(each) for key, each in value.items()}
    if isinstance(value, (Sequence, set, frozenset)) and not isinstance(value, (bytearray, memoryview)):
        return tuple(clean(each) for each in value)
    return clean_text(str(value))
