"""Key-value attributes in columns: one attribute to a column of its own, the rest to JSON."""

from __future__ import annotations

import base64
import dataclasses
import json

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["MOST_ATTRIBUTES", "Attributes", "Integers", "Texts", "json_of", "parents", "quoted"]

#: More attributes than that on one span are cut (OpenTelemetry's SDKs stop at 128 by default).
MOST_ATTRIBUTES = 1024

_NEEDS_ESCAPE = r'["\\\x00-\x1f]'


@dataclasses.dataclass
class Integers:
    """One integer a row. ``valid`` says where there is one."""

    values: npt.NDArray[np.int64]
    valid: npt.NDArray[np.bool_]

    def array(self) -> pa.Array:
        """Returns it as a nullable Arrow column."""
        return pa.array(self.values, mask=~self.valid)


@dataclasses.dataclass
class Texts:
    """One text a row: an index into ``names``, or -1."""

    codes: npt.NDArray[np.int32]
    names: list[str]

    def take(self, rows: npt.NDArray[np.int64]) -> Texts:
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


class Attributes:
    """The attributes of ``count`` owners (spans or resources), flat, in the order of their owners.

    Args:
        lists: One list of OTLP ``KeyValue`` an owner, in the shape of `shape`.
    """

    def __init__(self, lists: pa.Array) -> None:
        self.count = len(lists)
        self.owner: npt.NDArray[np.int64] = parents(lists)
        items = lists.flatten()
        keys = items.field("key").dictionary_encode()
        self.names: list[str] = [name or "" for name in keys.dictionary.to_pylist()]
        self.code: npt.NDArray[np.int32] = keys.indices.fill_null(0).to_numpy(zero_copy_only=False)
        self.value: pa.StructArray = items.field("value")

    def _at(self, key: str) -> npt.NDArray[np.int64]:
        if key not in self.names:
            return np.empty(0, np.int64)
        return np.flatnonzero(self.code == self.names.index(key))

    def integers(self, key: str) -> Integers:
        """Returns attribute ``key`` as integers. Texts and doubles that are whole numbers count."""
        values = np.zeros(self.count, np.int64)
        valid = np.zeros(self.count, np.bool_)
        at = self._at(key)
        if len(at):
            value = self.value.take(pa.array(at))
            number = _whole(value.field("intValue"))
            for leaf in ("stringValue", "doubleValue"):
                if number.null_count:
                    number = pc.coalesce(number, _whole(value.field(leaf)))
            there = number.is_valid().to_numpy(zero_copy_only=False)
            rows = self.owner[at][there]
            values[rows] = number.drop_null().to_numpy(zero_copy_only=False)
            valid[rows] = True
        return Integers(values, valid)

    def texts(self, key: str) -> Texts:
        """Returns attribute ``key`` as texts. Integers count too; an empty text is none."""
        codes = np.full(self.count, -1, np.int32)
        at = self._at(key)
        if not len(at):
            return Texts(codes, [])
        value = self.value.take(pa.array(at))
        text = value.field("stringValue")
        if text.null_count:
            text = pc.coalesce(text, value.field("intValue").cast(pa.string()))
        text = text.dictionary_encode()
        names = text.dictionary.to_pylist()
        index = text.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        empty = [code for code, name in enumerate(names) if name == ""]
        index = np.where(np.isin(index, empty), -1, index) if empty else index
        codes[self.owner[at]] = index
        return Texts(codes, names)

    def json(self, without: frozenset[str], extra: pa.Array | None = None, extra_key: str = "") -> pa.Array:
        """Returns one JSON object an owner with all attributes but those in ``without``; null for none.

        Args:
            without: Keys left out.
            extra: One text an owner to add under ``extra_key`` where it is neither null nor empty.
            extra_key: The key of ``extra``.
        """
        left_out = np.array([name in without for name in self.names] or [True], dtype=np.bool_)
        at = np.flatnonzero(~left_out[self.code]) if len(self.code) else np.empty(0, np.int64)
        owner = self.owner[at]
        starts = np.searchsorted(owner, np.arange(self.count + 1))
        if len(owner) and int(np.diff(starts).max()) > MOST_ATTRIBUTES:
            rank = np.arange(len(owner)) - starts[owner]
            at, owner = at[rank < MOST_ATTRIBUTES], owner[rank < MOST_ATTRIBUTES]
            starts = np.searchsorted(owner, np.arange(self.count + 1))
        heads = pa.array([json.dumps(name, ensure_ascii=False) + ":" for name in self.names], pa.string())
        pairs = pc.binary_join_element_wise(
            heads.take(pa.array(self.code[at])), json_of(self.value.take(pa.array(at))), ""
        )
        lists = pa.ListArray.from_arrays(pa.array(starts, pa.int32()), pairs)
        text = pc.binary_join(lists, ",")
        if extra is not None:
            head = json.dumps(extra_key) + ":"
            extra = pc.replace_with_mask(
                extra, pc.equal(extra, "").fill_null(True), pa.scalar(None, pa.string())
            )
            if extra.null_count < len(extra):
                pair = pc.binary_join_element_wise(pa.scalar(head), quoted(extra), "")
                text = pc.if_else(
                    pc.equal(text, ""), pair, pc.coalesce(pc.binary_join_element_wise(text, pair, ","), text)
                )
        empty = pc.equal(text, "").fill_null(True)
        text = pc.binary_join_element_wise("{", text, "}", "")
        return pc.replace_with_mask(text, empty, pa.scalar(None, pa.string()))

    def cut(self) -> npt.NDArray[np.int64]:
        """Returns the owners with more attributes than `MOST_ATTRIBUTES`."""
        if len(self.owner) <= MOST_ATTRIBUTES:
            return np.empty(0, np.int64)
        return np.flatnonzero(np.bincount(self.owner, minlength=self.count) > MOST_ATTRIBUTES)


