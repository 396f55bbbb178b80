"""OTLP protobuf, encoded by OpenTelemetry's own messages, against the same spans as JSON."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import json_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from otel_tf.correlator import sources
from otel_tf.errors import UserError


def message(document: dict[str, Any], kind: type = TracesData) -> bytes:
    """Encodes OTLP/JSON with the official messages; their JSON has ids in base64."""

    def in_base64(node: Any) -> Any:
        if isinstance(node, list):
            return [in_base64(item) for item in node]
        if not isinstance(node, dict):
            return node
        ids = ("traceId", "spanId", "parentSpanId")
        return {
            key: base64.b64encode(bytes.fromhex(inner)).decode() if key in ids and inner else in_base64(inner)
            for key, inner in node.items()
        }

    encoded: bytes = json_format.ParseDict(in_base64(document), kind()).SerializeToString()
    return encoded


def frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def read(path) -> list[dict[str, Any]]:
    return sources.read([str(path)]).spans.to_pylist()


SCALARS = st.one_of(
    st.text(max_size=8),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
)
ATTRIBUTES = st.dictionaries(
    st.sampled_from(["a", 'b"', "tensorflow.global_step", "tensorflow.worker", "tensorflow.seq", "ü"]),
    st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=5,
    ),
    max_size=6,
)
EVENTS = st.lists(st.tuples(st.sampled_from(["exception", "retry"]), ATTRIBUTES), max_size=2)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    everything=st.lists(
        st.lists(
            st.tuples(ATTRIBUTES, st.integers(0, 5), st.integers(0, 2), st.booleans(), EVENTS), max_size=4
        ),
        min_size=1,
        max_size=4,
    ),
    resource=ATTRIBUTES,
)
def test_protobuf_and_json_of_the_same_spans_read_the_same(samples, everything, resource):
    documents, number = [], 0
    for spans in everything:
        made = []
        for attributes, kind, code, linked, events in spans:
            number += 1
            link = {"traceId": f"{number:032x}", "spanId": f"{2**64 - number:016x}"}
            fields = {"kind": kind, "status": {"code": code, "message": "m" * code}, "links": [link] * linked}
            fields["events"] = [
                {"name": name, "attributes": samples.pairs({**said, "exception.type": "E"})}
                for name, said in events
            ]
            parent = {"parentSpanId": f"{number - 1:016x}"} if number > 1 else {}
            made.append(samples.span(number, attributes, **fields, **parent))
        documents.append(samples.traces(*made, resource={"service.name": "s", **resource}))
    documents.append(samples.traces(samples.span(999)))
    from_json = samples.read(*documents)
    path = samples.folder / "spans"
    path.write_bytes(b"".join(frame(message(document)) for document in documents))
    from_proto = sources.read([str(path)])
    assert from_proto.spans.to_pylist() == from_json.spans.to_pylist()
    assert from_proto.links.to_pylist() == from_json.links.to_pylist()
    assert from_proto.skipped == from_json.skipped == {}


def test_one_message_of_either_name(samples, tmp_path):
    document = samples.traces(samples.span(1), samples.span(2, {"x": b"\x00".decode()}))
    expected = samples.read(document).spans.to_pylist()
    for kind in (TracesData, ExportTraceServiceRequest):
        path = tmp_path / f"{kind.__name__}.bin"
        path.write_bytes(message(document, kind))
        assert read(path) == expected


def test_a_large_message_is_read_in_pieces(samples, tmp_path, monkeypatch):
    monkeypatch.setattr("otel_tf.correlator.sources.parts._PART_BYTES", 300)
    whole = b"".join(message(samples.traces(samples.span(number))) for number in range(1, 100))
    path = tmp_path / "large.pb"
    path.write_bytes(whole)
    assert [row["span_id"] for row in read(path)] == list(range(1, 100))


@pytest.mark.parametrize("encoding", ["proto", "json"])
@pytest.mark.parametrize("compressed", [False, True])
def test_what_the_collectors_file_exporter_writes_with_lengths(samples, tmp_path, encoding, compressed):
    documents = [samples.traces(samples.span(number)) for number in (1, 2, 3)]
    payloads = [message(d) if encoding == "proto" else json.dumps(d).encode() for d in documents]
    if compressed:
        payloads = [pa.compress(payload, "zstd", asbytes=True) for payload in payloads]
    path = tmp_path / "frames"
    path.write_bytes(b"".join(map(frame, payloads)))
    assert [row["span_id"] for row in read(path)] == [1, 2, 3]


def test_a_frame_that_is_damaged_costs_itself_only(samples, tmp_path):
    payloads = [message(samples.traces(samples.span(number))) for number in (1, 2, 3)]
    payloads[1] = payloads[1][:-7]
    path = tmp_path / "frames.pb"
    path.write_bytes(b"".join(map(frame, payloads)))
    ingested = sources.read([str(path)])
    assert ingested.spans["span_id"].to_pylist() == [1, 3]
    assert ingested.skipped == {"not_protobuf": 1}
    assert ingested.first_skipped["not_protobuf"].startswith("frames.pb: message 2: ")


@pytest.mark.parametrize("framed", [False, True])
def test_a_file_that_ends_in_the_middle_of_a_message(samples, tmp_path, framed):
    payloads = [message(samples.traces(samples.span(number))) for number in (1, 2, 3)]
    path = tmp_path / "cut.pb"
    path.write_bytes(b"".join(frame(p) if framed else p for p in payloads)[:-7])
    ingested = sources.read([str(path)])
    assert ingested.spans["span_id"].to_pylist() == [1, 2]
    assert ingested.skipped == {"truncated": 1}
    assert ingested.first_skipped["truncated"].startswith("cut.pb: ")


def test_ids_and_times_are_checked_as_in_json(samples, tmp_path):
    request = TracesData()
    spans = request.resource_spans.add().scope_spans.add().spans
    good = {"trace_id": b"t" * 16, "span_id": b"s" * 8, "start_time_unix_nano": 5, "end_time_unix_nano": 6}
    for number, wrong in enumerate(
        [
            {},
            {"trace_id": b"t" * 8},
            {"span_id": b""},
            {"end_time_unix_nano": 2**64 - 1},
            {"end_time_unix_nano": 4},
        ]
    ):
        spans.add(name=f"n{number}", **{**good, **wrong})
    path = tmp_path / "checks.pb"
    path.write_bytes(request.SerializeToString())
    ingested = sources.read([str(path)])
    assert ingested.spans["name"].to_pylist() == ["n0"]
    assert ingested.skipped == {"bad_id": 2, "absurd_time": 1, "end_before_start": 1}
    expected = f"checks.pb: message 1: span 'n1': trace id '{'74' * 8}', span id '{'73' * 8}'"
    assert ingested.first_skipped["bad_id"] == expected


def test_random_bytes_are_refused(tmp_path):
    generator = random.Random(7)
    for size in (1, 10, 1000, 100_000):
        path = tmp_path / f"noise-{size}"
        path.write_bytes(b"\x0a" + generator.randbytes(size))
        with pytest.raises(UserError, match=f"noise-{size}"):
            sources.read([str(path)])


def test_another_protobuf_is_refused(shared_data):
    for name in ("jax_gemm.xplane.pb", "tf2_gpu_multi_worker.xplane.pb"):
        with pytest.raises(UserError, match=name):
            sources.read([str(shared_data / "xplane" / name)])
