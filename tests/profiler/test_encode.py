"""The spans that come out are those that the official messages give, byte for byte."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue

from otel_tf.profiler import encode
from otel_tf.profiler.encode import Batch, Layout, requests
from otel_tf.profiler.otlp import Json, Proto

RESOURCE = {"service.name": "mnist", "n": 7, "ok": True, "list": ["a", 'b"ü']}

int64 = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.sampled_from(
        [0, 1, 127, 128, 16383, 16384, (1 << 63) - 1, -(1 << 63), -1, 10**18, 10**18 - 1, -(10**18)]
    ),
)
times = st.one_of(
    st.integers(1, (1 << 63) - 1), st.integers(1_700_000_000_000_000_000, 1_800_000_000_000_000_000)
)
texts = st.text(st.characters(codec="utf-8"), max_size=6)
values = st.one_of(
    texts, st.booleans(), st.integers(-5, 1 << 40), st.floats(allow_nan=False, allow_infinity=False)
)
layouts = st.builds(
    Layout,
    name=texts,
    kind=st.integers(0, 5),
    fixed=st.lists(st.tuples(texts, st.one_of(values, st.lists(values, max_size=3))), max_size=4).map(tuple),
    integers=st.sets(st.sampled_from(["step", "id", "key"])).map(lambda keys: tuple(sorted(keys))),
    linked=st.booleans(),
)
identifiers = int64.filter(bool)


@st.composite
def batches(draw):
    known = draw(st.lists(layouts, min_size=1, max_size=4))
    count = draw(st.integers(0, 12))

    def column(each):
        return np.array(draw(st.lists(each, min_size=count, max_size=count)), np.int64)

    return Batch(
        layouts=known,
        layout=column(st.integers(0, len(known) - 1)),
        trace_hi=column(identifiers),
        trace_lo=column(identifiers),
        span=column(identifiers),
        parent=column(int64),
        start_ns=column(times),
        end_ns=column(times),
        integers={key: column(int64) for key in ("step", "id", "key")},
        link_hi=column(identifiers),
        link_lo=column(identifiers),
        link_span=column(identifiers),
    )


def any_value(value):
    if isinstance(value, list):
        return AnyValue(array_value=ArrayValue(values=map(any_value, value)))
    kinds = {bool: "bool_value", int: "int_value", float: "double_value", str: "string_value"}
    return AnyValue(**{kinds[type(value)]: value})


def pairs(attributes):
    return [KeyValue(key=key, value=any_value(value)) for key, value in attributes]


def big_endian(number):
    return int(number).to_bytes(8, "big", signed=True)


def official(batch, order):
    """Returns the same request made of the official messages, with the spans in the given order."""
    request = ExportTraceServiceRequest()
    scopes = request.resource_spans.add()
    scopes.resource.attributes.extend(pairs(RESOURCE.items()))
    spans = scopes.scope_spans.add()
    spans.scope.name = "otel_tf"
    for n in order:
        layout = batch.layouts[batch.layout[n]]
        span = spans.spans.add(
            trace_id=big_endian(batch.trace_hi[n]) + big_endian(batch.trace_lo[n]),
            span_id=big_endian(batch.span[n]),
            parent_span_id=big_endian(batch.parent[n]) if batch.parent[n] else b"",
            name=layout.name,
            kind=layout.kind,
            start_time_unix_nano=int(batch.start_ns[n]),
            end_time_unix_nano=int(batch.end_ns[n]),
        )
        span.attributes.extend(pairs(layout.fixed))
        span.attributes.extend(pairs((key, int(batch.integers[key][n])) for key in layout.integers))
        if layout.linked:
            trace_id = big_endian(batch.link_hi[n]) + big_endian(batch.link_lo[n])
            span.links.add(trace_id=trace_id, span_id=big_endian(batch.link_span[n]))
    return request


def identities(request):
    spans = [
        span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans
    ]
    return [(span.trace_id, span.span_id, span.SerializeToString(deterministic=True)) for span in spans]


def order_of(request, batch):
    """Returns the rows that the request's spans are of; of spans that look alike, any."""
    wanted = identities(official(batch, range(len(batch))))
    free = {}
    for row, key in enumerate(wanted):
        free.setdefault(key, []).append(row)
    return [free[key].pop() for key in identities(request)]


@settings(max_examples=80, deadline=None)
@given(batch=batches())
def test_protobuf_is_that_of_the_official_messages_to_the_byte(batch):
    made = list(requests(Proto(), batch, RESOURCE))
    assert sum(count for _, count in made) == len(batch)
    for payload, count in made:
        request = ExportTraceServiceRequest.FromString(payload)
        order = order_of(request, batch)
        assert len(order) == count
        assert official(batch, order).SerializeToString() == payload


@settings(max_examples=80, deadline=None)
@given(batch=batches())
def test_json_says_the_same_as_protobuf(batch):
    made = list(requests(Json(), batch, RESOURCE))
    assert sum(count for _, count in made) == len(batch)
    for line, _ in made:
        assert b"\n" not in line
        document = json.loads(line)
        for resource in document["resourceSpans"]:
            for span in resource["scopeSpans"][0]["spans"]:
                # OTLP writes ids in hexadecimal where protobuf's own JSON has base64.
                for holder in (span, *span.get("links", [])):
                    for key in ("traceId", "spanId", "parentSpanId"):
                        if key in holder:
                            holder[key] = base64.b64encode(bytes.fromhex(holder[key])).decode()
        request = json_format.ParseDict(document, ExportTraceServiceRequest())
        assert official(batch, order_of(request, batch)) == request


@pytest.mark.parametrize("format_", [Proto(), Json()])
def test_many_spans_are_several_requests(format_, monkeypatch):
    monkeypatch.setattr(encode, "SPANS_A_REQUEST", 10)
    one = np.ones(35, np.int64)
    number = np.arange(35, dtype=np.int64) + 1
    batch = Batch([Layout("a", 1), Layout("b", 1)], number % 2, *[number] * 4, one, one, {}, *[one] * 3)
    counts = [count for _, count in requests(format_, batch, RESOURCE)]
    assert sum(counts) == 35
    assert all(count < 20 for count in counts) and len(counts) > 2


def test_the_readers_of_the_correlator_take_both(tmp_path):
    from otel_tf.correlator import sources

    one = np.ones(5, np.int64)
    now = 1_700_000_000_000_000_000
    number = np.arange(5, dtype=np.int64) + 1
    layout = Layout("_Recv", 5, (("tensorflow.op.name", "a/b"),), ("tensorflow.global_step",), linked=True)
    steps = {"tensorflow.global_step": number * 100}
    batch = Batch(
        [layout], one * 0, one, one, number, one * 0, one * now, one * now + number, steps, one, one, one
    )
    for name, format_ in (("a.pb", Proto()), ("a.jsonl", Json())):
        path = tmp_path / name
        path.write_bytes(b"".join(payload for payload, _ in requests(format_, batch, RESOURCE)))
        read = sources.read([str(path)])
        assert read.spans["global_step"].to_pylist() == [100, 200, 300, 400, 500]
        assert read.spans["span_id"].to_pylist() == [1, 2, 3, 4, 5]
        assert read.links.num_rows == 5
        assert json.loads(read.spans["attributes"][0].as_py()) == {"tensorflow.op.name": "a/b"}
