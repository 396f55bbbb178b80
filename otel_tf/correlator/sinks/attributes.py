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

__all__ = ["attributes_of", "clock_warnings"]

#: Columns of the canonical table that were attributes, and are again; but not the monotonic time, which
#: corrected times have left.
_COLUMNS = {
    "worker": semconv.WORKER,
    "global_step": semconv.GLOBAL_STEP,
    "local_step": semconv.LOCAL_STEP,
    "seq": semconv.SEQ,
    "staleness": semconv.STALENESS,
    "staleness_source": semconv.STALENESS_SOURCE,
    "group_key": semconv.COLLECTIVE_GROUP_KEY,
    "instance_key": semconv.COLLECTIVE_INSTANCE_KEY,
    "order": semconv.LOGICAL_ORDER,
    "shift_ns": semconv.LOGICAL_SHIFT_NS,
    "error_ns": semconv.LOGICAL_ERROR_NS,
}


def attributes_of(spans: pa.Table, warnings: dict[int, list[str]]) -> tuple[Flat, pa.StringArray]:
    """Returns the attributes and the status messages (empty for none) of spans.

    Args:
        spans: Rows of a `Logical`'s ``spans``, few enough that columns of their attributes stay small.
        warnings: By row of ``spans``, texts that Jaeger is to show as warnings.
    """
    total = spans.num_rows
    original, messages = _original(spans)
    recorded = pa.array(spans["span_id"].to_numpy() != 0)
    nothing = pa.scalar(None, pa.string())
    trace = ids.to_hex(spans["trace_hi"].to_numpy(), spans["trace_lo"].to_numpy())
    span = ids.to_hex(spans["span_id"].to_numpy())
    warned = sorted(warnings)
    parts = [
        original,
        *(_of_column(spans[name], key) for name, key in _COLUMNS.items()),
        _of_column(pc.if_else(recorded, trace, nothing), semconv.LOGICAL_ORIGINAL_TRACE),
        _of_column(pc.if_else(recorded, span, nothing), semconv.LOGICAL_ORIGINAL_SPAN),
        flat_of(total, warned, semconv.JAEGER_WARNINGS, [warnings[row] for row in warned]),
    ]
    if "wait_ns" in spans.column_names:
        parts.append(_of_column(pc.divide(spans["wait_ns"], 1e9), semconv.COLLECTIVE_WAIT))
    return join([part for part in parts if len(part.owner)] or [original]), messages


def clock_warnings(spans: pa.Table, clocks: list[dict[str, Any]]) -> dict[int, list[str]]:
    """Returns by row what to say of spans that were open while their clock stepped.

    Args:
        spans: Rows of a `Logical`'s ``spans``.
        clocks: The report's ``clocks``.
    """
    found: dict[int, list[str]] = {}
    for clock in clocks:
        for step in clock["steps"]:
            text = f"the clock of {clock['domain']} stepped by {step['size_ns'] / 1e6:+,.3f} ms here"
            for row in _open_at_step(spans, str(clock["domain"]), step["at_ns"], step["size_ns"]):
                found.setdefault(row, []).append(text)
    return found


def _original(spans: pa.Table) -> tuple[Flat, pa.StringArray]:
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
    return flat_of(spans.num_rows, owner, keys, values), pa.array(messages, pa.string())


def _of_column(column: Any, key: str) -> Flat:
    if pa.types.is_dictionary(column.type):
        column = column.cast(pa.string())
    rows = np.arange(len(column))
    if column.null_count:
        rows = rows[column.is_valid().to_numpy(zero_copy_only=False)]
    return flat_of(len(column), rows, key, column.drop_null())


def _open_at_step(spans: pa.Table, domain: str, at_ns: int, size_ns: int) -> list[int]:
    """Returns the spans of a clock domain that were open when its clock stepped, else the first after it.

    Args:
        spans: Rows of a `Logical`'s ``spans``.
        domain: The clock.
        at_ns: What it read before it stepped.
        size_ns: By how much it jumped.
    """
    mine = np.flatnonzero(pc.equal(spans["domain"].cast(pa.string()), domain).fill_null(False).to_numpy())
    if not len(mine):
        return []
    start, end = (spans[name].to_numpy()[mine] for name in ("corrected_start_ns", "corrected_end_ns"))
    recorded = spans["start_ns"].to_numpy()[mine]
    # The reading in corrected time, as of the last span that was surely before: a clock that was set back
    # shows the same times again.
    before = np.flatnonzero(recorded <= at_ns + min(size_ns, 0))
    last = before[np.argmax(start[before])] if len(before) else np.argmin(start)
    moment = at_ns + start[last] - recorded[last]
    open_then = np.flatnonzero((start <= moment) & (end >= moment))
    if not len(open_then):
        later = np.flatnonzero(start > moment)
        open_then = later[np.argsort(start[later])[:1]]
    found: list[int] = mine[open_then].tolist()
    return found
