"""Whatever is wrong with the input: what can be used is, the rest is counted with its first example."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from otel_tf.cli.main import main
from tests.correlator.sources.conftest import T0, span, traces
from tests.correlator.sources.test_otlp_proto import frame, message

GOOD = traces(span(1), span(2))
HOUR = 3600 * 10**9


def line(document: Any) -> bytes:
    return json.dumps(document).encode() + b"\n"


def odd(number: int = 7, **fields: Any) -> bytes:
    """A line with one odd span, and good ones on both sides of it."""
    return line(traces(span(3), span(number, **{"name": "odd", **fields}), span(4)))


def linked(number: int, to: int, **fields: Any) -> dict[str, Any]:
    target = {name: span(to)[name] for name in ("traceId", "spanId")}
    return span(number, links=[target], **fields)


def correlate(capsys: pytest.CaptureFixture[str], path: Path, *more: str) -> tuple[int, dict[str, Any], str]:
    code = main(["correlate", str(path), "--format", "json", *more])
    printed = capsys.readouterr()
    return code, json.loads(printed.out) if printed.out else {}, printed.err


#: Content of a file, spans used of it, what is counted, how the first example begins, and what is in it.
MATRIX: dict[str, tuple[bytes, int, str, str, str]] = {
    "cut off in a span": (
        line(GOOD) + line(traces(span(3), span(4)))[:-120],
        3,
        "truncated",
        "2: ",
        "the 1 whole spans",
    ),
    "cut off before a span": (line(GOOD) + line(GOOD)[:150], 2, "truncated", "2: ", "resourceSpans"),
    "not JSON": (line(GOOD) + b"Epoch 1/5\n" + odd(), 5, "not_json", "2: ", "'Epoch 1/5'"),
    "JSON of something else": (line(GOOD) + b'{"hello": 1}\n', 2, "not_otlp", "2: ", "'hello'"),
    "Latin-1": (
        line(GOOD) + odd(name="caf\u00e9").replace(b"\\u00e9", b"\xe9"),
        5,
        "not_utf8",
        "2: ",
        "byte ",
    ),
    "UTF-16 between UTF-8": (
        line(GOOD) + '{"resourceSpans":[]}'.encode("utf-16-le") + b"\n" + line(traces(span(3))),
        3,
        "not_json",
        "2: ",
        "Expecting",
    ),
    "a negative duration": (
        line(GOOD) + odd(endTimeUnixNano=str(T0)),
        4,
        "end_before_start",
        "2: span 'odd': ",
        "ends 7000 ns before it starts",
    ),
    "a trace id of 8 bytes": (line(GOOD) + odd(traceId="12" * 8), 4, "bad_id", "2: span 'odd': ", "'1212"),
    "a span id of 3 digits": (line(GOOD) + odd(spanId="abc"), 4, "bad_id", "2: span 'odd': ", "'abc'"),
    "a span id of zeros": (line(GOOD) + odd(spanId="0" * 16), 4, "bad_id", "2: span 'odd': ", "'0000"),
    "a parent id of 3 digits": (
        line(GOOD) + odd(parentSpanId="abc"),
        5,
        "bad_parent_id",
        "2: span 'odd': ",
        "'abc'",
    ),
    "a start in 1970": (
        line(GOOD) + odd(startTimeUnixNano="0"),
        4,
        "absurd_time",
        "2: span 'odd': ",
        "from 0",
    ),
    "an end in 2554": (
        line(GOOD) + odd(endTimeUnixNano=str(2**64 - 1)),
        4,
        "absurd_time",
        "2: span 'odd': ",
        f"{2**63 - 1}",
    ),
    "a time that is none": (
        line(GOOD) + odd(endTimeUnixNano="soon"),
        4,
        "wrong_type",
        "2: span 'odd': ",
        "endTimeUnixNano is 'soon'",
    ),
    "a million attributes": (
        line(GOOD) + odd(attributes={f"a{n}": n for n in range(1_000_000)}),
        5,
        "attributes_cut",
        "2: span 'odd': ",
        "more than 1024",
    ),
    "the same span twice": (
        line(GOOD) + line(traces(span(2))),
        2,
        "duplicate",
        "",
        "span 'train_step' of train",
    ),
    "two spans with the same ids": (
        line(GOOD) + line(traces(span(2, name="other"))),
        2,
        "conflicting_duplicate",
        "",
        "trace id 0000000000abcdef0000000000000002",
    ),
}


@pytest.mark.parametrize("what", MATRIX)
def test_what_can_be_used_is_and_the_rest_is_counted(tmp_path, capsys, what):
    content, used, reason, where, text = MATRIX[what]
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    code, report, _ = correlate(capsys, path)
    assert (code, report["spans"]) == (0, used)
    assert report["skipped"] == {reason: 1}
    shown = report["first_skipped"][reason]
    assert shown.startswith(f"run.jsonl:{where}" if where else "")
    assert text in shown
    assert "\n" not in shown
    assert report["violations"] == 0


@pytest.mark.parametrize("what", MATRIX)
def test_the_text_tells_of_it_too(tmp_path, capsys, what):
    content, _, reason, _, text = MATRIX[what]
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    assert main(["correlate", str(path)]) == 0
    told = capsys.readouterr().out
    assert f"1 × {reason.replace('_', ' ')}, first: " in told
    assert text in told


#: Nothing at all that can be used, and what the one line then says.
HOPELESS: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "run.jsonl: no usable spans"),
    "blanks": (b"\n \n", "run.jsonl: no usable spans"),
    "only a cut": (line(GOOD)[:100], "1 × truncated, first run.jsonl:1: "),
    "prose": (b"Epoch 1/5\n", "run.jsonl: not OTLP (JSON or protobuf), Jaeger JSON, or Parquet"),
    "braces": (b"{{{{\n[]\n", "× not_"),
    "UTF-16": (line(GOOD).decode().encode("utf-16"), "run.jsonl: not OTLP"),
    "no ids": (
        line(traces(span(1, traceId=""), span(2, spanId="z" * 16))),
        "2 × bad_id, first run.jsonl:1: span",
    ),
    "no times": (line(traces(span(1, startTimeUnixNano=0))), "1 × absurd_time, first run.jsonl:1: span"),
    "other signals": (b'{"resourceLogs":[{"scopeLogs":[]}]}\n', "run.jsonl: no usable spans"),
    "zeros": (bytes(5000), "run.jsonl: not OTLP"),
    "half a gzip": (b"\x1f\x8b\x08\x00", "run.jsonl"),
    "half a Parquet": (b"PAR1" + bytes(40), "run.jsonl: "),
    "deep": (b'{"resourceSpans":' + b"[" * 1_000_000, "run.jsonl:1: "),
}


@pytest.mark.parametrize("what", HOPELESS)
def test_nothing_usable_is_one_line_and_exit_code_2(tmp_path, capsys, what):
    content, text = HOPELESS[what]
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    code, report, said = correlate(capsys, path)
    assert (code, report) == (2, {})
    assert said.startswith("otel-tf: ")
    assert said.count("\n") == 1
    assert text in said


CYCLES = {
    "links that go round": traces(linked(1, 2), linked(2, 3), linked(3, 1)),
    "a link to itself": traces(linked(1, 1), span(2), span(3)),
    "parents that go round": traces(
        *(span(n, traceId="a" * 32, parentSpanId=f"{n % 3 + 1:016x}") for n in (1, 2, 3))
    ),
    "its own parent": traces(span(1, parentSpanId=f"{1:016x}"), span(2), span(3)),
    "parents and links against each other": traces(
        span(1, traceId="a" * 32),
        span(2, traceId="a" * 32, parentSpanId=f"{1:016x}"),
        span(3, links=[{"traceId": "a" * 32, "spanId": f"{2:016x}"}]),
    ),
}


@pytest.mark.parametrize("what", CYCLES)
@pytest.mark.parametrize("form", ["json", "proto", "frames"])
def test_causes_that_go_round_are_told_and_do_no_harm(tmp_path, capsys, what, form):
    document = CYCLES[what]
    path = tmp_path / "run"
    encoded = line(document) if form == "json" else message(document)
    path.write_bytes(frame(encoded) if form == "frames" else encoded)
    sinks = [f"--to={kind}={tmp_path}/out.{kind}" for kind in ("parquet", "otlp", "perfetto")]
    code, report, _ = correlate(capsys, path, *sinks)
    assert (code, report["spans"], report["violations"], report["skipped"]) == (0, 3, 0, {})


def test_each_kind_is_counted_and_only_the_first_is_shown(tmp_path, capsys):
    many = [odd(10 * n, traceId=f"{n:x}") for n in range(1, 51)]
    late = [odd(10 * n, endTimeUnixNano=str(T0 - HOUR)) for n in range(51, 101)]
    path = tmp_path / "run.jsonl"
    path.write_bytes(line(GOOD) + b"".join(many) + b"noise\n" * 20 + b"".join(late) + line(GOOD)[:-120])
    code, report, _ = correlate(capsys, path)
    assert code == 0
    counts = report["skipped"]
    # Spans 3 and 4 are there a hundred times, and 1 was cut off behind.
    assert counts == {"bad_id": 50, "not_json": 20, "end_before_start": 50, "truncated": 1, "duplicate": 199}
    firsts = {reason: text.split(" ")[0] for reason, text in report["first_skipped"].items()}
    assert firsts == {
        **{"bad_id": "run.jsonl:2:", "not_json": "run.jsonl:52:", "end_before_start": "run.jsonl:72:"},
        **{"truncated": "run.jsonl:122:", "duplicate": "span"},
    }


@pytest.mark.parametrize(
    ("form", "cut", "used"), [("message", 30, 2), ("message", 0, 4), ("frames", 30, 2), ("frames", 0, 4)]
)
def test_protobuf_that_was_cut_off(tmp_path, capsys, form, cut, used):
    payloads = [message(traces(span(n), span(n + 1))) for n in (1, 3)]
    content = b"".join(frame(payload) if form == "frames" else payload for payload in payloads)
    path = tmp_path / "run.pb"
    path.write_bytes(content[: len(content) - cut])
    code, report, _ = correlate(capsys, path)
    assert (code, report["spans"], report["skipped"]) == (0, used, {"truncated": 1} if cut else {})
    if cut:
        assert report["first_skipped"]["truncated"].startswith("run.pb: ")


def test_protobuf_with_ids_and_times_that_are_none(tmp_path, capsys):
    bad = [span(3, spanId="12"), span(4, endTimeUnixNano=str(T0)), span(5, endTimeUnixNano=str(2**64 - 1))]
    path = tmp_path / "run.pb"
    path.write_bytes(message(traces(span(1), *bad, span(2))))
    code, report, _ = correlate(capsys, path)
    assert (code, report["spans"]) == (0, 2)
    assert report["skipped"] == {"bad_id": 1, "end_before_start": 1, "absurd_time": 1}
    assert report["first_skipped"]["bad_id"].startswith("run.pb: message 1: span 'train_step': ")
