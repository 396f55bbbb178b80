"""Key-value attributes in columns: one attribute to a column of its own, the rest to JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["MOST_ATTRIBUTES", "Attributes", "Extra", "Integers", "Texts", "Values", "quoted", "whole_number"]

#: More attributes than that on one span are cut (OpenTelemetry's SDKs stop at 128 by default).
MOST_ATTRIBUTES = 1024

_NEEDS_ESCAPE = r'["\\\x00-\x1f]'

Int = npt.NDArray[np.int64]


class Values(Protocol):
    """The values of attributes, as a format has them. ``at`` are numbers of attributes, growing."""

    def integers(self, at: Int) -> pa.Array:
        """Returns them as int64. Texts and doubles that are whole numbers count; null where there is none."""

    def texts(self, at: Int) -> pa.DictionaryArray:
        """Returns texts and, as texts, integers; null where it is neither."""

    def json(self, at: Int) -> pa.Array:
        """Returns each as a JSON text; ``null`` where there is no value."""


@dataclasses.dataclass
class Integers:
    """One integer a row. ``valid`` says where there is one."""

    values: Int
    valid: npt.NDArray[np.bool_]

    def array(self) -> pa.Array:
        """Returns it as a nullable Arrow column."""
        return pa.array(self.values, mask=None if self.valid.all() else ~self.valid)


@dataclasses.dataclass
class Texts:
    """One text a row: an index into ``names``, or -1."""

    codes: npt.NDArray[np.int32]
    names: list[str]

    def take(self, rows: Int) -> Texts:
        """Returns the texts of these rows."""
        return Texts(self.codes[rows], self.names)

    def over(self, other: Texts) -> Texts:
        """Returns these texts, and those of ``other`` where there is none."""
        if (self.codes < 0).all():
            return other
        shifted = np.where(other.codes < 0, np.int32(-1), other.codes + np.int32(len(self.names)))
        return Texts(np.where(self.codes < 0, shifted, self.codes), self.names + other.names)

    def array(self) -> pa.Array:
        """Returns it as a dictionary-encoded Arrow column in which every name is there once."""
        codes = {name: code for code, name in enumerate(dict.fromkeys(self.names))}
        table = np.array([codes[name] for name in self.names] or [0], dtype=np.int32)
        index = pa.array(table[self.codes], mask=self.codes < 0)
        return pa.DictionaryArray.from_arrays(index, pa.array(list(codes), pa.string()))


@dataclasses.dataclass
class Extra:
    """Attributes to add when JSON is made: of each its owner, its key and its value as JSON."""

    owner: list[int] = dataclasses.field(default_factory=list)
    key: list[str] = dataclasses.field(default_factory=list)
    json: list[str] = dataclasses.field(default_factory=list)

    def add(self, owner: int, key: str, value: str) -> None:
        """Adds a text."""
        self.owner.append(owner)
        self.key.append(key)
        self.json.append(json.dumps(value, ensure_ascii=False))

    def add_last(self, to: Attributes, key: str, texts: Iterable[tuple[int, str | None]]) -> None:
        """Adds of several texts for an owner the last one, unless the owner has the attribute itself.

        Args:
            to: The owners' own attributes.
            key: The key.
            texts: Owners and texts; None is no text.
        """
        last = {owner: text for owner, text in texts if text is not None}
        own = set(to.owner[to.at(key)].tolist())
        for owner, text in last.items():
            if owner not in own:
                self.add(owner, key, text)


class Attributes:
    """The attributes of ``count`` owners (spans or resources), flat, in the order of their owners.

    Args:
        count: Number of owners.
        owner: Of each attribute.
        names: Texts of the keys.
        code: Of each attribute, index of its key in ``names``.
        values: Of the attributes.
    """

    def __init__(
        self, count: int, owner: Int, names: list[str], code: npt.NDArray[np.int32], values: Values
    ) -> None:
        self.count = count
        self.owner = owner
        self.names = names
        self.code = code
        self.values = values

    def at(self, key: str) -> Int:
        """Returns the numbers of the attributes with this key."""
        # A key may be there twice, escaped in two ways.
        codes = [code for code, name in enumerate(self.names) if name == key]
        if not codes:
            return np.empty(0, np.int64)
        return np.flatnonzero(self.code == codes[0] if len(codes) == 1 else np.isin(self.code, codes))

    def integers(self, key: str) -> Integers:
        """Returns attribute ``key`` as integers."""
        values = np.zeros(self.count, np.int64)
        valid = np.zeros(self.count, np.bool_)
        at = self.at(key)
        if len(at):
            number = self.values.integers(at)
            rows = self.owner[at]
            if number.null_count:
                rows = rows[number.is_valid().to_numpy(zero_copy_only=False)]
                number = number.drop_null()
            values[rows] = number.to_numpy()
            valid[rows] = True
        return Integers(values, valid)

    def texts(self, key: str) -> Texts:
        """Returns attribute ``key`` as texts. Integers count too; an empty text is none."""
        codes = np.full(self.count, -1, np.int32)
        at = self.at(key)
        if not len(at):
            return Texts(codes, [])
        text = self.values.texts(at)
        names = text.dictionary.to_pylist()
        index = text.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        empty = [code for code, name in enumerate(names) if name == ""]
        codes[self.owner[at]] = np.where(np.isin(index, empty), -1, index) if empty else index
        return Texts(codes, names)

    def json(self, without: frozenset[str], extra: Extra | None = None) -> pa.Array:
        """Returns one JSON object an owner with all attributes but those in ``without``; null for none.

        Of more than `MOST_ATTRIBUTES`, the first ones are there.

        Args:
            without: Keys left out.
            extra: Attributes to add behind the others.
        """
        taken = np.array([name not in without for name in self.names] or [False], dtype=np.bool_)
        at = np.flatnonzero(taken[self.code]) if len(self.code) else np.empty(0, np.int64)
        owner = self.owner[at]
        if len(at) > MOST_ATTRIBUTES:
            starts = np.searchsorted(owner, np.arange(self.count + 1))
            if int(np.diff(starts).max()) > MOST_ATTRIBUTES:
                few = np.arange(len(owner)) - starts[owner] < MOST_ATTRIBUTES
                at, owner = at[few], owner[few]
        code, names = self.code[at].astype(np.int64), self.names
        values = self.values.json(at) if len(at) else pa.array([], pa.string())
        if extra is not None and extra.owner:
            order = np.argsort(np.concatenate([owner, np.array(extra.owner)]), kind="stable")
            owner = np.concatenate([owner, np.array(extra.owner)])[order]
            code = np.concatenate([code, len(names) + np.arange(len(extra.owner))])[order]
            values = pa.concat_arrays([values, pa.array(extra.json, values.type)]).take(pa.array(order))
            names = names + extra.key
        return _objects(
            self.count, owner, [json.dumps(name, ensure_ascii=False) for name in names], code, values
        )

    def cut(self) -> Int:
        """Returns the owners with more attributes than `MOST_ATTRIBUTES`."""
        if len(self.owner) <= MOST_ATTRIBUTES:
            return np.empty(0, np.int64)
        return np.flatnonzero(np.bincount(self.owner, minlength=self.count) > MOST_ATTRIBUTES)


def _objects(count: int, owner: Int, keys: list[str], code: Int, values: pa.Array) -> pa.Array:
    """Returns JSON objects as large texts; null for an owner without attributes.

    Args:
        count: Number of owners.
        owner: Of each attribute, growing.
        keys: JSON texts.
        code: Of each attribute, index of its key.
        values: Of each attribute, a JSON text.
    """
    if not len(owner):
        return pa.nulls(count, pa.large_string())
    # All objects are one text: head, value, head, value, brace; where each ends is all that is computed.
    heads = [f"{{{key}:" for key in keys] + [f",{key}:" for key in keys] + ["}"]
    pieces = pa.concat_arrays([pa.array(heads, pa.large_string()), values.cast(pa.large_string())])
    first = np.diff(owner, prepend=-1) != 0
    group = np.cumsum(first) - 1
    place = 2 * np.arange(len(owner)) + group
    index = np.full(2 * len(owner) + int(group[-1]) + 1, len(heads) - 1)
    index[place] = code + np.where(first, 0, len(keys))
    index[place + 1] = len(heads) + np.arange(len(owner))
    text = pieces.take(pa.array(index))
    _, buffer, data = text.buffers()
    ends = np.frombuffer(buffer, np.int64)
    filled = np.zeros(count, np.bool_)
    filled[owner[first]] = True
    sizes = np.zeros(count, np.int64)
    sizes[owner[first]] = np.diff(np.append(place[first], len(index)))
    offsets = ends[np.concatenate([[0], np.cumsum(sizes)])]
    bitmap = None if filled.all() else pa.py_buffer(np.packbits(filled, bitorder="little"))
    return pa.Array.from_buffers(pa.large_string(), count, [bitmap, pa.py_buffer(offsets), data])


def whole_number(value: str | float | None) -> int | None:
    """Returns what is a whole number of 64 bits as one, else None."""
    try:
        number = int(value) if value is not None else None
    except (ValueError, OverflowError):
        return None
    if number is None or not -(2**63) <= number < 2**63:
        return None
    return None if isinstance(value, float) and value != number else number


def quoted(texts: pa.Array) -> pa.Array:
    """Returns ``texts`` as JSON strings."""
    quoted = pc.binary_join_element_wise(pa.scalar('"'), texts, pa.scalar('"'), "")
    odd = pc.match_substring_regex(texts, _NEEDS_ESCAPE).fill_null(False)
    if pc.any(odd).as_py():
        escaped = [json.dumps(text, ensure_ascii=False) for text in texts.filter(odd).to_pylist()]
        quoted = pc.replace_with_mask(quoted, odd, pa.array(escaped, pa.string()))
    return quoted
