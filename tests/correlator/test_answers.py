from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from otel_tf.correlator.critical_path import CriticalPath
from otel_tf.correlator.edges import Barriers, Edges
from otel_tf.correlator.pipeline import correlate_tables
from otel_tf.correlator.staleness import applied_between, asynchronous
from otel_tf.correlator.stragglers import scores
from otel_tf.correlator.waits import disagreements, lateness, waits
from tests.correlator.support import CLIENT, MS, PRODUCER, SERVER, T0, US, S, ingested


def test_staleness_counts_the_others_steps_applied_between_read_and_apply():
    # Three steps read at 0, 1, 2; applied at 3, 4, 5; a fourth reads and applies after all.
    read, applied = np.array([0, 1, 2, 6]), np.array([3, 4, 5, 7])
    everyone = np.ones(4, bool)
    assert applied_between(read, applied, everyone).tolist() == [0, 1, 2, 0]
    assert applied_between(read, applied, np.array([True, False, True, True])).tolist() == [0, 1, 1, 0]


def test_steps_that_share_a_trace_with_another_worker_are_synchronous():
    hi = np.zeros(5, np.int64)
    trace, worker = np.array([1, 1, 2, 3, 3]), np.array([0, 1, 0, 1, 1])
    assert asynchronous(hi, trace, worker, np.zeros(5, bool)).tolist() == [False, False, True, True, True]


def test_a_single_workers_steps_are_asynchronous_only_when_dispatched():
    hi, trace, worker = np.zeros(2, np.int64), np.array([1, 2]), np.zeros(2, np.int64)
    assert asynchronous(hi, trace, worker, np.array([False, True])).tolist() == [False, True]
    assert asynchronous(hi[:0], trace[:0], worker[:0], np.zeros(0, bool)).tolist() == []


def test_waits_need_no_clocks_and_lateness_does():
    met = Barriers(np.array([0, 0, 0, 1, 1]), np.arange(5), 2)
    assert waits(met, np.array([9, 4, 5, 7, 8])).tolist() == [5, 0, 1, 0, 1]
    assert lateness(met, np.array([10, 15, 14, 3, 2])).tolist() == [0, 5, 4, 1, 0]


def test_clocks_that_contradict_the_waits_are_counted():
    met = Barriers(np.array([0, 0, 1, 1]), np.arange(4), 2)
    stay = np.array([9, 4, 3, 8])
    left = np.array([100, 103, 200, 230])
    assert disagreements(met, stay, left, np.full(4, 2)) == (1, 26)
    assert disagreements(met, stay, left, np.full(4, 15)) == (0, 0)
    assert disagreements(met, stay, left, np.array([1, 1, 1, 1 << 61])) == (1, 1)
    assert disagreements(Barriers(met.number[:0], met.row[:0], 0), stay[:0], left[:0], stay[:0]) == (0, 0)


def test_scores_say_how_much_slower_than_the_typical_worker():
    worker = np.array([0, 0, 1, 1, 2, 2])
    found = scores(worker, np.array([10, 10, 10, 10, 15, 25]) * MS, 4)
    assert found[:3].tolist() == pytest.approx([0.0, 0.0, 1.0])
    assert np.isnan(found[3])
    assert np.isnan(scores(worker[:0], np.zeros(0, np.int64), 2)).all()
    assert scores(np.array([0]), np.array([0]), 1).tolist() == [0.0]


def closure(number, worker, *, at, took, own=True, failed=False):
    """A closure on the coordinator, its dispatch and the worker's step, whose clock is 5 s ahead."""
    first = 3 * number + 1
    ahead = 5 * S if own else 0
    stamps = (100 * US, took - 100 * US) if own else (0, took)
    return [
        {
            "span_id": first,
            "name": "closure",
            "kind": PRODUCER,
            "trace_lo": number,
            "start_ns": T0 + at - MS,
            "end_ns": T0 + at + took + MS,
        },
        {
            "span_id": first + 1,
            "parent_id": first,
            "name": "dispatch",
            "kind": CLIENT,
            "trace_lo": number,
            "status": 2 * failed,
            "start_ns": T0 + at,
            "end_ns": T0 + at + took,
        },
        {
            "span_id": first + 2,
            "parent_id": first + 1,
            "name": "train_step",
            "kind": SERVER,
            "trace_lo": number,
            "status": 2 * failed,
            "process": f"w{worker}",
            "domain": f"w{worker}" if own else "d0",
            "worker": f"worker:{worker}",
            "global_step": number,
            "start_ns": T0 + at + stamps[0] + ahead,
            "end_ns": T0 + at + stamps[1] + ahead,
            "attributes": json.dumps(
                {"tensorflow.time.source": "worker" if own else "coordinator"}, separators=(",", ":")
            ),
        },
    ]


