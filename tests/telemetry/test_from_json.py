"""Lines of the spool back into protobuf: by columns and by messages, the same spans."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_tf.telemetry import _json
from otel_tf.telemetry._from_json import add_line, span_keys
from otel_tf.telemetry._from_json_columns import NotColumns, to_protobuf

UINT32 = st.integers(0, 2**32 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALAR = st.one_of(
    TEXT, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)
)
PLAIN = st.one_of(SCALAR, st.lists(SCALAR, max_size=3), st.dictionaries(TEXT, SCALAR, max_size=3))
ODD = st.one_of(
    st.sampled_from([float("nan"), float("inf"), -float("inf"), b"", b"\0\xff", [["nested"]]]), PLAIN
)


def attributes(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    made = st.dictionaries(TEXT, values, max_size=4)
    return made.map(lambda of: json.loads(f"[{_json.attributes(of)}]"))


def hexes(size: int) -> st.SearchStrategy[str]:
    return st.binary(min_size=size, max_size=size).map(bytes.hex)


def lines(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Everything that a line of the spool may hold."""
    time = st.integers(0, 2**64 - 1).map(str)
    event = st.fixed_dictionaries(
        {"timeUnixNano": time, "name": TEXT, "attributes": attributes(values)},
        optional={"droppedAttributesCount": UINT32},
    )
    link = st.fixed_dictionaries(
        {"traceId": hexes(16), "spanId": hexes(8), "attributes": attributes(values), "flags": UINT32},
        optional={"droppedAttributesCount": UINT32},
    )
    status = st.fixed_dictionaries({}, optional={"code": st.integers(0, 2), "message": TEXT})
    span = st.fixed_dictionaries(
        {
            "traceId": hexes(16),
            "spanId": hexes(8),
            "name": TEXT,
            "kind": st.integers(0, 5),
            "startTimeUnixNano": time,
            "endTimeUnixNano": time,
        },
        optional={
            "traceState": TEXT,
            "parentSpanId": hexes(8) | st.just(""),
            "flags": UINT32,
            "attributes": attributes(values),
            "droppedAttributesCount": UINT32,
            "events": st.lists(event, max_size=2),
            "droppedEventsCount": UINT32,
            "links": st.lists(link, max_size=2),
            "droppedLinksCount": UINT32,
            "status": status,
        },
    )
    scope = st.fixed_dictionaries({}, optional={"name": TEXT, "version": TEXT})
    scope_spans = st.fixed_dictionaries({"spans": st.lists(span, max_size=3)}, optional={"scope": scope})
    resource = st.fixed_dictionaries({}, optional={"attributes": attributes(values)})
    resource_spans = st.fixed_dictionaries(
        {"scopeSpans": st.lists(scope_spans, min_size=1, max_size=2)},
        optional={"resource": resource, "schemaUrl": TEXT},
    )
    return st.fixed_dictionaries({"resourceSpans": st.lists(resource_spans, min_size=1, max_size=2)})


def by_messages(documents: list[dict[str, Any]]) -> ExportTraceServiceRequest:
    request = ExportTraceServiceRequest()
    for document in documents:
        add_line(request, document)
    return request


def spans_of(request: ExportTraceServiceRequest) -> list[tuple[str, str, str]]:
    """Returns every span with its resource and scope, as texts: groups without spans do not matter."""
    return [
        (f"{group.resource} {group.schema_url}", str(scope_spans.scope), str(span))
        for group in request.resource_spans
        for scope_spans in group.scope_spans
        for span in scope_spans.spans
    ]


def encoded(documents: list[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(document, ensure_ascii=False).encode() + b"\n" for document in documents]


@given(st.lists(lines(PLAIN), min_size=1, max_size=3))
@settings(max_examples=150, deadline=None)
def test_columns_give_what_messages_give(documents: list[dict[str, Any]]) -> None:
    found = ExportTraceServiceRequest.FromString(to_protobuf(encoded(documents)))
    assert spans_of(found) == spans_of(by_messages(documents))


@given(lines(ODD))
@settings(max_examples=150, deadline=None)
def test_what_has_no_column_is_refused_and_never_changed(document: dict[str, Any]) -> None:
    try:
        found = ExportTraceServiceRequest.FromString(to_protobuf(encoded([document])))
    except NotColumns:
        return
    assert spans_of(found) == spans_of(by_messages([document]))


def document(**fields: Any) -> dict[str, Any]:
    span = {
        **{"traceId": f"{1:032x}", "spanId": f"{2:016x}", "name": "n", "kind": 1},
        **{"startTimeUnixNano": "1", "endTimeUnixNano": "2"},
    }
    return {"resourceSpans": [{"scopeSpans": [{"spans": [span | fields]}]}]}


@pytest.mark.parametrize(
    "fields",
    [
        {"attributes": [{"key": "k", "value": {"doubleValue": "NaN"}}]},
        {"attributes": [{"key": "k", "value": {"bytesValue": "AA=="}}]},
        {"attributes": [{"key": "k", "value": {"arrayValue": {"values": [{"arrayValue": {}}]}}}]},
        {"traceId": "not hex"},
        {"spanId": "abc"},
        {"startTimeUnixNano": "18446744073709551616"},
        {"attributes": [{"key": "k", "value": {"intValue": "9223372036854775808"}}]},
        {"unheardOf": 1},
    ],
)
def test_what_columns_refuse(fields: dict[str, Any]) -> None:
    with pytest.raises(NotColumns):
        to_protobuf(encoded([document(**fields)]))


def test_the_keys_of_a_line() -> None:
    assert span_keys(encoded([document()])[0]) == [(f"{1:032x}", f"{2:016x}")]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"null",
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[{}]}]}]}',
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"1","spanId":2}]}]}]}',
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[]}]}]} x',
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"\xff","spanId":""}]}]}]}',
    ],
)
def test_a_line_that_is_none_has_no_keys(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        span_keys(line)
