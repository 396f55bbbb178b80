"""OTLP/JSON as others write it, read into the canonical columns."""

from __future__ import annotations

import json

import pytest

from otel_tf.correlator import sources
from otel_tf.correlator.sources import parts
from otel_tf.correlator.tables import CLOCKS, LINKS, SPANS
from otel_tf.errors import UserError

RESOURCE = {
    "service.name": "mnist",
    "service.instance.id": "run-1/worker:1",
    "host.name": "node-7",
    "tensorflow.run.id": "run-1",
    "tensorflow.clock.domain": "boot-7",
    "tensorflow.task.type": "worker",
    "tensorflow.task.index": 1,
}
ATTRIBUTES = {
    "tensorflow.global_step": 41207,
    "tensorflow.local_step": 7,
    "tensorflow.worker": "worker:1",
    "tensorflow.seq": 12,
    "tensorflow.monotonic_ns": 987654321,
    "tensorflow.staleness": 3,
    "tensorflow.staleness.source": "coordinator",
    "tensorflow.collective.group_key": 2,
    "tensorflow.collective.instance_key": -5,
    "other": "kept",
}


def test_every_column_of_one_of_our_spans(samples):
    span = samples.span(
        1,
        ATTRIBUTES,
        traceId="F0000000000000000000000000000001",
        spanId="ffffffffffffffff",
        parentSpanId="00000000000000aa",
        kind=4,
        status={"code": 2, "message": "boom"},
    )
    ingested = samples.read(samples.traces(span, resource=RESOURCE))
    assert ingested.spans.schema == SPANS
    assert ingested.links.schema == LINKS
    assert ingested.clocks.schema == CLOCKS
    assert ingested.spans.to_pylist() == [
        {
            "trace_hi": -(1 << 60),
            "trace_lo": 1,
            "span_id": -1,
            "parent_id": 0xAA,
            "name": "train_step",
            "kind": 4,
            "status": 2,
            "start_ns": samples.t0 + 1000,
            "end_ns": samples.t0 + 1500,
            "service": "mnist",
            "run": "run-1",
            "process": "run-1/worker:1",
            "domain": "boot-7",
            "worker": "worker:1",
            "global_step": 41207,
            "local_step": 7,
            "seq": 12,
            "mono_ns": 987654321,
            "staleness": 3,
            "staleness_source": "coordinator",
            "group_key": 2,
            "instance_key": -5,
            "attributes": '{"other":"kept","otel.status_description":"boom"}',
        }
    ]
    assert ingested.skipped == {}


@pytest.mark.parametrize(
    ("resource", "process", "domain", "worker"),
    [
        ({"service.name": "a", "process.pid": 12, "host.name": "h"}, "a/12/h", "h", None),
        ({"service.name": "a", "process.pid": 12, "host.name": "h", "host.id": "i"}, "a/12/h", "i", None),
        ({"service.name": "a", "service.instance.id": "x"}, "x", "x", None),
        ({"service.name": "a"}, "a", "a", None),
        ({}, "unknown_service", "unknown_service", None),
        ({"service.name": "a", "tensorflow.task.type": "ps", "tensorflow.task.index": 0}, "a", "a", "ps:0"),
        (
            {"service.name": "a", "tensorflow.worker": "chief:0", "tensorflow.task.type": "ps"},
            "a",
            "a",
            "chief:0",
        ),
        ({"service.name": "a", "tensorflow.clock.domain": "c", "host.id": "i"}, "a", "c", None),
    ],
)
def test_who_recorded_a_span_of_another_instrumentation(samples, resource, process, domain, worker):
    row = samples.row(samples.traces(samples.span(), resource=resource))
    assert (row["process"], row["domain"], row["worker"]) == (process, domain, worker)


def test_an_attribute_of_the_span_wins_over_its_resource(samples):
    span = samples.span(1, {"tensorflow.worker": "worker:9", "tensorflow.clock.domain": "own"})
    row = samples.row(samples.traces(span, resource=RESOURCE))
    assert (row["worker"], row["domain"]) == ("worker:9", "own")


