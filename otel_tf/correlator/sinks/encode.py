"""Logical spans as OTLP: JSON lines, and protobuf requests made from columns."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from otel_tf import semconv
from otel_tf.correlator.sinks.logical import Logical
from otel_tf.correlator.sources.extract import STATUS_MESSAGE
from otel_tf.correlator.sources.shape import proto_handler

__all__ = ["Request", "json_lines", "requests"]

_SPANS_A_REQUEST = 4000
_WORD = 2**64 - 1


@dataclasses.dataclass(frozen=True)
class Request:
    """One serialized ``ExportTraceServiceRequest``."""

    payload: bytes
    spans: int


def json_lines(logical: Logical) -> Iterator[bytes]:
    """Yields OTLP/JSON, one line a trace, without the newline."""
    firsts = np.flatnonzero(np.diff(logical.trace_id, prepend=-1)).tolist()
    bounds = [*firsts, len(logical.trace_id)]
    for first, last in itertools.pairwise(bounds):
        by_resource: dict[int, list[dict[str, Any]]] = {}
        for row, resource in enumerate(logical.resource[first:last].tolist(), first):
            by_resource.setdefault(resource, []).append(_json_span(logical, row))
        yield msgspec.json.encode(
            {
                "resourceSpans": [
                    {
                        "resource": {"attributes": _json_attributes(logical.resources[resource])},
                        "scopeSpans": [{"scope": {"name": semconv.SCOPE}, "spans": spans}],
                    }
                    for resource, spans in by_resource.items()
                ]
            }
        )


def _json_span(logical: Logical, row: int) -> dict[str, Any]:
    attributes = dict(logical.attributes[row])
    message = attributes.pop(STATUS_MESSAGE, "")
    span = {
        "traceId": f"{logical.traces[int(logical.trace_id[row])]:032x}",
        "spanId": f"{int(logical.span_id[row]) & _WORD:016x}",
        "name": logical.name[row],
        "kind": int(logical.kind[row]),
        "startTimeUnixNano": str(logical.start_ns[row]),
        "endTimeUnixNano": str(logical.end_ns[row]),
        "attributes": _json_attributes(attributes),
        "status": {"code": int(logical.status[row]), "message": message},
    }
    if logical.parent_id[row]:
        span["parentSpanId"] = f"{int(logical.parent_id[row]) & _WORD:016x}"
    if row in logical.links:
        span["links"] = [{"traceId": f"{t:032x}", "spanId": f"{s:016x}"} for t, s in logical.links[row]]
    return span


def _json_attributes(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _json_value(value)} for key, value in attributes.items()]


def _json_value(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_json_value(item) for item in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": _json_attributes(value)}}
    return {}


def requests(logical: Logical) -> Iterator[Request]:
    """Yields OTLP/protobuf requests of a few thousand spans each.

    The messages are made from columns: official message objects cost ten times as much a span.
    """
    handler = proto_handler()
    for first in range(0, len(logical.trace_id), _SPANS_A_REQUEST):
        rows = np.arange(first, min(first + _SPANS_A_REQUEST, len(logical.trace_id)))
        # Spans of a resource side by side; those of one trace stay in their order.
        rows = rows[np.argsort(logical.resource[rows], kind="stable")]
        batch = pa.RecordBatch.from_arrays([_resource_spans(logical, rows)], names=["resourceSpans"])
        yield Request(handler.record_batch_to_array(batch)[0].as_py(), len(rows))


def _resource_spans(logical: Logical, rows: Any) -> pa.Array:
    resource = logical.resource[rows]
    firsts = np.flatnonzero(np.diff(resource, prepend=-1))
    bounds = [*firsts.tolist(), len(rows)]
    spans = pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), _spans(logical, rows))
    count = len(firsts)
    each = pa.array(range(count + 1), pa.int32())
    scope = pa.StructArray.from_arrays([pa.array([semconv.SCOPE] * count)], names=["name"])
    scope_spans = pa.StructArray.from_arrays([scope, spans], names=["scope", "spans"])
    resources = [logical.resources[number] for number in resource[firsts].tolist()]
    return pa.ListArray.from_arrays(
        pa.array([0, count], pa.int32()),
        pa.StructArray.from_arrays(
            [
                pa.StructArray.from_arrays([_attributes(resources)], names=["attributes"]),
                pa.ListArray.from_arrays(each, scope_spans),
            ],
            names=["resource", "scopeSpans"],
        ),
    )


def _spans(logical: Logical, rows: Any) -> pa.StructArray:
    numbers = rows.tolist()
    attributes = [logical.attributes[row] for row in numbers]
    messages = [one.get(STATUS_MESSAGE, "") for one in attributes]
    if any(messages):
        attributes = [{k: v for k, v in one.items() if k != STATUS_MESSAGE} for one in attributes]
    traces = [trace.to_bytes(16, "big") for trace in logical.traces]
    columns = {
        "traceId": pa.array([traces[number] for number in logical.trace_id[rows].tolist()], pa.binary()),
        "spanId": _id_bytes(logical.span_id[rows]),
        "parentSpanId": _id_bytes(logical.parent_id[rows]),
        "name": pa.array([logical.name[row] for row in numbers]),
        "kind": pa.array(logical.kind[rows].astype(np.int32)),
        "startTimeUnixNano": pa.array(logical.start_ns[rows].astype(np.uint64)),
        "endTimeUnixNano": pa.array(logical.end_ns[rows].astype(np.uint64)),
        "attributes": _attributes(attributes),
        "links": _links(logical, numbers),
        "status": pa.StructArray.from_arrays(
            [pa.array(messages), pa.array(logical.status[rows].astype(np.int32))], names=["message", "code"]
        ),
    }
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))


def _id_bytes(ids: Any) -> pa.Array:
    """Returns 8-byte ids; no bytes for 0."""
    raw = ids.astype(">i8").tobytes()
    there = ids != 0
    lengths = np.where(there, 8, 0)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    data = np.frombuffer(raw, np.uint8).reshape(-1, 8)[there].tobytes()
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(ids), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _links(logical: Logical, rows: list[int]) -> pa.Array:
    lists = [logical.links.get(row, []) for row in rows]
    offsets = list(itertools.accumulate(map(len, lists), initial=0))
    flat = [link for links in lists for link in links]
    items = pa.StructArray.from_arrays(
        [
            pa.array([trace.to_bytes(16, "big") for trace, _ in flat], pa.binary()),
            pa.array([span.to_bytes(8, "big") for _, span in flat], pa.binary()),
        ],
        names=["traceId", "spanId"],
    )
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items)


def _attributes(owners: list[dict[str, Any]]) -> pa.Array:
    keys = [key for owner in owners for key in owner]
    values = [value for owner in owners for value in owner.values()]
    lists = pa.ListArray
    offsets = list(itertools.accumulate(map(len, owners), initial=0))
    items = pa.StructArray.from_arrays([pa.array(keys, pa.string()), _values(values)], names=["key", "value"])
    return lists.from_arrays(pa.array(offsets, pa.int32()), items)


def _values(values: list[Any]) -> pa.StructArray:
    kinds = [type(value) for value in values]

    def of(kind: type, arrow: pa.DataType) -> pa.Array:
        picked = [value if is_ is kind else None for value, is_ in zip(values, kinds, strict=True)]
        return pa.array(picked, arrow)

    columns = {
        "stringValue": of(str, pa.string()),
        "boolValue": of(bool, pa.bool_()),
        "intValue": of(int, pa.int64()),
        "doubleValue": of(float, pa.float64()),
    }
    if list in kinds:
        lists = [value if kind is list else None for value, kind in zip(values, kinds, strict=True)]
        offsets = list(itertools.accumulate((len(value or ()) for value in lists), initial=0))
        flat = _values([item for value in lists for item in value or ()])
        inner = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat)
        there = pa.array([value is None for value in lists])
        columns["arrayValue"] = pa.StructArray.from_arrays([inner], names=["values"], mask=there)
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))
