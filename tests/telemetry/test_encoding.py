"""The fast templates against OpenTelemetry's own encoder, and the JSON against the official messages."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider

from otel_tf.telemetry import Layout, SpanError, SpanEvent, SpanKind, SpanLink, TaskResource
from otel_tf.telemetry._batch import Batch, ProviderShaper, merged
from otel_tf.telemetry._fast import FastShaper
from otel_tf.telemetry._records import Record

RESOURCE = TaskResource({"service.name": "train", "tensorflow.task.index": 1, "list": ("a", "b")})
OTHER = TaskResource({"service.name": "train", "tensorflow.task.index": 2}, "https://example.org/schema")


def layout(**options: Any) -> Layout:
    given_options = {
        "name": "train_step",
        "kind": SpanKind.INTERNAL,
        "resource": RESOURCE,
        "fields": ("a", "b", "c"),
        "constants": {"tensorflow.worker": "worker:1", "fixed": 7},
        "remote_parent": False,
        **options,
    }
    return Layout(**given_options)


def record(one: Layout, *values: Any, **options: Any) -> Record:
    fields = {
        "trace_id": 0x0123456789ABCDEF0123456789ABCDEF,
        "span_id": 5,
        "parent_id": 0,
        "start_ns": 1_796_126_340_894_923_806,
        "end_ns": 1_796_126_340_994_923_806,
        "values": values,
        "error": None,
        "links": (),
        **options,
    }
    return Record(one, **fields)


def fast(records: list[Record]) -> Batch:
    (batch,) = FastShaper(None).shape(records)
    return batch


def decode_json(line: bytes) -> ExportTraceServiceRequest:
    """Reads an OTLP JSON line with the official messages, whose own JSON has ids in base 64."""
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1

    def hex_ids(value: Any) -> Any:
        if isinstance(value, list):
            return [hex_ids(each) for each in value]
        if not isinstance(value, dict):
            return value
        return {
            key: base64.b64encode(bytes.fromhex(each)).decode()
            if key in ("traceId", "spanId", "parentSpanId")
            else hex_ids(each)
            for key, each in value.items()
        }

    return json_format.ParseDict(hex_ids(json.loads(line)), ExportTraceServiceRequest())


def check_same(records: list[Record]) -> ExportTraceServiceRequest:
    """The fast path's protobuf, the fast path's JSON and the SDK's own way give the same message."""
    batch = fast(records)
    ours = ExportTraceServiceRequest.FromString(batch.payload())
    assert decode_json(batch.line) == ours

    (by_sdk,) = ProviderShaper(TracerProvider(shutdown_on_exit=False)).shape(records)
    official = ExportTraceServiceRequest.FromString(by_sdk.payload())
    assert ours == official
    assert decode_json(by_sdk.line) == official
    return ours


def test_a_step_is_what_the_sdk_would_have_made() -> None:
    one = check_same([record(layout(), 41207, 3, "x", parent_id=9)])
    span = one.resource_spans[0].scope_spans[0].spans[0]
    assert span.name == "train_step"
    assert span.trace_id.hex() == "0123456789abcdef0123456789abcdef"
    assert span.parent_span_id.hex() == "0000000000000009"
    assert span.end_time_unix_nano - span.start_time_unix_nano == 100_000_000
    assert [(each.key, each.value.WhichOneof("value")) for each in span.attributes] == [
        ("tensorflow.worker", "string_value"),
        ("fixed", "int_value"),
        ("a", "int_value"),
        ("b", "int_value"),
        ("c", "string_value"),
    ]
    scope = one.resource_spans[0].scope_spans[0].scope
    assert (scope.name, bool(scope.version)) == ("otel_tf", True)


def test_resources_are_grouped_and_keep_their_schema() -> None:
    mixed = [record(layout(resource=each), 1, 2, 3) for each in (RESOURCE, OTHER, RESOURCE)]
    one = check_same(mixed)
    assert [len(each.scope_spans[0].spans) for each in one.resource_spans] == [2, 1]
    assert one.resource_spans[1].schema_url == "https://example.org/schema"


@pytest.mark.parametrize("kind", list(SpanKind))
@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("parent_id", [0, 1, (1 << 64) - 1])
def test_kinds_and_parents(kind: SpanKind, remote: bool, parent_id: int) -> None:
    one = check_same([record(layout(kind=kind, remote_parent=remote), 1, 2, 3, parent_id=parent_id)])
    span = one.resource_spans[0].scope_spans[0].spans[0]
    assert span.kind == int(kind)
    assert span.flags == (0x300 if remote and parent_id else 0x100)


def test_none_is_left_out() -> None:
    one = check_same([record(layout(), None, 2, None)])
    keys = [each.key for each in one.resource_spans[0].scope_spans[0].spans[0].attributes]
    assert keys == ["tensorflow.worker", "fixed", "b"]


def test_errors_and_links() -> None:
    error = SpanError(
        "RESOURCE_EXHAUSTED",
        'OOM "when" allocating\nx',
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError",
        "Traceback…",
        {"tensorflow.error.origin.worker": "ps:0"},
    )
    links = [SpanLink(77, 78), SpanLink(79, 80, {"why": "version", "n": 3})]
    one = check_same([record(layout(), 1, 2, 3, error=error, links=links, parent_id=4)])
    span = one.resource_spans[0].scope_spans[0].spans[0]
    assert (span.status.code, span.status.message) == (2, error.message)
    assert [event.name for event in span.events] == ["exception"]
    assert span.events[0].time_unix_nano == span.end_time_unix_nano
    assert {each.key for each in span.events[0].attributes} == {
        "exception.type",
        "exception.message",
        "exception.stacktrace",
    }
    found = {each.key: each.value.string_value for each in span.attributes}
    assert found["error.type"] == "RESOURCE_EXHAUSTED"
    assert found["tensorflow.error.origin.worker"] == "ps:0"
    assert [link.trace_id[-1] for link in span.links] == [77, 79]