def test_steps_and_staleness_of_a_parameter_server_run():
    # worker:1 takes three times as long: meanwhile worker:0 applies three steps.
    rows = [row for n in range(9) for row in closure(n, 0, at=n * 10 * MS, took=8 * MS)]
    rows += [row for n in range(3) for row in closure(10 + n, 1, at=n * 30 * MS + 5 * MS, took=27 * MS)]
    result = correlate_tables(ingested(rows))
    report = result.report
    assert report["steps"] == {
        "worker:0": {"count": 9, "first": 0, "last": 8},
        "worker:1": {"count": 3, "first": 10, "last": 12},
    }
    assert report["staleness"]["worker:1"] == {"p50": 3.0, "p99": 3.0, "max": 3, "source": "correlated"}
    assert report["staleness"]["worker:0"]["max"] == 1
    assert [item["worker"] for item in report["stragglers"]] == ["worker:1", "worker:0"]
    assert report["stragglers"][0]["score"] == pytest.approx(0.55, abs=0.02)
    by_span = dict(
        zip(result.spans["span_id"].to_pylist(), result.spans["staleness"].to_pylist(), strict=True)
    )
    assert by_span[33] == 3
    assert by_span[31] is None
    assert report["waits"] == {}


def test_a_failed_step_was_not_applied_and_coordinator_times_are_marked():
    rows = [
        *closure(0, 0, at=0, took=30 * MS, own=False),
        *closure(1, 1, at=5 * MS, took=5 * MS, own=False, failed=True),
    ]
    report = correlate_tables(ingested(rows)).report
    assert report["staleness"]["worker:0"] == {"p50": 0.0, "p99": 0.0, "max": 0, "source": "coordinator"}
    assert report["violations"] == 0
    assert report["wall_clock_inversions"] == 0


def test_a_profiles_staleness_is_kept():
    rows = closure(0, 0, at=0, took=30 * MS) + closure(1, 1, at=5 * MS, took=5 * MS)
    rows[2].update(staleness=7, staleness_source="profile")
    result = correlate_tables(ingested(rows))
    assert result.report["staleness"]["worker:0"] == {"p50": 7.0, "p99": 7.0, "max": 7, "source": "profile"}
    assert result.spans["staleness_source"].to_pylist()[2] == "profile"
    assert result.spans["staleness_source"].to_pylist()[5] == "correlated"


def synchronous(steps=40, *, slow=1, off=(0, 30 * MS, -7 * S)):
    """Three workers meet at a barrier every step; worker ``slow`` computes twice as long."""
    rows = []
    for step in range(steps):
        begin = T0 + step * 50 * MS
        work = [20 * MS if worker == slow else 10 * MS for worker in range(3)]
        out = begin + max(work) + 200 * US
        root = 100 * step + 1
        common = {"trace_lo": step + 1, "global_step": step}
        rows.append(
            {
                "span_id": root,
                "name": "step",
                **common,
                "process": "w0",
                "domain": "w0",
                "worker": "worker:0",
                "start_ns": begin - MS + off[0],
                "end_ns": out + 2 * MS + off[0],
            }
        )
        for worker in range(3):
            own = {**common, "process": f"w{worker}", "domain": f"w{worker}", "worker": f"worker:{worker}"}
            span = root + 10 * (worker + 1)
            ahead = off[worker]
            rows.append(
                {
                    "span_id": span,
                    "parent_id": root,
                    "name": "train_step",
                    **own,
                    "start_ns": begin + ahead,
                    "end_ns": out + MS + ahead,
                }
            )
            rows.append(
                {
                    "span_id": span + 1,
                    "parent_id": span,
                    "name": "collective",
                    **own,
                    "group_key": 1,
                    "instance_key": 5,
                    "start_ns": begin + work[worker] + ahead,
                    "end_ns": out + (step * 7 + worker * 3) % 5 * 10 * US + ahead,
                }
            )
    return rows


