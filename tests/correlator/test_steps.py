from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_tf.correlator.crossings import HARD_DRIFT
from otel_tf.correlator.pipeline import correlate_tables
from otel_tf.correlator.simulate import Scenario, simulate
from otel_tf.correlator.steps import Bounds, first_step

MS = 1_000_000


def trips(count, *, step_at=None, size=0, seed=0, spacing=3 * MS):
    """Bounds of round trips of 100 µs and a heavy tail; from trip ``step_at`` on D is ``size`` more."""
    rng = np.random.default_rng(seed)
    at = np.repeat(np.arange(count) * spacing, 2)
    upper = np.tile([True, False], count)
    latency = 50_000 + rng.lognormal(10, 1, 2 * count).astype(np.int64)
    shift = np.where((at >= step_at * spacing) if step_at is not None else False, size, 0)
    return Bounds(upper, np.where(upper, shift + latency, shift - latency), at, HARD_DRIFT)


def test_without_a_step_none_is_found():
    found = first_step(trips(2000))
    assert found.step is None
    assert len(found.outliers) == found.contradictions == 0


@pytest.mark.parametrize("size", [-20 * MS, -MS, -300_000, 300_000, MS, 20 * MS])
def test_a_step_beyond_the_round_trips_is_found_where_it_was(size):
    step = first_step(trips(2000, step_at=700, size=size)).step
    assert step is not None
    assert step.before < 1400 <= step.after + 1
    assert step.after - step.before < 40
    assert step.size_ns == pytest.approx(size, abs=100_000)


def test_the_first_of_several_steps_is_found():
    bounds = trips(2000, step_at=700, size=20 * MS)
    value = bounds.value.copy()
    value[3000:] -= 50 * MS
    found = first_step(Bounds(bounds.upper, value, bounds.at_ns, bounds.drift))
    assert found.step is not None
    assert abs(found.step.after - 1400) < 4
    assert found.contradictions == 2


@pytest.mark.parametrize("where", [0, 1, 1000, 1001, 3998, 3999])
def test_a_single_false_edge_is_an_outlier_and_no_step(where):
    bounds = trips(2000)
    value = bounds.value.copy()
    value[where] += -5 * MS if bounds.upper[where] else 5 * MS
    found = first_step(Bounds(bounds.upper, value, bounds.at_ns, bounds.drift))
    assert found.step is None
    assert found.outliers.tolist() == [where]


def test_drift_within_the_limit_is_no_step():
    bounds = trips(2000)
    drift = bounds.at_ns * 550 // 10**6
    found = first_step(Bounds(bounds.upper, bounds.value + drift, bounds.at_ns, bounds.drift))
    assert found.step is None


def test_nothing_in_nothing_out():
    empty = np.zeros(0, np.int64)
    found = first_step(Bounds(empty.astype(bool), empty, empty, HARD_DRIFT))
    assert found.step is None


def inside_bars(scenario, reference):
    run = simulate(scenario)
    result = correlate_tables(run.ingested, reference=reference)
    error = result.spans["error_ns"].fill_null(2**62).to_numpy()
    start = np.abs(result.spans["corrected_start_ns"].to_numpy() - run.true_start_ns)
    end = np.abs(result.spans["corrected_end_ns"].to_numpy() - run.true_end_ns)
    return result, (np.maximum(start, end) <= error).all()


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["star", "ring", "coordinator"]),
    st.sampled_from([-200.0, -20.0, -2.0, 2.0, 20.0, 200.0]),
    st.sampled_from([1, 3]),
    st.sampled_from([0.0, 0.2]),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_a_step_is_found_sized_and_covered_by_the_bars(topology, step_ms, threads, loss, monotonic, seed):
    scenario = Scenario(
        topology=topology,
        workers=4,
        spans=3000,
        step_ms=step_ms,
        threads=threads,
        loss=loss,
        monotonic=monotonic,
        seed=seed,
    )
    reference = {"star": "host-ps-0", "ring": "host-worker-0", "coordinator": "host-chief-0"}[topology]
    result, inside = inside_bars(scenario, reference)
    steps = [step["size_ns"] / 1e6 for clock in result.report["clocks"] for step in clock["steps"]]
    assert steps == [pytest.approx(step_ms, abs=0.5)]
    assert inside
    assert result.report["violations"] == 0
    assert result.report["quarantined"] == []