def parents(lists: pa.Array) -> npt.NDArray[np.int64]:
    """Returns, for each item of ``lists.flatten()``, the row of the list it is in."""
    found: npt.NDArray[np.int64] = (
        pc.list_parent_indices(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    return found


def _whole(values: pa.Array) -> pa.Array:
    """Returns ``values`` as int64, null where they are no whole number."""
    if pa.types.is_int64(values.type):
        return values
    try:
        return values.cast(pa.int64())
    except pa.ArrowInvalid:
        return pa.array([_whole_number(value) for value in values.to_pylist()], pa.int64())


def _whole_number(value: str | float | None) -> int | None:
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


def json_of(value: pa.StructArray) -> pa.Array:
    """Returns OTLP ``AnyValue`` structs as JSON texts: bytes as base64, no value as ``null``."""
    kinds = {value.type.field(i).name for i in range(value.type.num_fields)}
    result = quoted(value.field("stringValue"))
    for kind in ("intValue", "boolValue", "doubleValue", "arrayValue", "kvlistValue", "bytesValue"):
        if not result.null_count:
            break
        if kind not in kinds or value.field(kind).null_count == len(value):
            continue
        result = pc.coalesce(result, _json_of_kind(kind, value.field(kind)))
    return result.fill_null("null")


def _json_of_kind(kind: str, leaf: pa.Array) -> pa.Array:
    if kind in ("intValue", "boolValue"):
        return leaf.cast(pa.string())
    if kind == "doubleValue":
        # JSON has no NaN and no infinity; 1.0 must not come back as the integer 1.
        return pa.array([None if x is None else _double(x) for x in leaf.to_pylist()], pa.string())
    if kind == "bytesValue":
        if pa.types.is_string(leaf.type):
            return quoted(leaf)
        return pa.array(
            [None if x is None else f'"{base64.b64encode(x).decode()}"' for x in leaf.to_pylist()],
            pa.string(),
        )
    lists = leaf.field("values")
    items = lists.flatten()
    texts = json_of(items) if kind == "arrayValue" else _json_pairs(items)
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), texts), ",")
    left, right = "[]" if kind == "arrayValue" else "{}"
    text = pc.binary_join_element_wise(left, joined, right, "")
    return pc.if_else(leaf.is_valid(), text, pa.scalar(None, pa.string()))


def _json_pairs(items: pa.StructArray) -> pa.Array:
    keys = quoted(items.field("key").fill_null(""))
    return pc.binary_join_element_wise(keys, json_of(items.field("value")), ":")


def _double(number: float) -> str:
    return repr(number) if np.isfinite(number) else f'"{number}"'