def test_events_come_before_the_exception() -> None:
    event = SpanEvent("storm", 1_796_126_340_900_000_000, {"calls": 10, "why": "shapes\udcff"})
    error = SpanError("X", "m", "ValueError")
    for failure, names in ((None, ["storm"]), (error, ["storm", "exception"])):
        one = check_same([record(layout(), 1, 2, 3, events=[event], error=failure)])
        events = one.resource_spans[0].scope_spans[0].spans[0].events
        assert [each.name for each in events] == names
        assert events[0].time_unix_nano == 1_796_126_340_900_000_000
        assert {each.key: each.value.WhichOneof("value") for each in events[0].attributes} == {
            "calls": "int_value",
            "why": "string_value",
        }


def test_an_error_without_a_traceback_has_none() -> None:
    one = check_same([record(layout(), 1, 2, 3, error=SpanError("X", "m", "ValueError"))])
    event = one.resource_spans[0].scope_spans[0].spans[0].events[0]
    assert {each.key for each in event.attributes} == {"exception.type", "exception.message"}


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(0, 1 << 15),
    st.floats(allow_nan=False),
    st.text(),
)
VALUES = st.one_of(SCALARS, st.lists(st.integers(0, 9)), st.lists(st.text(max_size=3)))


@given(st.lists(st.tuples(VALUES, VALUES, VALUES), min_size=1, max_size=4))
def test_any_value_is_what_the_sdk_would_have_made(rows: list[tuple[Any, Any, Any]]) -> None:
    one = layout()
    check_same([record(one, *row) for row in rows])


@pytest.mark.parametrize(
    "value",
    [
        0,
        1,
        127,
        128,
        (1 << 14) - 1,
        1 << 14,
        (1 << 28) - 1,
        1 << 28,
        (1 << 42) - 1,
        1 << 42,
        (1 << 63) - 1,
        -1,
    ],
)
def test_integers_at_the_edges_of_their_encoding(value: int) -> None:
    one = check_same([record(layout(), value, value, value)])
    assert one.resource_spans[0].scope_spans[0].spans[0].attributes[2].value.int_value == value


def test_true_is_not_one() -> None:
    one = layout()
    check_same([record(one, True, 1, "1"), record(one, 1, True, "1"), record(one, 0, False, False)])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int64(7), 7),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (1 << 63, str(1 << 63)),
        ("a\udcff", "a?"),
        (SpanKind.CLIENT, 3),
        (b"\x00\xff", b"\x00\xff"),
        ({"k": [1, None]}, None),
        (object, None),
    ],
)
def test_values_that_otlp_does_not_know_are_made_to_fit(value: Any, expected: Any) -> None:
    one = check_same([record(layout(), value, 2, 3)])
    got = one.resource_spans[0].scope_spans[0].spans[0].attributes[2].value
    if expected is not None:
        assert getattr(got, got.WhichOneof("value")) == expected


def test_infinities_and_nan() -> None:
    check_same([record(layout(), float("inf"), float("-inf"), 1.5)])
    batch = fast([record(layout(), float("nan"), 2, 3)])
    ours = ExportTraceServiceRequest.FromString(batch.payload())
    value = ours.resource_spans[0].scope_spans[0].spans[0].attributes[2].value.double_value
    assert value != value  # noqa: PLR0124 - this is what a NaN is
    assert decode_json(batch.line).resource_spans[0].scope_spans[0].spans[0].attributes[2].HasField("value")


def test_more_texts_than_are_remembered() -> None:
    one = layout()
    records = [record(one, f"text {number}", 2, 3) for number in range(1500)]
    check_same(records)


def test_a_wrong_number_of_values_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        fast([record(layout(), 1, 2)])


def test_the_sampler_decides_by_trace() -> None:
    kept = FastShaper(lambda trace_id: trace_id % 2 == 0)
    one = layout()
    (batch,) = kept.shape([record(one, 1, 2, 3, trace_id=number) for number in (1, 2, 3, 4)])
    assert batch.count == 2
    assert kept.shape([record(one, 1, 2, 3, trace_id=1)]) == []


def test_large_spans_are_cut_into_lines_that_a_server_takes() -> None:
    error = SpanError("X", "m", "E", "x" * 1_000_000)
    records = [record(layout(), 1, 2, 3, error=error, span_id=number) for number in range(1, 11)]
    batches = FastShaper(None).shape(records)
    assert all(len(batch.payload()) < 4 << 20 for batch in batches)
    assert len(batches) < 10
    spans = [
        span.span_id[-1]
        for batch in batches
        for span in decode_json(batch.line).resource_spans[0].scope_spans[0].spans
    ]
    assert spans == list(range(1, 11))


def test_several_batches_in_one_request() -> None:
    one = layout()
    batches = [fast([record(one, number, 2, 3)]) for number in range(3)]
    request = ExportTraceServiceRequest.FromString(merged(batches).payload())
    found = [each.scope_spans[0].spans[0].attributes[2].value.int_value for each in request.resource_spans]
    assert found == [0, 1, 2]
    assert [span.attributes["a"] for span in merged(batches).spans()] == [0, 1, 2]