def test_spans_of_several_resources_keep_their_own(samples):
    one = samples.traces(samples.span(1), samples.span(2), resource={"service.name": "a"})
    two = samples.traces(samples.span(3), resource={"service.name": "b"})
    both = {"resourceSpans": one["resourceSpans"] + two["resourceSpans"]}
    rows = samples.read(
        both, samples.traces(samples.span(4), resource={"service.name": "a"})
    ).spans.to_pylist()
    assert {row["span_id"]: row["service"] for row in rows} == {1: "a", 2: "a", 3: "b", 4: "a"}


def test_other_attributes_become_json_of_the_same_type(samples):
    attributes = {
        "text": 'quote " backslash \\ tab \t snow ☃',
        "integer": 2**62 + 1,
        "double": 1.0,
        "tiny": 1e-9,
        "yes": True,
        "list": ["a", 1, False],
        "empty": [],
        "map": {"k": 0.5, "l": "m"},
        "deep": [{"k": [1, {"l": [True, 0.25]}]}, []],
        'key"odd': "x",
    }
    text = samples.row(samples.traces(samples.span(1, attributes)))["attributes"]
    assert json.loads(text) == attributes
    assert '"double":1.0' in text  # not the integer 1


def exception(samples, kind, message, name="exception"):
    said = {"exception.type": kind, "exception.message": message, "exception.stacktrace": "at line 1\n" * 99}
    return {"name": name, "timeUnixNano": str(samples.t0), "attributes": samples.pairs(said)}


def test_the_last_exception_is_kept_with_the_attributes(samples):
    events = [
        exception(samples, "Old", "x"),
        exception(samples, "ResourceExhausted", 'OOM "here"\n'),
        exception(samples, "N", "n", name="retry"),
    ]
    own = samples.span(2, {"exception.type": "Mine"}, events=events[:1])
    rows = samples.read(samples.traces(samples.span(1, {"a": 1}, events=events), own, samples.span(3)))
    found = rows.spans["attributes"].to_pylist()
    assert json.loads(found[0]) == {
        **{"a": 1, "exception.type": "ResourceExhausted", "exception.message": 'OOM "here"\n'},
    }
    assert json.loads(found[1]) == {"exception.type": "Mine", "exception.message": "x"}
    assert found[2] is None


def test_numbers_and_enums_as_other_writers_have_them_mean_the_same(samples):
    strict = samples.span(5, {"tensorflow.global_step": 3, "n": 4}, kind=2, status={"code": 2})
    loose = {
        **strict,
        "kind": "SPAN_KIND_SERVER",
        "startTimeUnixNano": int(strict["startTimeUnixNano"]),
        "endTimeUnixNano": int(strict["endTimeUnixNano"]),
        "parentSpanId": None,
        "status": {"code": "STATUS_CODE_ERROR"},
        "attributes": [
            {"key": "tensorflow.global_step", "value": {"intValue": 3}},
            {"key": "n", "value": {"intValue": 4}},
        ],
        "unknownField": {"nested": [1, {"deeper": None}]},
    }
    assert samples.row(samples.traces(loose)) == samples.row(samples.traces(strict))


def test_a_step_written_as_text_or_whole_double_is_a_step(samples):
    first = samples.span(1, {"tensorflow.global_step": "17"})
    second = samples.span(2, {"tensorflow.global_step": 18.0})
    third = samples.span(3, {"tensorflow.global_step": "soon"})
    steps = samples.read(samples.traces(first, second, third)).spans["global_step"].to_pylist()
    assert steps == [17, 18, None]


def test_links_point_from_rows(samples):
    linked = {"traceId": f"{9:032x}", "spanId": f"{8:016x}"}
    bad = {"traceId": "xyz", "spanId": f"{8:016x}"}
    unusable = samples.span(1, spanId="0" * 16, links=[linked])
    ingested = samples.read(samples.traces(unusable, samples.span(2), samples.span(3, links=[bad, linked])))
    assert ingested.spans["span_id"].to_pylist() == [2, 3]
    assert ingested.links.to_pylist() == [{"row": 1, "trace_hi": 0, "trace_lo": 9, "span_id": 8}]


