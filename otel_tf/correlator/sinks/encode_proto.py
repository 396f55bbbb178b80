"""Logical spans as OTLP protobuf, made from columns: message objects cost ten times as much a span."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from otel_tf import semconv
from otel_tf.correlator.sinks.attributes import attributes_of
from otel_tf.correlator.sinks.flat import Flat, flat_of
from otel_tf.correlator.sinks.logical import Logical
from otel_tf.correlator.sources.shape import proto_handler

__all__ = ["Request", "requests"]

_SPANS_A_REQUEST = 4000


@dataclasses.dataclass(frozen=True)
class Request:
    """One serialized ``ExportTraceServiceRequest``."""

    payload: bytes
    spans: int


def requests(logical: Logical) -> Iterator[Request]:
    """Yields requests of a few thousand spans each."""
    handler = proto_handler()
    traces = pa.array([trace.to_bytes(16, "big") for trace in logical.traces], pa.binary())
    for first in range(0, len(logical.trace), _SPANS_A_REQUEST):
        rows = np.arange(first, min(first + _SPANS_A_REQUEST, len(logical.trace)))
        # Spans of a resource side by side; those of one trace stay in their order.
        rows = rows[np.argsort(logical.resource[rows], kind="stable")]
        batch = pa.RecordBatch.from_arrays([_resource_spans(logical, rows, traces)], names=["resourceSpans"])
        yield Request(handler.record_batch_to_array(batch)[0].as_py(), len(rows))


def _resource_spans(logical: Logical, rows: Any, traces: pa.Array) -> pa.Array:
    resource = logical.resource[rows]
    firsts = np.flatnonzero(np.diff(resource, prepend=-1))
    count = len(firsts)
    spans = _lists([*firsts.tolist(), len(rows)], _spans(logical, rows, traces))
    scope = _struct(name=pa.array([semconv.SCOPE] * count))
    scope_spans = _struct(scope=scope, spans=spans)
    resources = [logical.resources[number] for number in resource[firsts].tolist()]
    owner = [number for number, attributes in enumerate(resources) for _ in attributes]
    keys = [key for attributes in resources for key in attributes]
    values = [value for attributes in resources for value in attributes.values()]
    parts = _struct(
        resource=_struct(attributes=_attributes(flat_of(count, owner, keys, values))),
        scopeSpans=_lists(range(count + 1), scope_spans),
    )
    return _lists([0, count], parts)


def _spans(logical: Logical, rows: Any, traces: pa.Array) -> pa.StructArray:
    spans = logical.spans.slice(rows.min(), len(rows)).take(rows - rows.min()).combine_chunks()
    attributes, messages = attributes_of(spans, logical.warnings_of(rows))
    return _struct(
        traceId=traces.take(pa.array(logical.trace[rows])),
        spanId=_id_bytes(logical.span_id[rows]),
        parentSpanId=_id_bytes(logical.parent_id[rows]),
        name=spans["name"].cast(pa.string()).combine_chunks(),
        kind=spans["kind"].cast(pa.int32()).combine_chunks(),
        startTimeUnixNano=pa.array(logical.start_ns[rows].astype(np.uint64)),
        endTimeUnixNano=pa.array(logical.end_ns[rows].astype(np.uint64)),
        attributes=_attributes(attributes),
        links=_links(logical, rows.tolist()),
        status=_struct(message=messages, code=spans["status"].cast(pa.int32()).combine_chunks()),
    )


def _struct(**columns: pa.Array) -> pa.StructArray:
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))


def _lists(offsets: Any, items: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items)


def _id_bytes(ids: Any) -> pa.Array:
    """Returns 8-byte ids; no bytes for 0."""
    there = ids != 0
    offsets = np.concatenate([[0], np.cumsum(np.where(there, 8, 0))]).astype(np.int32)
    data = pa.py_buffer(ids[there].astype(">i8").tobytes())
    return pa.BinaryArray.from_buffers(pa.binary(), len(ids), [None, pa.py_buffer(offsets), data])


def _links(logical: Logical, rows: list[int]) -> pa.Array:
    lists = [logical.links.get(row, ()) for row in rows]
    flat = [link for links in lists for link in links]
    items = _struct(
        traceId=pa.array([trace.to_bytes(16, "big") for trace, _ in flat], pa.binary()),
        spanId=pa.array([span.to_bytes(8, "big") for _, span in flat], pa.binary()),
    )
    return _lists(list(itertools.accumulate(map(len, lists), initial=0)), items)


def _attributes(flat: Flat) -> pa.Array:
    return _lists(flat.offsets, _struct(key=flat.key, value=_values(flat)))


def _values(flat: Flat) -> pa.StructArray:
    columns = dict(flat.leaves)
    if flat.nested:
        count = len(flat.owner)
        columns["arrayValue"] = _serialized(count, flat.nested, list)
        columns["kvlistValue"] = _serialized(count, flat.nested, dict)
    return _struct(**columns)


def _serialized(count: int, nested: dict[int, Any], kind: type) -> pa.Array:
    """Returns lists or maps as serialized ``ArrayValue`` or ``KeyValueList``; null for other values."""
    made = [None] * count
    for number, value in nested.items():
        if isinstance(value, kind):
            message = _any_value(value)
            made[number] = getattr(message, message.WhichOneof("value")).SerializeToString()
    return pa.array(made, pa.binary())


def _any_value(value: Any) -> Any:
    """Returns the message ``AnyValue`` of a value from JSON."""
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList

    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, list):
        return AnyValue(array_value=ArrayValue(values=map(_any_value, value)))
    if isinstance(value, dict):
        pairs = [KeyValue(key=key, value=_any_value(inner)) for key, inner in value.items()]
        return AnyValue(kvlist_value=KeyValueList(values=pairs))
    return AnyValue()
