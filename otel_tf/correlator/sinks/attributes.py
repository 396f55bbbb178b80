"""The attributes of logical spans: the original ones, and what the correlator found out."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from otel_tf import semconv
from otel_tf.correlator.sinks.flat import Flat, flat_of, join
from otel_tf.correlator.sources import ids
from otel_tf.correlator.sources.extract import STATUS_MESSAGE

__all__ = ["attributes_of"]

#: Columns of the canonical table that were attributes, and are again.
_COLUMNS = {
    "worker": semconv.WORKER,
    "global_step": semconv.GLOBAL_STEP,
    "local_step": semconv.LOCAL_STEP,
    "seq": semconv.SEQ,
    "mono_ns": semconv.MONOTONIC_NS,
    "staleness": semconv.STALENESS,
    "staleness_source": semconv.STALENESS_SOURCE,
    "group_key": semconv.COLLECTIVE_GROUP_KEY,
    "instance_key": semconv.COLLECTIVE_INSTANCE_KEY,
    "order": semconv.LOGICAL_ORDER,
    "shift_ns": semconv.LOGICAL_SHIFT_NS,
    "error_ns": semconv.LOGICAL_ERROR_NS,
}


def attributes_of(
    spans: pa.Table, clocks: list[dict[str, Any]], root_steps: list[int]
) -> tuple[Flat, list[str]]:
    """Returns the attributes and the status messages of spans, and of the roots added behind them.

    Args:
        spans: Rows of a result's ``correlated``.
        clocks: The report's ``clocks``: a span that was open while its clock stepped gets a warning.
        root_steps: The first step of each root that is added.
    """
    total = spans.num_rows + len(root_steps)
    original, messages = _original(spans, total)
    roots = np.arange(spans.num_rows, total)
    trace = ids.to_hex(spans["trace_hi"].to_numpy(), spans["trace_lo"].to_numpy())
    span = ids.to_hex(spans["span_id"].to_numpy())
    parts = [
        original,
        *(_of_column(spans[name], key, total) for name, key in _COLUMNS.items()),
        _of_column(trace, semconv.LOGICAL_ORIGINAL_TRACE, total),
        _of_column(span, semconv.LOGICAL_ORIGINAL_SPAN, total),
        flat_of(total, roots, semconv.GLOBAL_STEP, pa.array(root_steps, pa.int64())),
        _warnings(spans, clocks, total),
    ]
    if "wait_ns" in spans.column_names:
        parts.append(_of_column(pc.divide(spans["wait_ns"], 1e9), semconv.COLLECTIVE_WAIT, total))
    return join(part for part in parts if len(part.owner)), messages + [""] * len(root_steps)


def _original(spans: pa.Table, total: int) -> tuple[Flat, list[str]]:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    owner: list[int] = []
    keys: list[str] = []
    values: list[Any] = []
    messages = [""] * spans.num_rows
    for row, text in enumerate(spans["attributes"].to_pylist()):
        if text:
            attributes = decode(text)
            messages[row] = attributes.pop(STATUS_MESSAGE, "")
            owner += [row] * len(attributes)
            keys += attributes
            values += attributes.values()
    return flat_of(total, owner, keys, values), messages


def _of_column(column: Any, key: str, total: int) -> Flat:
    if pa.types.is_dictionary(column.type):
        column = column.cast(pa.string())
    rows = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False)) if column.null_count else None
    if rows is None:
        return flat_of(total, np.arange(len(column)), key, column)
    return flat_of(total, rows, key, column.drop_null())


def _warnings(spans: pa.Table, clocks: list[dict[str, Any]], total: int) -> Flat:
    found: dict[int, list[str]] = {}
    for clock in clocks:
        for step in clock["steps"]:
            text = f"the clock of {clock['domain']} stepped by {step['size_ns'] / 1e6:+,.3f} ms here"
            for row in _open_at(spans, str(clock["domain"]), step["at_ns"]):
                found.setdefault(row, []).append(text)
    rows = sorted(found)
    return flat_of(total, rows, semconv.JAEGER_WARNINGS, [found[row] for row in rows])


def _open_at(spans: pa.Table, domain: str, at_ns: int) -> list[int]:
    """Returns the spans of a clock domain that were open at a corrected time, else the first after it."""
    start, end = (spans[name].to_numpy() for name in ("corrected_start_ns", "corrected_end_ns"))
    mine = pc.equal(spans["domain"].cast(pa.string()), domain).to_numpy()
    rows = np.flatnonzero(mine & (start <= at_ns) & (end >= at_ns))
    if not len(rows):
        later = np.flatnonzero(mine & (start > at_ns))
        rows = later[np.argsort(start[later])[:1]]
    found: list[int] = rows.tolist()
    return found
