"""Logical spans as OTLP JSON lines, a trace a line, whole columns of text at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from otel_tf import semconv
from otel_tf.correlator.sinks.attributes import attributes_of
from otel_tf.correlator.sinks.flat import Flat
from otel_tf.correlator.sinks.logical import Logical
from otel_tf.correlator.sources import ids
from otel_tf.correlator.sources.attributes import quoted

__all__ = ["json_lines"]

#: Texts of that many spans stay far below the 2 GB that a column of Arrow texts can hold.
_SPANS_AT_ONCE = 20_000


def json_lines(logical: Logical) -> Iterator[bytes]:
    """Yields OTLP/JSON, one line a trace, without the newline."""
    bounds = np.append(np.flatnonzero(np.diff(logical.trace, prepend=-1)), len(logical.trace))
    first = 0
    while first < len(bounds) - 1:
        last = max(int(np.searchsorted(bounds, bounds[first] + _SPANS_AT_ONCE, "right")) - 1, first + 1)
        rows = np.arange(bounds[first], bounds[last])
        for line in _lines(logical, rows):
            yield line.as_py().encode()
        first = last


def _lines(logical: Logical, rows: Any) -> pa.Array:
    rows = rows[np.lexsort([rows, logical.resource[rows], logical.trace[rows]])]
    trace, resource = logical.trace[rows], logical.resource[rows]
    new_trace = np.diff(trace, prepend=-1) != 0
    parts = np.flatnonzero(new_trace | (np.diff(resource, prepend=-1) != 0))
    texts = pa.array(
        [
            json.dumps({"attributes": _pairs(attributes)}, ensure_ascii=False)
            for attributes in logical.resources
        ]
    )
    spans = _joined(_spans(logical, rows), np.append(parts, len(rows)))
    head = f',"scopeSpans":[{{"scope":{{"name":"{semconv.SCOPE}"}},"spans":['
    part = _concat('{"resource":', texts.take(pa.array(resource[parts])), head, spans, "]}]}")
    firsts = np.flatnonzero(new_trace[parts])
    return _concat('{"resourceSpans":[', _joined(part, np.append(firsts, len(parts))), "]}")


def _spans(logical: Logical, rows: Any) -> pa.Array:
    spans = logical.spans.slice(rows.min(), len(rows)).take(rows - rows.min()).combine_chunks()
    attributes, messages = attributes_of(spans, logical.warnings_of(rows))
    code, kind = (spans[name].combine_chunks() for name in ("status", "kind"))
    traces = pa.array([f"{trace:032x}" for trace in logical.traces])
    parent = logical.parent_id[rows]
    parents = _concat('"parentSpanId":"', ids.to_hex(parent), '",')
    status = _concat('"code":', code, ',"message":', quoted(messages))
    no_message = pc.equal(messages, "")
    return _concat(
        '{"traceId":"',
        traces.take(pa.array(logical.trace[rows])),
        '","spanId":"',
        ids.to_hex(logical.span_id[rows]),
        '",',
        pc.if_else(pa.array(parent == 0), "", parents),
        '"name":',
        quoted(spans["name"].cast(pa.string()).combine_chunks()),
        ',"kind":',
        kind,
        ',"startTimeUnixNano":"',
        pa.array(logical.start_ns[rows]),
        '","endTimeUnixNano":"',
        pa.array(logical.end_ns[rows]),
        '","attributes":[',
        _attributes(attributes),
        '],"status":{',
        pc.if_else(no_message, _concat('"code":', code), status),
        "}",
        _links(logical, rows.tolist()),
        "}",
    )


def _concat(*parts: Any) -> pa.Array:
    """Returns texts put together: columns of texts or integers, and texts that are the same for all."""
    texts = [
        part.cast(pa.string()) if isinstance(part, pa.Array) and not pa.types.is_string(part.type) else part
        for part in parts
    ]
    return pc.binary_join_element_wise(*texts, "")


def _joined(texts: pa.Array, offsets: Any) -> pa.Array:
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), texts), ",")


def _links(logical: Logical, rows: list[int]) -> pa.Array:
    texts = []
    for row in rows:
        links = [{"traceId": f"{t:032x}", "spanId": f"{s:016x}"} for t, s in logical.links.get(row, ())]
        texts.append(f',"links":{json.dumps(links)}' if links else "")
    return pa.array(texts, pa.string())


def _attributes(flat: Flat) -> pa.Array:
    leaves = flat.leaves
    boolean = _concat('{"boolValue":', leaves["boolValue"], "}")
    integer = _concat('{"intValue":"', leaves["intValue"], '"}')
    double = _concat('{"doubleValue":', leaves["doubleValue"], "}")
    values = pc.coalesce(
        integer, _concat('{"stringValue":', quoted(leaves["stringValue"]), "}"), double, boolean
    )
    if flat.nested:
        nested = [
            json.dumps(_value(flat.nested[n])) if n in flat.nested else None for n in range(len(values))
        ]
        values = pc.coalesce(values, pa.array(nested, pa.string()))
    pairs = _concat('{"key":', quoted(flat.key), ',"value":', values.fill_null("{}"), "}")
    return _joined(pairs, flat.offsets)


def _pairs(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(item) for item in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": _pairs(value)}}
    return {}
