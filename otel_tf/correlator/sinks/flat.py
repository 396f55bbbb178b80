"""Attributes of many spans as columns, since one Python object an attribute is what writing would cost."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["Flat", "flat_of", "join"]

Int = npt.NDArray[np.int64]

_KINDS: dict[str, tuple[type, pa.DataType]] = {
    "stringValue": (str, pa.string()),
    "boolValue": (bool, pa.bool_()),
    "intValue": (int, pa.int64()),
    "doubleValue": (float, pa.float64()),
}


@dataclasses.dataclass(frozen=True)
class Flat:
    """Attributes of ``count`` owners, sorted by owner.

    Attributes:
        count: Number of owners.
        owner: Of each attribute.
        key: Of each attribute, texts.
        leaves: By OTLP's name of the kind of value, a column with nulls where the value is of another.
        nested: Lists and maps, which are rare, by the attribute's number.
    """

    count: int
    owner: Int
    key: pa.StringArray
    leaves: dict[str, pa.Array]
    nested: dict[int, Any]

    @functools.cached_property
    def offsets(self) -> Int:
        """Where each owner's attributes begin, and the end (count + 1,)."""
        return np.concatenate([[0], np.cumsum(np.bincount(self.owner, minlength=self.count))])


def flat_of(count: int, owner: Int | list[int], key: str | list[str], values: Any) -> Flat:
    """Returns attributes from their parts.

    Args:
        count: Number of owners.
        owner: Of each attribute, ascending.
        key: Of each attribute, or one for all.
        values: Values of any kind, or an Arrow column of texts, integers or doubles without nulls.
    """
    length = len(values)
    keys = pa.repeat(key, length) if isinstance(key, str) else pa.array(key, pa.string())
    nested: dict[int, Any] = {}
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        column = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        leaves = {
            kind: column if column.type == arrow else pa.nulls(length, arrow)
            for kind, (_, arrow) in _KINDS.items()
        }
    else:
        kinds = [type(value) for value in values]
        leaves = {
            kind: pa.array(
                [value if own is python else None for value, own in zip(values, kinds, strict=True)], arrow
            )
            for kind, (python, arrow) in _KINDS.items()
        }
        nested = {number: value for number, value in enumerate(values) if isinstance(value, (list, dict))}
    return Flat(count, np.asarray(owner, np.int64), keys, leaves, nested)


def join(parts: Iterable[Flat]) -> Flat:
    """Returns the attributes of several parts about the same owners; those of earlier parts first."""
    parts = list(parts)
    owner = np.concatenate([part.owner for part in parts])
    at = np.argsort(owner, kind="stable")
    index = pa.array(at)
    starts = itertools.accumulate((len(part.owner) for part in parts), initial=0)
    nested = {
        start + n: value
        for start, part in zip(starts, parts, strict=False)
        for n, value in part.nested.items()
    }
    if nested:
        place = np.empty_like(at)
        place[at] = np.arange(len(at))
        nested = {int(place[old]): value for old, value in nested.items()}
    return Flat(
        parts[0].count,
        owner[at],
        pa.concat_arrays([part.key for part in parts]).take(index),
        {kind: pa.concat_arrays([part.leaves[kind] for part in parts]).take(index) for kind in _KINDS},
        nested,
    )
