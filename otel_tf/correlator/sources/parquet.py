"""Spans from our own Parquet (``--to parquet=DIR``), or anybody's with the same columns."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from otel_tf.correlator.sources import ids
from otel_tf.correlator.sources.checks import usable
from otel_tf.correlator.sources.chunks import READ, Chunk, Piece
from otel_tf.correlator.sources.leaf_values import parents
from otel_tf.correlator.sources.skipped import Skipped
from otel_tf.correlator.tables import LINKS, SPANS
from otel_tf.errors import UserError

__all__ = ["RowGroups", "parse_parquet", "split_parquet"]

_NEEDED = ("trace_id", "span_id", "start_ns", "end_ns")
_OPTIONAL = ("parent_span_id", "links")
_ROWS_A_PART = 100_000
_TEXT = pa.dictionary(pa.int32(), pa.string())
_LINK = pa.struct([("trace_id", pa.string()), ("span_id", pa.string())])


@dataclasses.dataclass(frozen=True)
class RowGroups:
    """Some row groups of a file: numbers of the groups and of their first row."""

    path: Path
    groups: list[int]
    first_row: int
    file: int
    in_threads = True

    @property
    def name(self) -> str:
        """The file, for messages."""
        return self.path.name

    def read(self, skipped: Skipped) -> Piece:
        """Returns the spans of the row groups."""
        return Piece(parse_parquet(self, skipped))


def split_parquet(path: Path, file: int = 0) -> list[RowGroups]:
    """Returns the row groups of a file, small ones together.

    Raises:
        UserError: It cannot be read, or lacks a column that nothing can replace.
    """
    with _explained(path):
        metadata = pq.read_metadata(path)
        present = metadata.schema.to_arrow_schema().names
        missing = [name for name in _NEEDED if name not in present]
        if missing:
            raise UserError(f"{path}: no column {missing[0]!r}")
    parts: list[RowGroups] = []
    row, part_rows = 0, _ROWS_A_PART
    for group in range(metadata.num_row_groups):
        if part_rows >= _ROWS_A_PART:
            parts.append(RowGroups(path, [], row, file))
            part_rows = 0
        parts[-1].groups.append(group)
        row += metadata.row_group(group).num_rows
        part_rows += metadata.row_group(group).num_rows
    return parts


def parse_parquet(part: RowGroups, skipped: Skipped) -> Chunk:
    """Returns the spans of some row groups.

    Columns that an older or another writer left out are filled in: ``process`` by the service's name,
    ``domain`` by the process.

    Raises:
        UserError: They cannot be read.
    """
    with _explained(part.path), pq.ParquetFile(part.path) as file:
        present = set(file.schema_arrow.names)
        wanted = [name for name in (*_NEEDED, *_OPTIONAL, *SPANS.names) if name in present]
        columns = list(dict.fromkeys(wanted))
        table = file.read_row_groups(part.groups, columns=columns, use_threads=False)
        table.validate(full=True)  # damage that the format does not notice, such as texts that are not UTF-8
        return _to_chunk(table.combine_chunks(), part, skipped)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, ValueError, OSError) as error:
        raise UserError(f"{path}: {str(error).splitlines()[0]}") from None


def _to_chunk(table: pa.Table, part: RowGroups, skipped: Skipped) -> Chunk:
    count = table.num_rows
    trace, trace_good = ids.from_arrow(_plain(table, "trace_id"), 16)
    span, span_good = ids.from_arrow(_plain(table, "span_id"), 8)
    parent = np.zeros((count, 1), np.int64)
    if "parent_span_id" in table.column_names:
        parent, _ = ids.from_arrow(_plain(table, "parent_span_id"), 8)
    start, end = (
        _plain(table, name).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        for name in ("start_ns", "end_ns")
    )

    def report(reason: str, bad: npt.NDArray[np.bool_], say: Callable[[int], str]) -> None:
        rows = np.flatnonzero(bad)
        if len(rows):
            row = int(rows[0])
            number = part.first_row + row
            skipped.add(reason, f"{part.path.name}: row {number}: {say(row)}", len(rows), (part.file, number))

    def id_text(row: int) -> str:
        return f"trace id {table['trace_id'][row].as_py()!r}, span id {table['span_id'][row].as_py()!r}"

    used = usable(trace_good & span_good, start, end, id_text, report)
    columns: dict[str, pa.Array] = {
        "trace_hi": pa.array(trace[:, 0]),
        "trace_lo": pa.array(trace[:, 1]),
        "span_id": pa.array(span[:, 0]),
        "parent_id": pa.array(parent[:, 0]),
        "start_ns": pa.array(start),
        "end_ns": pa.array(end),
    }
    columns["name"] = _text(table, "name", "")
    columns["service"] = _text(table, "service", "unknown_service")
    columns["process"] = _text(table, "process", columns["service"])
    columns["domain"] = _text(table, "domain", columns["process"])
    for field in READ:
        if field.name not in columns:
            columns[field.name] = _column(table, field)
    spans = pa.table([columns[field.name] for field in READ], schema=READ)
    return Chunk(spans.filter(pa.array(used)), _links(table, used))


def _plain(table: pa.Table, name: str) -> pa.Array:
    column = table[name].combine_chunks()
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _text(table: pa.Table, name: str, default: str | pa.Array) -> pa.Array:
    if name not in table.column_names:
        if isinstance(default, str):
            return pa.array([default] * table.num_rows, pa.string()).dictionary_encode()
        return default
    column = table[name].combine_chunks()
    if column.type == _TEXT and not column.null_count and not column.dictionary.null_count:
        return column
    texts = _plain(table, name).cast(pa.string())
    if texts.null_count:
        filling = default if isinstance(default, str) else default.cast(pa.string())
        texts = pc.coalesce(texts, filling)
    return texts.dictionary_encode()


def _column(table: pa.Table, field: pa.Field) -> pa.Array:
    if field.name not in table.column_names:
        if field.nullable:
            return pa.nulls(table.num_rows, field.type)
        return pa.array(np.zeros(table.num_rows, np.int8), field.type)
    if table.schema.field(field.name).type == field.type and field.nullable:
        return table[field.name].combine_chunks()
    column = _plain(table, field.name)
    if pa.types.is_dictionary(field.type):
        return column.cast(pa.string()).dictionary_encode()
    column = column.cast(field.type)
    return column if field.nullable else column.fill_null(0)


def _links(table: pa.Table, used: npt.NDArray[np.bool_]) -> pa.Table:
    kind = table.schema.field("links").type if "links" in table.column_names else pa.null()
    if not pa.types.is_list(kind) or kind.value_type != _LINK:
        return LINKS.empty_table()
    lists = table["links"].combine_chunks()
    row = parents(lists)
    links = lists.flatten()
    trace, trace_good = ids.from_arrow(links.field("trace_id"), 16)
    span, span_good = ids.from_arrow(links.field("span_id"), 8)
    keep = trace_good & span_good & used[row]
    new_row = np.cumsum(used) - 1
    columns = [new_row[row[keep]], trace[keep, 0], trace[keep, 1], span[keep, 0]]
    return pa.table([pa.array(column, pa.int64()) for column in columns], schema=LINKS)