def test_one_document_over_many_lines_and_jaegers_saved_answer(samples, tmp_path):
    document = samples.traces(samples.span(1), samples.span(2))
    expected = samples.read(document).spans.to_pylist()
    for number, text in enumerate(
        [
            json.dumps(document, indent=2),
            json.dumps({"result": document}),
            json.dumps({"result": document}, indent=1),
            json.dumps([document], indent=1),
            "\ufeff" + json.dumps(document),
            json.dumps(document).replace("}", "}\r\n"),
        ]
    ):
        path = tmp_path / f"document-{number}"
        path.write_text(text, encoding="utf-8", newline="")
        assert sources.read([str(path)]).spans.to_pylist() == expected, text


def test_lines_longer_than_a_chunk_and_chunks_of_many_lines(samples, monkeypatch):
    monkeypatch.setattr(parts, "_PART_BYTES", 2000)
    lines = [samples.traces(*(samples.span(10 * n + i + 1) for i in range(n))) for n in range(1, 9)]
    ingested = samples.read(*lines)
    expected = [10 * n + i + 1 for n in range(1, 9) for i in range(n)]
    assert ingested.spans["span_id"].to_pylist() == expected


def test_a_bad_line_costs_itself_only_and_is_named(samples, monkeypatch):
    monkeypatch.setattr(parts, "_PART_BYTES", 1000)  # so that line numbers go on over chunks
    good = [samples.traces(samples.span(number)) for number in range(1, 21)]
    ingested = samples.read(*good[:10], "this is no JSON", *good[10:], "", "neither is this")
    assert ingested.spans.num_rows == 20
    assert ingested.skipped == {"not_json": 2}
    assert ingested.first_skipped["not_json"].startswith("run.jsonl:11: 'this is no JSON'")


def test_a_last_line_cut_off_in_the_middle(samples, tmp_path):
    whole = json.dumps(samples.traces(samples.span(1)))
    path = tmp_path / "cut.jsonl"
    path.write_text(whole + "\n" + whole.replace("0001", "0002")[:-40])
    ingested = sources.read([str(path)])
    assert ingested.spans.num_rows == 1
    assert ingested.skipped == {"truncated": 1}
    assert ingested.first_skipped["truncated"].startswith("cut.jsonl:2: ")


def test_bytes_that_are_not_utf8_cost_characters_only(samples):
    text = json.dumps(samples.traces(samples.span(1, {"comment": "caf#"}))).encode().replace(b"#", b"\xe9")
    ingested = samples.read(text, samples.traces(samples.span(2)))
    assert ingested.spans["span_id"].to_pylist() == [1, 2]
    assert json.loads(ingested.spans["attributes"][0].as_py()) == {"comment": "caf\ufffd"}
    assert ingested.skipped == {"not_utf8": 1}
    assert ingested.first_skipped["not_utf8"].startswith("run.jsonl:1: byte ")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_another_encoding_is_refused_by_name(samples, tmp_path, encoding):
    path = tmp_path / "windows.json"
    path.write_text(json.dumps(samples.traces(samples.span(1))), encoding=encoding)
    with pytest.raises(UserError, match=r"windows\.json"):
        sources.read([str(path)])


@pytest.mark.parametrize(
    ("fields", "reason", "text"),
    [
        ({"endTimeUnixNano": "1699999999999999999"}, "end_before_start", "ends 1001 ns before it starts"),
        ({"startTimeUnixNano": "0"}, "absurd_time", "from 0 to"),
        ({"startTimeUnixNano": None}, "absurd_time", "from 0 to"),
        ({"endTimeUnixNano": "7258118400000000001"}, "absurd_time", "7258118400000000001"),
        ({"endTimeUnixNano": "99999999999999999999999"}, "absurd_time", ""),
        ({"endTimeUnixNano": -5}, "absurd_time", ""),
        ({"traceId": "0" * 32}, "bad_id", "trace id '000"),
        ({"traceId": "abc"}, "bad_id", "trace id 'abc'"),
        ({"spanId": "0" * 16}, "bad_id", "span id '0000000000000000'"),
        ({"spanId": "g" * 16}, "bad_id", "span id 'gggg"),
        ({"spanId": "1" * 32}, "bad_id", "span id '1111"),
        ({"spanId": None}, "bad_id", "span id ''"),
        ({"spanId": 17}, "wrong_type", "17 is no text"),
        ({"startTimeUnixNano": "yesterday"}, "wrong_type", "startTimeUnixNano is 'yesterday'"),
        ({"name": ["a"]}, "wrong_type", "['a'] is no text"),
        ({"parentSpanId": "12"}, "bad_parent_id", "parent id '12'"),
    ],
)
def test_an_unusable_span_is_counted_by_reason_and_shown(samples, fields, reason, text):
    good = samples.traces(samples.span(2))
    ingested = samples.read(
        good, samples.traces(samples.span(1, **{"name": "odd", **fields}), samples.span(3))
    )
    used = {2, 3, 1} if reason == "bad_parent_id" else {2, 3}
    assert set(ingested.spans["span_id"].to_pylist()) == used
    assert ingested.skipped == {reason: 1}
    assert ingested.first_skipped[reason].startswith("run.jsonl:2: span ")
    assert text in ingested.first_skipped[reason]


