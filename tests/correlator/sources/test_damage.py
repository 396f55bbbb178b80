"""Whatever happens to a part of the input, the rest is used."""

from __future__ import annotations

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from otel_tf.correlator import sources
from otel_tf.errors import UserError
from tests.correlator.sources.test_otlp_proto import frame, message

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    *("traceId", "spanId", "parentSpanId", "name", "kind", "startTimeUnixNano", "endTimeUnixNano"),
    *("attributes", "links", "status"),
]
SETTINGS = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150
)


def ids_of(path):
    return set(sources.read([str(path)]).spans["span_id"].to_pylist())


@SETTINGS
@given(st.integers(0, 4), st.integers(0, 10**6), st.binary(min_size=1, max_size=20))
def test_bytes_overwritten_in_a_line_harm_that_line_only(samples, line, at, noise):
    lines = [
        json.dumps(samples.traces(samples.span(n, {"x": n, "y": "ü"}), samples.span(n + 100))).encode()
        for n in range(1, 6)
    ]
    at %= len(lines[line])
    noise = noise.replace(b"\n", b" ")
    # What a file is, is told by its first bytes.
    assume((line, at) != (0, 0) or noise[:2] not in (b"\x1f\x8b", b"\x28\xb5", b"PA"))
    lines[line] = lines[line][:at] + noise + lines[line][at + len(noise) :]
    others = {n + extra for n in range(1, 6) for extra in (0, 100) if n != line + 1}
    found = ids_of(samples.write(*lines))
    assert others <= found
    assert len(found) <= 10


@SETTINGS
@given(st.sampled_from(FIELDS), ANY_JSON)
def test_any_json_in_a_field_harms_that_span_only(samples, field, value):
    odd = {**samples.span(1), field: value}
    line = json.dumps(samples.traces(samples.span(2), odd, samples.span(3)))
    assert {2, 3} <= ids_of(samples.write(line))


@SETTINGS
@given(ANY_JSON, st.sampled_from(["resource", "scopeSpans", "resourceSpans", "spans", "value", "key"]))
def test_any_json_in_place_of_a_part_harms_that_line_only(samples, value, part):
    document = samples.traces(samples.span(1, {"a": 1}))
    inside = {
        "resourceSpans": document,
        "resource": document["resourceSpans"][0],
        "scopeSpans": document["resourceSpans"][0],
        "spans": document["resourceSpans"][0]["scopeSpans"][0],
        "value": document["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"][0],
        "key": document["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"][0],
    }[part]
    inside[part] = value
    assert 2 in ids_of(samples.write(document, samples.traces(samples.span(2))))


@SETTINGS
@given(ANY_JSON)
def test_any_json_as_a_line_or_as_what_jaeger_says_harms_nothing(samples, value):
    lines = [json.dumps(value), json.dumps({"data": value}), json.dumps({"result": value})]
    assert 1 in ids_of(samples.write(*lines, samples.traces(samples.span(1))))


@SETTINGS
@given(
    st.binary(max_size=300),
    st.sampled_from([b"", b"\x0a", b"{", b"[", b"PAR1", b"\x1f\x8b", b"\x28\xb5\x2f\xfd"]),
)
def test_any_bytes_at_all_are_refused_in_one_line(samples, content, magic):
    path = samples.folder / "noise"
    path.write_bytes(magic + content)
    with pytest.raises(UserError, match="noise") as refused:
        sources.read([str(path)])
    assert len(str(refused.value).splitlines()) == 1


@st.composite
def mutated(draw, content):
    """``content`` with bytes flipped, written over, put in, taken out, repeated, or cut off."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        piece = draw(st.binary(min_size=1, max_size=4))
        match draw(st.integers(0, 5)):
            case 0 if data:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case 1:
                data[at : at + len(piece)] = piece
            case 2:
                data[at:at] = piece
            case 3:
                del data[at : at + draw(st.integers(1, 30))]
            case 4:
                begin = draw(st.integers(0, len(data)))
                data[at:at] = data[begin : begin + 60]
            case _:
                del data[len(data) - min(len(data), draw(st.integers(0, 200))) :]
    return bytes(data)


def sample_of_everything(samples):
    attributes = {
        "tensorflow.global_step": 5,
        "d": 0.5,
        "yes": True,
        "list": ["a", {"k": [1]}],
        "e": '"\\ \u2603',
    }
    event = {"name": "exception", "attributes": samples.pairs({"exception.type": "E"})}
    link = {"traceId": f"{9:032x}", "spanId": f"{8:016x}"}
    fields = {"events": [event], "links": [link], "status": {"code": 2, "message": "boom"}}
    return samples.traces(
        *(samples.span(n, attributes, parentSpanId=f"{n + 1:016x}", **fields) for n in (1, 2)),
        resource={"service.name": "s", "process.pid": 7, "args": ["a"]},
    )


@settings(parent=SETTINGS, max_examples=400)
@given(data=st.data())
@pytest.mark.parametrize("form", ["json", "message", "frames", "gzip"])
def test_a_file_with_any_damage_is_read_or_refused_in_one_line(samples, form, data):
    document = sample_of_everything(samples)
    lines = (json.dumps(document, separators=(",", ":"), ensure_ascii=False) + "\n").encode() * 2
    content = {
        "json": lines,
        "message": message(document),
        "frames": frame(message(document)) * 2,
        "gzip": gzip.compress(lines),
    }[form]
    path = samples.folder / "damaged"
    path.write_bytes(data.draw(mutated(content)))
    refused = ""
    try:
        ingested = sources.read([str(path)])
    except UserError as error:
        refused = str(error)
    if refused:
        assert "damaged" in refused
        assert "\n" not in refused
        return
    ingested.spans.validate(full=True)
    assert all(
        isinstance(json.loads(text), dict) for text in ingested.spans["attributes"].drop_null().to_pylist()
    )
    assert set(ingested.first_skipped) == set(ingested.skipped)


def test_a_null_between_lines_does_not_reach_arrow(samples):
    # Arrow's reader of lines crashes on it, so this is here to end the test run if anything does again.
    for noise in ("null", " null ", "{}null", "null null", "\ufeffnull"):
        assert ids_of(samples.write(noise, samples.traces(samples.span(1)), noise)) == {1}


@SETTINGS
@given(data=st.data())
def test_parquet_with_bytes_overwritten_is_read_or_refused(samples, data):
    path = samples.folder / "spans.parquet"
    rows = {"trace_id": [f"{n:032x}" for n in (1, 2)], "span_id": [f"{n:016x}" for n in (1, 2)]}
    pq.write_table(pa.table({**rows, "start_ns": [5, 6], "end_ns": [7, 8], "name": ["a", "ü"]}), path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(8, len(content) - 5))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    said = ""
    try:
        sources.read([str(path)]).spans.validate(full=True)
    except UserError as refused:
        said = str(refused)
    assert "\n" not in said
    assert not said or "spans.parquet" in said