def test_a_synchronous_run_shows_who_waited_for_whom():
    result = correlate_tables(ingested(synchronous()))
    report = result.report
    assert report["staleness"] == {}
    assert report["waits"]["worker:1"]["mean_s"] < 0.0001
    assert report["waits"]["worker:0"]["mean_s"] == pytest.approx(0.010, abs=0.0001)
    assert report["stragglers"][0]["worker"] == "worker:1"
    assert report["stragglers"][0]["score"] == pytest.approx(0.9, abs=0.2)
    assert report["violations"] == 0
    assert report["barriers"] == {"count": 40, "beyond_bar": 0, "worst_ns": 0}
    for row in result.spans.to_pylist():
        if row["name"] == "collective":
            late = row["lateness_ns"] + row["wait_ns"]
            assert abs(late - 10 * MS) < 500 * US  # the clocks say the same as the durations
        else:
            assert row["wait_ns"] is None


def test_the_critical_path_of_a_synchronous_step_runs_through_the_straggler():
    rows = synchronous()
    result = correlate_tables(ingested(rows))
    times = np.stack(
        [result.spans["corrected_start_ns"].to_numpy(), result.spans["corrected_end_ns"].to_numpy()], 1
    ).ravel()
    errors = np.repeat(result.spans["error_ns"].to_numpy(), 2)
    table = result.edges
    kinds = np.array(
        [{"collective": 5, "link": 4}.get(kind, 0) for kind in table["kind"].to_pylist()], np.int8
    )
    edges = Edges(table["src"].to_numpy(), table["dst"].to_numpy(), table["min_ns"].to_numpy(), kinds)
    root = 7 * 20  # row of step 20's root
    legs = CriticalPath(edges, times, errors).to(2 * root + 1)
    assert [rows[leg.row]["name"] for leg in legs][-1] == "step"
    spent = {}
    for leg in legs:
        worker = rows[leg.row]["worker"]
        spent[worker] = spent.get(worker, 0) + leg.end_ns - leg.begin_ns
    assert spent["worker:1"] == pytest.approx(20 * MS, rel=0.05)
    assert all(earlier.end_ns == later.begin_ns for earlier, later in itertools.pairwise(legs))
    assert not any(leg.tied for leg in legs if rows[leg.row]["worker"] == "worker:1")


def path(spans, edges, error, to):
    """Legs to an event over hand-made times: spans are (start, end)."""
    times = np.array(spans, np.int64).ravel()
    src, dst = np.array(edges, np.int64).reshape(-1, 2).T
    edges = Edges(src, dst, np.ones(len(src), np.int64), np.zeros(len(src), np.int8))
    legs = CriticalPath(edges, times, np.full(len(times), error)).to(to)
    return [(leg.row, leg.begin_ns, leg.end_ns, leg.tied) for leg in legs]


def test_the_path_goes_to_what_finished_last_and_says_when_that_is_within_the_bars():
    spans = [(0, 100), (10, 40), (12, 80)]
    edges = [(0, 2), (0, 4), (3, 1), (5, 1)]
    assert path(spans, edges, 5, 1) == [(2, 0, 12, False), (2, 12, 80, False), (0, 80, 100, False)]
    assert path(spans, edges, 25, 1) == [(2, 0, 12, False), (2, 12, 80, False), (0, 80, 100, True)]


def test_children_one_after_the_other_are_both_on_the_path():
    spans = [(0, 100), (10, 40), (50, 80)]
    edges = [(0, 2), (0, 4), (3, 1), (5, 1)]
    assert [leg[:3] for leg in path(spans, edges, 0, 1)] == [
        (1, 0, 10), (1, 10, 40), (2, 40, 50), (2, 50, 80), (0, 80, 100),
    ]  # fmt: skip


def test_a_span_without_causes_is_its_own_path():
    assert path([(3, 9)], [], 0, 1) == [(0, 3, 9, False)]
    assert path([(3, 9)], [], 0, 0) == []
