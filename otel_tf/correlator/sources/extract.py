"""Spans that protobuf left in Arrow, in the shape of `shape`, into the canonical tables."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from otel_tf import semconv
from otel_tf.correlator.sources import ids
from otel_tf.correlator.sources.attributes import Attributes, Extra
from otel_tf.correlator.sources.chunks import STATUS_MESSAGE, Chunk, Found, Linked, Origin, to_chunk
from otel_tf.correlator.sources.leaf_values import from_lists, parents
from otel_tf.correlator.sources.skipped import Skipped

__all__ = ["STATUS_MESSAGE", "Chunk", "extract"]

Int = npt.NDArray[np.int64]

_NO_ID = bytes(8)


def extract(
    resource_spans: pa.Array,
    skipped: Skipped,
    where: Callable[[int], str],
    order: tuple[int, ...] = (),
    line_of_resource: Int | None = None,
) -> Chunk:
    """Returns the usable spans below ``resource_spans``.

    Args:
        resource_spans: OTLP ``ResourceSpans`` in the shape of `shape`.
        skipped: Where unusable spans are counted.
        where: From a number of ``line_of_resource`` to ``file:line`` for the examples.
        order: Where the piece stands in the whole input, for choosing the first example.
        line_of_resource: For each of ``resource_spans``, the number that ``where`` takes; default 0.
    """
    scope_spans = resource_spans.field("scopeSpans")
    span_lists = scope_spans.flatten().field("spans")
    spans: pa.StructArray = span_lists.flatten()
    resource: Int = parents(scope_spans)[parents(span_lists)] if len(spans) else np.empty(0, np.int64)
    trace_id, span_id, parent_id = (spans.field(name) for name in ("traceId", "spanId", "parentSpanId"))
    trace, trace_good = ids.from_arrow(trace_id, 16)
    span, span_good = ids.from_arrow(span_id, 8)
    parent, parent_good = ids.from_arrow(parent_id, 8)
    attributes = from_lists(spans.field("attributes"))
    found = Found(
        trace=trace,
        span=span[:, 0],
        parent=parent[:, 0],
        good_id=trace_good & span_good,
        bad_parent=~parent_good & ~_is_no_id(parent_id),
        id_text=lambda row: (_hex(trace_id[row].as_py()), _hex(span_id[row].as_py())),
        parent_text=lambda row: _hex(parent_id[row].as_py()),
        name=spans.field("name").fill_null(""),
        kind=_numbers(spans.field("kind")),
        status=_numbers(spans.field("status").field("code")),
        start_ns=_times(spans.field("startTimeUnixNano")),
        end_ns=_times(spans.field("endTimeUnixNano")),
        extra=_extra(spans, attributes),
        resource=resource,
        attributes=attributes,
        resources=from_lists(resource_spans.field("resource").field("attributes")),
        links=_links(spans.field("links")),
    )
    line = np.zeros(len(spans), np.int64) if line_of_resource is None else line_of_resource[resource]
    return to_chunk(found, skipped, Origin(where, order, line))


def _links(lists: pa.Array) -> Linked:
    links = lists.flatten()
    trace, trace_good = ids.from_arrow(links.field("traceId"), 16)
    span, span_good = ids.from_arrow(links.field("spanId"), 8)
    keep = trace_good & span_good
    return Linked(parents(lists)[keep], trace[keep], span[keep, 0])


def _extra(spans: pa.StructArray, attributes: Attributes) -> Extra:
    extra = Extra()
    message = spans.field("status").field("message")
    rows = np.flatnonzero(pc.greater(pc.binary_length(message), 0).fill_null(False))
    for row, text in zip(rows.tolist(), message.take(pa.array(rows)).to_pylist(), strict=True):
        extra.add(row, STATUS_MESSAGE, text)
    lists = spans.field("events")
    events = lists.flatten()
    rows = parents(lists)
    chosen = np.flatnonzero(pc.equal(events.field("name"), semconv.EVENT_EXCEPTION).fill_null(False))
    if len(chosen):
        said = from_lists(events.field("attributes").take(pa.array(chosen)))
        for key in (semconv.EXCEPTION_TYPE, semconv.EXCEPTION_MESSAGE):
            texts = said.texts(key)
            by_event = [texts.names[code] if code >= 0 else None for code in texts.codes.tolist()]
            extra.add_last(attributes, key, zip(rows[chosen].tolist(), by_event, strict=True))
    return extra


def _times(times: pa.Array) -> Int:
    """Returns times as int64, 0 where there is none. What int64 cannot hold becomes its largest value."""
    unsigned: npt.NDArray[np.uint64] = times.fill_null(0).to_numpy(zero_copy_only=False)
    return np.minimum(unsigned, np.uint64(2**63 - 1)).astype(np.int64)


def _numbers(values: pa.Array) -> Int:
    numbers: Int = values.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def _hex(data: bytes | None) -> str:
    return (data or b"").hex()


def _is_no_id(ids_: pa.Array) -> npt.NDArray[np.bool_]:
    """Returns where an optional id is absent: null, empty, or zeros."""
    absent = pc.equal(pc.binary_length(ids_), 0).fill_null(True)
    zero = pc.equal(ids_, pa.scalar(_NO_ID, ids_.type)).fill_null(False)
    result: npt.NDArray[np.bool_] = pc.or_(absent, zero).to_numpy(zero_copy_only=False)
    return result
