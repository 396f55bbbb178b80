"""Lines that were cut off: what was whole before the cut is used."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_tf.correlator import sources
from otel_tf.correlator.sources.salvage import complete_spans
from otel_tf.errors import UserError

#: Brackets and quotes in texts, lists and events: what is no end of a span.
ODD = {"a": '}]}{[{"', "list": ["}", {"k": "]"}], "b\\": "\\"}


def document(samples, *numbers):
    event = {"name": "exception", "attributes": samples.pairs({"exception.type": "}"})}
    return samples.traces(
        *(samples.span(n, ODD, events=[event], links=[samples.span(9)]) for n in numbers),
        resource={"service.name": "train", "odd": ["{[", {"x": 1}]},
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)
@given(st.data(), st.booleans(), st.booleans())
def test_every_span_that_ends_before_the_cut_is_there(samples, data, wrapped, spaced):
    whole = document(samples, 1, 2, 3)
    both = {"resourceSpans": [*whole["resourceSpans"], *document(samples, 4, 5)["resourceSpans"]]}
    line = json.dumps({"result": both} if wrapped else both, separators=None if spaced else (",", ":"))
    cut = data.draw(st.integers(0, len(line) - 1))
    text, end = complete_spans(line[:cut].encode(), cut)
    assert end <= cut
    found = json.loads(text) if text else {"resourceSpans": []}
    spans = [
        span["spanId"]
        for part in found.get("result", found)["resourceSpans"]
        for scope in part["scopeSpans"]
        for span in scope["spans"]
    ]
    texts = [json.dumps(one, separators=None if spaced else (",", ":")) for one in _spans(both)]
    places = [line.index(text) + len(text) for text in texts]
    assert spans == [f"{n:016x}" for n, place in enumerate(places, 1) if place <= cut]


def _spans(document):
    return [s for part in document["resourceSpans"] for scope in part["scopeSpans"] for s in scope["spans"]]


def test_the_last_line_was_cut_off(samples, tmp_path):
    whole, cut = (json.dumps(document(samples, *numbers)) for numbers in ((1, 2), (3, 4, 5)))
    path = tmp_path / "cut.jsonl"
    path.write_text(f"{whole}\n{cut[:-100]}")
    ingested = sources.read([str(path)])
    assert ingested.spans["span_id"].to_pylist() == [1, 2, 3, 4]
    assert set(ingested.spans["service"].to_pylist()) == {"train"}
    assert ingested.skipped == {"truncated": 1}
    said = ingested.first_skipped["truncated"]
    assert said.startswith("cut.jsonl:2: ")
    assert said.endswith("; the 2 whole spans before that are used")


@pytest.mark.parametrize("cut_at", ['"spanId": "00000', '"name"', '"kind": 1', "500"])
def test_a_writer_was_started_again_and_went_on_in_the_same_line(samples, tmp_path, cut_at):
    first, again = (
        json.dumps(document(samples, 1, 2)),
        json.dumps(document(samples, 3), separators=(",", ":")),
    )
    cut = first.rindex(cut_at) + len(cut_at)
    path = tmp_path / "appended.jsonl"
    path.write_text(f"{first[:cut]}{again}\n{json.dumps(document(samples, 4))}\n")
    ingested = sources.read([str(path)])
    assert ingested.spans["span_id"].to_pylist() == [1, 3, 4]
    assert ingested.skipped == {"truncated": 1}
    assert ingested.first_skipped["truncated"].startswith("appended.jsonl:1: ")


def test_spans_whose_resource_would_have_come_later_are_not_anybodys(samples, tmp_path):
    part = samples.traces(samples.span(1), samples.span(2))["resourceSpans"][0]
    line = json.dumps({"resourceSpans": [{"scopeSpans": part["scopeSpans"], "resource": part["resource"]}]})
    path = tmp_path / "cut.jsonl"
    path.write_text(line[: line.index('"resource":')])
    with pytest.raises(UserError, match=r"cut\.jsonl: no usable spans; 1 × truncated"):
        sources.read([str(path)])


def test_a_document_over_several_lines_was_cut_off(samples, tmp_path):
    text = json.dumps(document(samples, 1, 2, 3), indent=2)
    path = tmp_path / "document.json"
    path.write_text(text[:-800])
    ingested = sources.read([str(path)])
    assert ingested.spans["span_id"].to_pylist() == [1, 2]
    assert ingested.skipped == {"truncated": 1}


@pytest.mark.parametrize(
    "line", [b"", b"{", b'{"resourceSpans":[{"scopeSpans":[{"spans":[', b'{"a":{"b":[{}]}', b"]}"]
)
def test_nothing_whole(line):
    assert complete_spans(line, len(line)) == (b"", 0)


def test_bytes_that_are_not_utf8_before_the_cut(samples, tmp_path):
    text = json.dumps(document(samples, 1, 2, 3)).encode().replace(b"train_step", b"\xe9\xe9\xe9\xe9")
    path = tmp_path / "cut.jsonl"
    path.write_bytes(text[:-100])
    ingested = sources.read([str(path)])
    assert ingested.spans["name"].to_pylist() == ["\ufffd" * 4] * 2
    assert ingested.skipped == {"not_utf8": 1, "truncated": 1}


def test_noise_that_looks_like_many_beginnings_takes_no_time(samples, tmp_path):
    path = tmp_path / "noise.jsonl"
    noise = b'{"resourceSpans":' * 200_000
    path.write_bytes(noise + b"\n" + json.dumps(document(samples, 1)).encode() + b"\n")
    ingested = sources.read([str(path)])
    assert ingested.spans["span_id"].to_pylist() == [1]
    assert set(ingested.skipped) == {"truncated"}
    assert ingested.skipped["truncated"] <= 10
