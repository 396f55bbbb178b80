from __future__ import annotations

import sys

import pytest

from otel_tf.correlator.pipeline import correlate_tables
from otel_tf.correlator.result import Result
from otel_tf.correlator.simulate import Scenario, simulate
from otel_tf.correlator.sinks import parquet
from otel_tf.errors import UserError
from tests.correlator.support import CLIENT, MS, SERVER, T0, ingested

SCENARIOS = [
    Scenario(workers=3, spans=3000, step_ms=20.0, threads=2),
    Scenario(topology="coordinator", workers=3, spans=2000, float_stamps=True, loss=0.2),
    Scenario(topology="barrier", workers=4, spans=900, straggler=2.0, slew_ppm=500.0),
]


def result(given, engine):
    correlated = correlate_tables(given, engine=engine)
    return Result(correlated.spans, correlated.edges, given.links, correlated.report), correlated


def same(given, folder):
    (ours, first), (theirs, second) = result(given, "duckdb"), result(given, "spark")
    assert first.spans.equals(second.spans)
    assert first.edges.equals(second.edges)
    assert first.clocks.equals(second.clocks)
    assert first.quarantined.equals(second.quarantined)
    assert first.report == second.report
    for one, folder_of_one in ((ours, folder / "duckdb"), (theirs, folder / "spark")):
        parquet.write(one, str(folder_of_one), lambda _: None)
    for name in ("spans.parquet", "edges.parquet"):
        assert (folder / "duckdb" / name).read_bytes() == (folder / "spark" / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.topology)
def test_both_engines_give_the_same_bytes(cluster, tmp_path, scenario):
    same(simulate(scenario).ingested, tmp_path)


@pytest.mark.slow
def test_links_and_missing_parents_too(cluster, tmp_path):
    rows = [
        {"kind": CLIENT, "start_ns": T0, "end_ns": T0 + MS, "parent_id": 99},
        {"kind": SERVER, "parent_id": 1, "process": "p1", "domain": "d1", "start_ns": T0 - MS, "end_ns": T0},
        {"process": "p2", "domain": "d2", "start_ns": T0, "end_ns": T0 + 5},
    ]
    same(ingested(rows, [(2, 1), (2, 1), (0, 77)]), tmp_path)


def test_without_pyspark_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(UserError, match=r"otel-tf\[spark\]"):
        correlate_tables(ingested([{"start_ns": T0, "end_ns": T0}]), engine="spark")


@pytest.mark.slow  # PySpark is there only for the longer tests.
def test_without_java_that_is_said(monkeypatch):
    sql = pytest.importorskip("pyspark.sql")
    monkeypatch.setattr(sql.SparkSession, "getActiveSession", staticmethod(lambda: None))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="Java"):
        correlate_tables(ingested([{"start_ns": T0, "end_ns": T0}]), engine="spark")
