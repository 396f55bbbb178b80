"""``--to parquet=DIR``: the contract's columns, the same bytes, and a source again."""

from __future__ import annotations

import json

import duckdb
import pyarrow.parquet as pq
import pytest

from otel_tf.correlator import correlate, sinks, sources
from otel_tf.errors import UserError

CONTRACT = [
    *(
        "trace_id",
        "span_id",
        "parent_span_id",
        "name",
        "run",
        "process",
        "worker",
        "global_step",
        "local_step",
    ),
    *("seq", "order", "start_ns", "end_ns", "corrected_start_ns", "corrected_end_ns", "shift_ns", "error_ns"),
]


def test_columns_are_those_of_the_contract_and_rows_are_in_causal_order(asynchronous, tmp_path):
    lines: list[str] = []
    sinks.write(asynchronous.result(), f"parquet={tmp_path}/out/deep", lines.append)
    assert lines == [f"3,000 spans and 4,999 edges written to {tmp_path}/out/deep"]
    spans = pq.read_table(tmp_path / "out" / "deep" / "spans.parquet")
    assert spans.column_names[: len(CONTRACT)] == CONTRACT
    assert spans["order"].to_pylist() == list(range(3000))
    first = spans.slice(0, 1).to_pylist()[0]
    written = json.loads((asynchronous.folder / "chief-0.traces.jsonl").read_text())
    original = written["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    assert (first["trace_id"], first["span_id"]) == (original["traceId"], original["spanId"])
    assert (first["parent_span_id"], first["worker"], first["process"]) == (None, "worker:0", "pss-1/chief:0")


def test_another_tool_reads_it_and_edges_point_at_spans(asynchronous, tmp_path):
    sinks.write(asynchronous.result(), f"parquet={tmp_path}", print)
    query = f"""
        SELECT e.kind, count(*), min(e.min_ns), bool_and(
                 CASE e.kind WHEN 'return' THEN d.corrected_end_ns - s.corrected_end_ns
                             ELSE d.corrected_start_ns - s.corrected_start_ns END >= e.min_ns)
        FROM '{tmp_path}/edges.parquet' e
        JOIN '{tmp_path}/spans.parquet' s ON s.span_id = e.src_span
        JOIN '{tmp_path}/spans.parquet' d ON d.span_id = e.dst_span
        GROUP BY e.kind ORDER BY e.kind"""
    rows = duckdb.sql(query).fetchall()
    assert sum(count for _, count, _, _ in rows) == 4999
    assert all(least >= 1 for _, _, least, _ in rows)
    assert pq.read_schema(tmp_path / "edges.parquet").names == ["src_span", "dst_span", "kind", "min_ns"]


def test_the_same_run_gives_the_same_bytes_however_its_files_are_split(asynchronous, tmp_path):
    folder = asynchronous.write()
    sinks.write(correlate(folder), f"parquet={tmp_path}/one", print)
    for path in asynchronous.folder.iterdir():
        document = json.loads(path.read_text())
        spans = document["resourceSpans"][0]["scopeSpans"][0]["spans"]
        lines = []
        for span in reversed(spans):
            document["resourceSpans"][0]["scopeSpans"][0]["spans"] = [span]
            lines.append(json.dumps(document))
        path.write_text("\n".join(lines[: len(lines) // 2]) + "\n")
        path.with_name("z-" + path.name).write_text("\n".join(lines[len(lines) // 2 :]) + "\n")
    sinks.write(correlate(folder), f"parquet={tmp_path}/two", print)
    for name in ("spans.parquet", "edges.parquet"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_parquet_is_a_source_with_the_same_answer(asynchronous, synchronous, tmp_path):
    for run in (asynchronous, synchronous):
        result = run.result()
        out = tmp_path / f"out-{run.run}"
        sinks.write(result, f"parquet={out}", print)
        again = correlate(str(out))
        assert again.spans.to_pylist() == result.spans.to_pylist()
        assert again.edges.num_rows == result.edges.num_rows
        assert again.links.num_rows == result.links.num_rows
        file = sources.read([str(out / "spans.parquet")])
        assert file.spans.num_rows == result.spans.num_rows


def test_parquet_in_the_run_directory_itself_is_not_read_as_well(asynchronous):
    result = asynchronous.result()
    sinks.write(result, f"parquet={asynchronous.folder}", print)
    again = sources.read([str(asynchronous.folder)])
    assert again.spans.num_rows == 3000
    assert again.skipped == {}


def test_parquet_with_the_contracts_columns_only(asynchronous, tmp_path):
    table = asynchronous.result().spans
    (tmp_path / "out").mkdir()
    pq.write_table(table.select(CONTRACT), tmp_path / "out" / "spans.parquet")
    read = sources.read([str(tmp_path / "out")]).spans
    assert read["domain"].to_pylist() == read["process"].to_pylist()
    assert set(read["service"].to_pylist()) == {"unknown_service"}


def test_parquet_without_what_cannot_be_replaced_is_refused(asynchronous, tmp_path):
    table = asynchronous.result().spans.drop_columns(["start_ns"])
    path = tmp_path / "spans.parquet"
    pq.write_table(table, path)
    with pytest.raises(UserError, match=r"spans\.parquet: no column 'start_ns'"):
        sources.read([str(path)])
    path.write_bytes(b"PAR1 and then nothing")
    with pytest.raises(UserError, match=r"spans\.parquet: "):
        sources.read([str(path)])


def test_a_folder_that_cannot_be_written(synchronous, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"parquet=.*file/out: Not a directory"):
        sinks.write(synchronous.result(), f"parquet={tmp_path}/file/out", print)
