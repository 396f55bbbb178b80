"""Spans from our own Parquet (``--to parquet=DIR``), or anybody's with the same columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from otel_tf.correlator.sources import ids
from otel_tf.correlator.sources.attributes import parents
from otel_tf.correlator.sources.checks import usable
from otel_tf.correlator.sources.extract import Chunk
from otel_tf.correlator.sources.skipped import Skipped
from otel_tf.correlator.tables import LINKS, SPANS
from otel_tf.errors import UserError

__all__ = ["read_parquet"]

_NEEDED = ("trace_id", "span_id", "start_ns", "end_ns")
_OPTIONAL = ("parent_span_id", "links")


def read_parquet(path: Path, skipped: Skipped, file: int = 0) -> Chunk:
    """Returns the spans of a Parquet file.

    Columns that an older or another writer left out are filled in: ``process`` by the service's name,
    ``domain`` by the process.

    Raises:
        UserError: It cannot be read, or lacks a column that nothing can replace.
    """
    try:
        present = set(pq.read_schema(path).names)
        missing = [name for name in _NEEDED if name not in present]
        if missing:
            raise UserError(f"{path}: no column {missing[0]!r}")
        wanted = [name for name in (*_NEEDED, *_OPTIONAL, *SPANS.names) if name in present]
        table = pq.read_table(path, columns=list(dict.fromkeys(wanted))).combine_chunks()
        return _to_chunk(table, path, skipped, file)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise UserError(f"{path}: {str(error).splitlines()[0]}") from None


def _to_chunk(table: pa.Table, path: Path, skipped: Skipped, file: int) -> Chunk:
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
            skipped.add(reason, f"{path}: row {row}: {say(row)}", len(rows), (file, row))

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
    for field in SPANS:
        if field.name not in columns:
            columns[field.name] = _column(table, field)
    spans = pa.table([columns[field.name] for field in SPANS], schema=SPANS)
    return Chunk(spans.filter(pa.array(used)), _links(table, used))


def _plain(table: pa.Table, name: str) -> pa.Array:
    column = table[name].combine_chunks()
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _text(table: pa.Table, name: str, default: str | pa.Array) -> pa.Array:
    if name not in table.column_names:
        if isinstance(default, str):
            return pa.array([default] * table.num_rows, pa.string()).dictionary_encode()
        return default
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
    column = _plain(table, field.name)
    if pa.types.is_dictionary(field.type):
        return column.cast(pa.string()).dictionary_encode()
    column = column.cast(field.type)
    return column if field.nullable else column.fill_null(0)


def _links(table: pa.Table, used: npt.NDArray[np.bool_]) -> pa.Table:
    if "links" not in table.column_names:
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
