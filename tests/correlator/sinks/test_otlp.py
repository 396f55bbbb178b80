"""``--to otlp=FILE``: what Jaeger's UI can upload, and what is a source again."""

from __future__ import annotations

import json

import pytest

from otel_tf import semconv
from otel_tf.correlator import correlate, sinks, sources
from otel_tf.errors import UserError


def test_one_trace_a_line_that_reads_again(asynchronous, tmp_path):
    lines: list[str] = []
    path = tmp_path / "new folder" / "run.jsonl"
    sinks.write(asynchronous.result(), f"otlp={path}", lines.append)
    assert lines == [f"3,002 spans in 2 traces written to {path}"]
    documents = [json.loads(line) for line in path.read_text().splitlines()]
    traces = [
        {span["traceId"] for part in document["resourceSpans"] for span in part["scopeSpans"][0]["spans"]}
        for document in documents
    ]
    assert [len(ids) for ids in traces] == [1, 1]
    read = sources.read([str(path)])
    assert read.spans.num_rows == 3002
    assert read.skipped == {}


@pytest.mark.parametrize("name", ["asynchronous", "synchronous"])
def test_what_was_corrected_is_not_corrected_again(name, request, tmp_path):
    result = request.getfixturevalue(name).result()
    sinks.write(result, f"otlp={tmp_path / 'run.jsonl'}", print)
    again = correlate(str(tmp_path / "run.jsonl"))
    assert again.report["violations"] == again.report["wall_clock_inversions"] == 0
    assert [clock["domain"] for clock in again.report["clocks"]] == [result.report["reference"]]
    rows = [(row["order"], json.loads(row["attributes"] or "{}")) for row in again.correlated.to_pylist()]
    orders = [had[semconv.LOGICAL_ORDER] for _, had in sorted(rows, key=lambda row: row[0]) if had]
    assert len(orders) == result.report["spans"]
    assert orders == sorted(orders)
    assert max(abs(row["shift_ns"]) for row in again.correlated.to_pylist()) < 10


def test_writing_again_gives_the_same_bytes(synchronous, tmp_path):
    for name in ("one", "two"):
        sinks.write(synchronous.result(), f"otlp={tmp_path / name}", print)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_file_that_cannot_be_written(synchronous, tmp_path):
    with pytest.raises(UserError, match=r"otlp=.*: Is a directory"):
        sinks.write(synchronous.result(), f"otlp={tmp_path}", print)
    assert list(tmp_path.parent.glob(".*.part")) == []


@pytest.mark.parametrize("spec", ["tempo=x", "parquet", "parquet=", "=x", ""])
def test_unknown_sinks_are_refused_before_any_work(spec):
    with pytest.raises(UserError, match=r"not one of parquet=DIR, jaeger=URL, otlp=FILE, perfetto=FILE"):
        sinks.check(spec)
