"""The attributes of logical spans: the original ones, and what the correlator found out."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from otel_tf import semconv
from otel_tf.correlator.sources import ids

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


def attributes_of(spans: pa.Table, clocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the attributes of each span of ``spans``.

    Args:
        spans: Rows of a result's ``correlated``.
        clocks: The report's ``clocks``: a span that was open while its clock stepped gets a warning.
    """
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    texts = spans["attributes"].to_pylist()
    result: list[dict[str, Any]] = [decode(text) if text else {} for text in texts]
    made = {
        semconv.LOGICAL_ORIGINAL_TRACE: ids.to_hex(
            spans["trace_hi"].to_numpy(), spans["trace_lo"].to_numpy()
        ),
        semconv.LOGICAL_ORIGINAL_SPAN: ids.to_hex(spans["span_id"].to_numpy()),
    }
    for key, column in (*((key, spans[name]) for name, key in _COLUMNS.items()), *made.items()):
        if column.null_count == len(column):
            continue
        for attributes, value in zip(result, column.to_pylist(), strict=True):
            if value is not None:
                attributes[key] = value
    if "wait_ns" in spans.column_names:
        for attributes, wait_ns in zip(result, spans["wait_ns"].to_pylist(), strict=True):
            if wait_ns is not None:
                attributes[semconv.COLLECTIVE_WAIT] = wait_ns / 1e9
    for clock in clocks:
        for step in clock["steps"]:
            text = f"the clock of {clock['domain']} stepped by {step['size_ns'] / 1e6:+,.3f} ms here"
            for row in _open_at(spans, str(clock["domain"]), step["at_ns"]):
                result[row].setdefault(semconv.JAEGER_WARNINGS, []).append(text)
    return result


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
