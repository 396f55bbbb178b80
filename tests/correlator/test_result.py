"""`otel_tf.correlate`, as a notebook uses it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import otel_tf
from otel_tf.errors import UserError

T0 = 1_796_000_000_000_000_000
KEYS = [
    "parent_span_id",
    "name",
    "worker",
    "global_step",
    "order",
    "corrected_start_ns",
    "error_ns",
    "domain",
]


@pytest.fixture
def run_dir(tmp_path):
    """A client on one clock and a server on another that is 5 ms behind, for 30 steps."""
    for service, ahead, kind in (("client", 0, 3), ("server", -5_000_000, 2)):
        spans = [
            {
                "traceId": f"{n + 1:032x}",
                "spanId": f"{(n + 1) * 10 + kind:016x}",
                "parentSpanId": f"{(n + 1) * 10 + 3:016x}" if kind == 2 else "",
                "name": "call" if kind == 3 else "serve",
                "kind": kind,
                "startTimeUnixNano": str(T0 + n * 1_000_000 + ahead + (100_000 if kind == 2 else 0)),
                "endTimeUnixNano": str(T0 + n * 1_000_000 + ahead + (400_000 if kind == 2 else 500_000)),
                "attributes": [{"key": "tensorflow.global_step", "value": {"intValue": str(n)}}],
            }
            for n in range(30)
        ]
        resource = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
        line = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": spans}]}]}
        (tmp_path / f"{service}.jsonl").write_text(json.dumps(line))
    return tmp_path


def test_spans_and_edges_are_tables_in_causal_order(run_dir):
    result = otel_tf.correlate(str(run_dir))
    assert set(KEYS) <= set(result.spans.column_names)
    spans = result.spans.to_pylist()
    assert [row["order"] for row in spans] == list(range(60))
    assert [row["name"] for row in spans] == ["call", "serve"] * 30
    for row in spans:
        true_start = row["start_ns"] + (5_000_000 if row["name"] == "serve" else 0)
        assert abs(row["corrected_start_ns"] - true_start) <= row["error_ns"]
    assert {row["kind"] for row in result.edges.to_pylist()}
    assert result.edges.column_names == ["src_span", "dst_span", "kind", "min_ns"]
    assert result.report["wall_clock_inversions"] == 30


def test_several_sources_steps_and_reference(run_dir):
    files = [str(run_dir / "client.jsonl"), str(run_dir / "server.jsonl")]
    result = otel_tf.correlate(files, steps=(3, 5), reference="server")
    assert sorted(set(result.spans["global_step"].to_pylist())) == [3, 4, 5]
    kept = [row for row in result.spans.to_pylist() if row["domain"] == "server"]
    assert all(row["shift_ns"] == row["error_ns"] == 0 for row in kept)


def test_what_is_going_on_is_told(run_dir, monkeypatch):
    monkeypatch.setattr("otel_tf.correlator.sources._SAY_EVERY_S", -1)
    lines: list[str] = []
    otel_tf.correlate(str(run_dir), say=lines.append)
    assert lines[:2] == [f"30 spans read from {run_dir}", f"60 spans read from {run_dir}"]


def test_a_source_that_is_none():
    with pytest.raises(UserError, match="nowhere: No such file or directory"):
        otel_tf.correlate("nowhere")


def test_the_package_starts_without_what_a_correlation_needs():
    heavy = "{'pyarrow', 'numpy', 'duckdb', 'tensorflow'}"
    code = f"import sys, otel_tf.correlator; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
