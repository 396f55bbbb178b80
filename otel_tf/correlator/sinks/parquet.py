"""``parquet=DIR``: ``spans.parquet`` and ``edges.parquet``.

The first columns are the contract of the command line. Those after them are what it takes to correlate
the file again and get the same answer. Rows are in causal order and the writer's settings are fixed, so
the same run gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from otel_tf.correlator.sinks import layout
from otel_tf.correlator.sinks.draft import draft
from otel_tf.correlator.sources import ids
from otel_tf.errors import UserError

if TYPE_CHECKING:
    from otel_tf.correlator.result import Result

__all__ = ["edges_table", "spans_table", "write"]

#: Small enough that a reader can use all its cores.
_ROWS_A_GROUP = 1 << 17

_SPANS = (
    "trace_id",
    "span_id",
    "parent_span_id",
    "name",
    "run",
    "process",
    "worker",
    "global_step",
    "local_step",
    "seq",
    "order",
    "start_ns",
    "end_ns",
    "corrected_start_ns",
    "corrected_end_ns",
    "shift_ns",
    "error_ns",
)
_SPANS_AS_SOURCE = (
    "kind",
    "status",
    "service",
    "domain",
    "mono_ns",
    "staleness",
    "staleness_source",
    "group_key",
    "instance_key",
    "attributes",
    "links",
    "wait_ns",
    "lateness_ns",
)


def spans_table(correlated: pa.Table, links: pa.Table) -> pa.Table:
    """Returns spans in causal order, ids as lower-case hex texts; no parent is null."""
    by_order = pc.sort_indices(correlated["order"])
    spans = correlated.append_column("links", _link_lists(correlated.num_rows, links)).take(by_order)
    parent = spans["parent_id"].to_numpy()
    made = {
        "trace_id": ids.to_hex(spans["trace_hi"].to_numpy(), spans["trace_lo"].to_numpy()),
        "span_id": ids.to_hex(spans["span_id"].to_numpy()),
        "parent_span_id": pc.if_else(pa.array(parent == 0), pa.scalar(None, pa.string()), ids.to_hex(parent)),
    }
    names = [name for name in (*_SPANS, *_SPANS_AS_SOURCE) if name in made or name in spans.column_names]
    return pa.table({name: made[name] if name in made else _as_seen(spans[name]) for name in names})


def edges_table(edges: pa.Table, correlated: pa.Table) -> pa.Table:
    """Returns edges between spans in causal order of their sources; an event's row is half its number."""
    src, dst = edges["src"].to_numpy(), edges["dst"].to_numpy()
    order, span_id = correlated["order"].to_numpy(), correlated["span_id"].to_numpy()
    code, names = layout.codes(edges["kind"].unify_dictionaries())
    kind = np.argsort(np.argsort(names))[code]
    min_ns = edges["min_ns"].to_numpy()
    rows = np.lexsort([min_ns, kind, dst & 1, order[dst >> 1], src & 1, order[src >> 1]])
    return pa.table(
        {
            "src_span": ids.to_hex(span_id[src[rows] >> 1]),
            "dst_span": ids.to_hex(span_id[dst[rows] >> 1]),
            "kind": _as_seen(edges["kind"].take(pa.array(rows))),
            "min_ns": min_ns[rows],
        }
    )


def _as_seen(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column with its dictionary, if it has one, in the order of the rows and not of the input."""
    if not pa.types.is_dictionary(column.type):
        return column
    return column.cast(pa.string()).combine_chunks().dictionary_encode()


def _link_lists(rows: int, links: pa.Table) -> pa.Array:
    row = links["row"].to_numpy()
    order = np.argsort(row, kind="stable")
    link = links.take(pa.array(order))
    items = pa.StructArray.from_arrays(
        [
            ids.to_hex(link["trace_hi"].to_numpy(), link["trace_lo"].to_numpy()),
            ids.to_hex(link["span_id"].to_numpy()),
        ],
        names=["trace_id", "span_id"],
    )
    offsets = np.searchsorted(row[order], np.arange(rows + 1))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items)


def write(result: Result, target: str, say: Callable[[str], None]) -> None:
    """Writes both files into the folder ``target``.

    Raises:
        UserError: They cannot be written.
    """
    folder = Path(target)
    try:
        for name, table in (("spans.parquet", result.spans), ("edges.parquet", result.edges)):
            with draft(folder / name) as part:
                _write_one(table, part)
    except OSError as error:
        raise UserError(f"parquet={target}: {error.strerror or error}") from None
    say(f"{result.spans.num_rows:,} spans and {result.edges.num_rows:,} edges written to {folder}")


def _write_one(table: pa.Table, path: Path) -> None:
    texts = [field.name for field in table.schema if pa.types.is_dictionary(field.type)]
    pq.write_table(table, path, use_dictionary=texts, compression="zstd", row_group_size=_ROWS_A_GROUP)