def test_a_million_attributes_leave_the_span_and_what_matters(samples):
    many = {f"a{number}": number for number in range(1_000_000)} | {"tensorflow.global_step": 5}
    ingested = samples.read(samples.traces(samples.span(1, many), samples.span(2, {"x": "y"})))
    assert ingested.spans["global_step"].to_pylist() == [5, None]
    assert list(json.loads(ingested.spans["attributes"][0].as_py())) == [f"a{n}" for n in range(1024)]
    assert ingested.skipped == {"attributes_cut": 1}
    assert "run.jsonl:1: span 'train_step': more than 1024" in ingested.first_skipped["attributes_cut"]


def test_lone_surrogates_nan_and_deep_nesting_do_no_harm(samples):
    odd = (
        json.dumps(samples.traces(samples.span(1, {"a": "x", "b": 1.5})))
        .replace('"x"', '"\\ud800"')
        .replace("1.5", "NaN")
    )
    ingested = samples.read(odd, samples.traces(samples.span(2)), "[" * 100_000)
    assert ingested.spans["span_id"].to_pylist() == [1, 2]
    assert json.loads(ingested.spans["attributes"][0].as_py()) == {"a": "?", "b": "NaN"}
    assert ingested.skipped == {"not_json": 1}


def test_other_signals_are_passed_over_and_other_json_is_counted(samples):
    lines = [
        {"resourceLogs": []},
        {"resourceMetrics": []},
        samples.traces(samples.span(1)),
        {"hello": 1},
        "3",
    ]
    ingested = samples.read(*lines)
    assert ingested.spans.num_rows == 1
    assert ingested.skipped == {"not_otlp": 2}
    assert ingested.first_skipped["not_otlp"] == "run.jsonl:4: no resourceSpans, but 'hello'"


def test_clock_snapshots_beside_spans(samples):
    resource = {"service.name": "a", "tensorflow.clock.domain": "boot-1"}
    clock = {"domain": "boot-1", "process": "p", "mono_ns": 5, "wall_ns": 7, "max_error_ns": 2}
    lines = [
        samples.traces(samples.span(1), resource=resource),
        clock,
        {**clock, "mono_ns": "6", "max_error_ns": None},
        {**clock, "wall_ns": "soon"},
        {**clock, "domain": "of nobody here"},
    ]
    ingested = samples.read(*lines)
    assert ingested.clocks.to_pylist() == [clock, {**clock, "mono_ns": 6, "max_error_ns": None}]
    assert ingested.skipped == {"bad_clock_line": 1}


def test_nothing_usable_names_the_source_and_the_first_reason(samples, tmp_path):
    path = samples.write(samples.traces(samples.span(1, spanId="0" * 16)))
    with pytest.raises(UserError, match=r"run\.jsonl: no usable spans; 1 × bad_id, first run\.jsonl:1: span"):
        sources.read([str(path)])
    with pytest.raises(UserError, match=r"nowhere: No such file"):
        sources.read([str(tmp_path / "nowhere")])


def test_the_specifications_own_example(shared_data):
    row = sources.read([str(shared_data / "otlp" / "trace.json")]).spans.to_pylist()[0]
    assert row["name"] == "I'm a server span"
    assert (row["kind"], row["service"], row["start_ns"]) == (2, "my.service", 1544712660000000000)
    assert row["attributes"] == '{"my.span.attr":"some value"}'
