from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_tf.correlator import sources
from otel_tf.correlator.pipeline import correlate_tables
from otel_tf.correlator.simulate import Scenario, simulate
from otel_tf.correlator.simulate_files import write
from otel_tf.errors import UserError

REFERENCE = {
    "star": "host-ps-0",
    "coordinator": "host-chief-0",
    "ring": "host-worker-0",
    "barrier": "host-worker-0",
}


def corrected(run, reference):
    """The correlation, its errors against the truth and its bars, ns."""
    result = correlate_tables(run.ingested, reference=reference)
    spans = result.spans
    start = np.abs(spans["corrected_start_ns"].to_numpy() - run.true_start_ns)
    end = np.abs(spans["corrected_end_ns"].to_numpy() - run.true_end_ns)
    return result, np.maximum(start, end), spans["error_ns"].fill_null(2**62).to_numpy()


def test_the_standard_scenario():
    """A parameter server and 15 workers, one of whose clocks steps by 20 ms: the promised accuracy."""
    run = simulate(Scenario(workers=15, spans=120_000, step_ms=20.0))
    result, error, bar = corrected(run, "host-ps-0")
    assert run.inversions() > 39_000
    assert result.report["wall_clock_inversions"] == run.inversions()
    assert result.report["violations"] == 0
    assert result.report["quarantined"] == []
    assert (error <= bar).all()
    assert np.percentile(error, 99) <= 5_000
    (step,) = [step for clock in result.report["clocks"] for step in clock["steps"]]
    assert step["size_ns"] == pytest.approx(20_000_000, abs=10_000)


@settings(max_examples=40, deadline=None)
@given(
    st.builds(
        Scenario,
        topology=st.sampled_from(["star", "ring", "coordinator", "barrier"]),
        workers=st.integers(2, 6),
        spans=st.sampled_from([30, 300, 3000]),
        drift_ppm=st.sampled_from([15.0, 50.0]),
        wander_ppm=st.sampled_from([0.0, 1.0]),
        slew_ppm=st.sampled_from([0.0, 500.0]),
        loss=st.sampled_from([0.0, 0.1, 0.3]),
        one_sided=st.sampled_from([0.5, 0.1]),
        restarts=st.sampled_from([0, 2]),
        threads=st.just(1),
        monotonic=st.booleans(),
        float_stamps=st.booleans(),
        straggler=st.sampled_from([1.0, 2.0]),
        seed=st.integers(0, 10**6),
    )
)
def test_on_every_axis_the_truth_is_within_the_bars(scenario):
    result, error, bar = corrected(simulate(scenario), None)
    if result.report["reference"] == REFERENCE[scenario.topology]:
        assert (error <= bar).all()
    assert result.report["violations"] == 0
    assert result.report["quarantined"] == []
    assert not any(clock["steps"] for clock in result.report["clocks"])


def test_threads_out_of_order_are_put_in_order():
    run = simulate(Scenario(workers=3, spans=3000, threads=4))
    result, error, bar = corrected(run, "host-ps-0")
    assert (error <= bar).all()
    assert result.report["violations"] == 0


def test_a_straggler_that_is_always_last_does_not_pull_the_clocks():
    run = simulate(Scenario(topology="barrier", workers=4, spans=9000, straggler=8.0))
    result, error, bar = corrected(run, "host-worker-0")
    assert np.percentile(error, 99) < 50_000  # half its lag of 20 ms would be 10 ms
    assert np.percentile(bar, 50) > 1_000_000  # and yet no more is promised than is known
    assert (error <= bar).all()
    assert result.report["stragglers"][0]["worker"] == "worker:0"


def test_the_same_scenario_is_the_same_run():
    first, second = simulate(Scenario(spans=3000, seed=4)), simulate(Scenario(spans=3000, seed=4))
    assert first.ingested.spans.equals(second.ingested.spans)
    assert not first.ingested.spans.equals(simulate(Scenario(spans=3000, seed=5)).ingested.spans)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"workers": 0}, "0 workers"),
        ({"topology": "ring", "workers": 1}, "ring needs at least 2"),
        ({"spans": 0}, "0 spans"),
        ({"loss": 1.0}, "loss of 1.0"),
        ({"latency_us": 0.0}, "latency_us 0.0"),
    ],
)
def test_impossible_scenarios_are_refused(change, text):
    with pytest.raises(UserError, match=text):
        dataclasses.replace(Scenario(), **change)


@pytest.mark.parametrize("topology", ["star", "coordinator", "ring", "barrier"])
def test_written_files_read_back_as_the_same_run(tmp_path, topology):
    scenario = Scenario(
        topology=topology, workers=3, spans=600, monotonic=True, restarts=1, float_stamps=True
    )
    run = simulate(scenario)
    truth = write(run, tmp_path / "run")
    ingested = sources.read([str(tmp_path / "run")])
    assert ingested.skipped == {}
    columns = [
        "trace_hi",
        "trace_lo",
        "span_id",
        "parent_id",
        "name",
        "kind",
        "start_ns",
        "end_ns",
        "process",
        "domain",
        "worker",
        "global_step",
        "local_step",
        "seq",
        "mono_ns",
        "group_key",
        "instance_key",
        "run",
        "service",
    ]
    plain = [run.ingested.spans, ingested.spans]
    first, second = (
        [tuple(row[name] for name in columns) for row in table.select(columns).sort_by("span_id").to_pylist()]
        for table in plain
    )
    assert first == second
    told = pq.read_table(truth).to_pylist()
    assert {(row["span_id"], row["true_start_ns"], row["true_end_ns"]) for row in told} == {
        (f"{span & (1 << 64) - 1:016x}", start, end)
        for span, start, end in zip(
            run.ingested.spans["span_id"].to_pylist(),
            run.true_start_ns.tolist(),
            run.true_end_ns.tolist(),
            strict=True,
        )
    }
