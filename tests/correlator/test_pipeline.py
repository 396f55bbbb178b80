from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_tf.correlator.pipeline import correlate_tables
from otel_tf.errors import UserError
from tests.correlator.support import CLIENT, INTERNAL, MS, SERVER, T0, US, S, TrueRun, ingested, true_runs

PROPERTY = settings(max_examples=30, deadline=None)


def causes(run: TrueRun) -> list[tuple[int, int]]:
    """The happened-before pairs that the span data itself proves, found the slow way; event = 2·row + end."""
    pairs = []
    for child, row in enumerate(run.rows):
        if not row["parent_id"]:
            continue
        parent = row["parent_id"] - 1
        above = run.rows[parent]
        pairs.append((2 * parent, 2 * child))
        same = (above["process"], above["domain"]) == (row["process"], row["domain"])
        if same and row["end_ns"] < above["end_ns"]:
            pairs.append((2 * child + 1, 2 * parent + 1))
        if not same and above["kind"] == CLIENT and row["kind"] == SERVER:
            pairs.append((2 * child + 1, 2 * parent + 1))
    pairs += [(2 * (span - 1), 2 * row) for row, span in run.links]
    return pairs


def corrected(table: pa.Table) -> np.ndarray:
    times = np.empty(2 * table.num_rows, dtype=np.int64)
    times[0::2] = table["corrected_start_ns"].to_numpy()
    times[1::2] = table["corrected_end_ns"].to_numpy()
    return times


def same(first: pa.Table, second: pa.Table) -> bool:
    columns = ["span_id", "order", "corrected_start_ns", "corrected_end_ns", "error_ns"]
    return first.select(columns).sort_by("span_id").equals(second.select(columns).sort_by("span_id"))


@PROPERTY
@given(true_runs())
def test_every_true_cause_comes_before_its_effect(run):
    result = correlate_tables(run.ingested())
    assert result.report["quarantined"] == []
    assert result.report["violations"] == 0
    times = corrected(result.spans)
    pairs = causes(run)
    assert all(times[src] < times[dst] for src, dst in pairs)
    assert sorted(pairs) == sorted(
        zip(result.edges["src"].to_pylist(), result.edges["dst"].to_pylist(), strict=True)
    )


@PROPERTY
@given(true_runs())
def test_no_process_is_turned_round_and_no_duration_negative(run):
    spans = correlate_tables(run.ingested()).spans
    start, end = spans["corrected_start_ns"].to_numpy(), spans["corrected_end_ns"].to_numpy()
    assert (end >= start).all()
    for process in {row["process"] for row in run.rows}:
        mine = [number for number, row in enumerate(run.rows) if row["process"] == process]
        events = sorted([(run.start[n], 0, n) for n in mine] + [(run.end[n], 1, n) for n in mine])
        times = [end[n] if which else start[n] for _, which, n in events]
        true = [when for when, _, _ in events]
        assert all(
            later >= earlier or before == after
            for earlier, later, before, after in zip(times, times[1:], true, true[1:], strict=False)
        )


@PROPERTY
@given(true_runs())
def test_the_order_of_starts_follows_every_edge_between_starts(run):
    result = correlate_tables(run.ingested())
    order = result.spans["order"].to_numpy()
    assert sorted(order) == list(range(len(run.rows)))
    assert all(order[src // 2] < order[dst // 2] for src, dst in causes(run) if src % 2 == dst % 2 == 0)


@PROPERTY
@given(true_runs())
def test_the_truth_lies_within_the_bar(run):
    spans = correlate_tables(run.ingested(), reference="d0").spans
    bar = spans["error_ns"].to_pylist()
    times = corrected(spans)
    for number, error in enumerate(bar):
        if error is not None:
            assert abs(times[2 * number] - T0 - run.start[number]) <= error
            assert abs(times[2 * number + 1] - T0 - run.end[number]) <= error


@PROPERTY
@given(true_runs())
def test_what_was_corrected_stays_as_it_is(run):
    """Corrected times are the reference's clock: read back as such, nothing is left to correct."""
    first = correlate_tables(run.ingested())
    rows = [
        {**row, "domain": first.report["reference"], "start_ns": start, "end_ns": end}
        for row, start, end in zip(
            run.rows,
            first.spans["corrected_start_ns"].to_pylist(),
            first.spans["corrected_end_ns"].to_pylist(),
            strict=True,
        )
    ]
    second = correlate_tables(ingested(rows, run.links))
    assert second.spans["shift_ns"].to_pylist() == [0] * len(rows)
    assert second.spans["corrected_end_ns"].equals(first.spans["corrected_end_ns"])


@PROPERTY
@given(true_runs(most_domains=1))
def test_a_run_on_one_clock_is_unchanged(run):
    spans = correlate_tables(run.ingested()).spans
    assert spans["corrected_start_ns"].equals(spans["start_ns"])
    assert spans["corrected_end_ns"].equals(spans["end_ns"])
    assert spans["error_ns"].to_pylist() == [0] * spans.num_rows


@PROPERTY
@given(true_runs(), st.integers(-(10**15), 10**15), st.integers(0, 3))
def test_where_a_clock_was_set_to_does_not_matter(run, ahead, which):
    domain = f"d{which}"
    before = correlate_tables(run.ingested())
    shifted = dataclasses.replace(
        run,
        rows=[
            {**row, "start_ns": row["start_ns"] + ahead, "end_ns": row["end_ns"] + ahead}
            if row["domain"] == domain
            else row
            for row in run.rows
        ],
    )
    after = correlate_tables(shifted.ingested(), reference=before.report["reference"])
    known = [error is not None for error in before.spans["error_ns"].to_pylist()]
    moved = ahead if before.report["reference"] == domain else 0
    for column, by in (("corrected_start_ns", moved), ("corrected_end_ns", moved), ("error_ns", 0)):
        old, new = before.spans[column].to_pylist(), after.spans[column].to_pylist()
        assert [a + by for a, k in zip(old, known, strict=True) if k] == [
            b for b, k in zip(new, known, strict=True) if k
        ]
    assert [error is not None for error in after.spans["error_ns"].to_pylist()] == known


@PROPERTY
@given(true_runs(), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(run, random):
    order = list(range(len(run.rows)))
    random.shuffle(order)
    first, second = correlate_tables(run.ingested()), correlate_tables(run.ingested(order))
    assert same(first.spans, second.spans)
    for report in (first.report, second.report):
        report["clocks"].sort(key=lambda clock: clock["domain"])
    assert first.report == second.report


@PROPERTY
@given(true_runs(), st.data())
def test_lost_spans_never_make_a_violation(run, data):
    kept = [n for n in range(len(run.rows)) if data.draw(st.integers(0, 9)) < 7]
    if not kept:
        kept = [0]
    result = correlate_tables(run.ingested(kept))
    assert result.report["violations"] == 0
    assert result.report["quarantined"] == []


def call(
    client: int,
    server: int,
    *,
    at: int,
    there: int = 100 * US,
    back: int = 100 * US,
    off: int = 0,
    skew: int = 0,
):
    """A call from p0 to p1 whose clock is ``off`` ahead; ``skew`` moves only this answer."""
    return [
        {"span_id": client, "kind": CLIENT, "start_ns": T0 + at, "end_ns": T0 + at + there + MS + back},
        {
            "span_id": server,
            "parent_id": client,
            "kind": SERVER,
            "process": "p1",
            "domain": "d1",
            "start_ns": T0 + at + there + off,
            "end_ns": T0 + at + there + MS + off + skew,
        },
    ]


def test_an_edge_that_contradicts_all_others_is_set_aside_and_named():
    rows = [row for n in range(50) for row in call(2 * n + 1, 2 * n + 2, at=n * 10 * MS, off=7 * S)]
    rows[49]["end_ns"] += 5 * MS  # this server went on after its client had left
    result = correlate_tables(ingested(rows))
    (item,) = result.report["quarantined"]
    assert item["src"] == f"{50:016x}.end"
    assert item["dst"] == f"{49:016x}.end"
    assert item["kind"] == "response"
    assert 4 * MS < item["excess_ns"] <= 5 * MS
    assert result.report["violations"] == 0
    spans = result.spans
    assert abs(spans["corrected_start_ns"].to_pylist()[3] - (T0 + 10 * MS + 100 * US)) < 100
    assert result.quarantined["reason"].to_pylist() == [item["reason"]]
    assert result.edges.num_rows == 99


def test_a_cycle_is_reported_with_its_edge():
    rows = [
        {"span_id": 1, "start_ns": T0, "end_ns": T0 + MS},
        {"span_id": 2, "start_ns": T0 + 10, "end_ns": T0 + MS},
    ]
    result = correlate_tables(ingested(rows, links=[(0, 2), (1, 1)]))
    assert [(item["src"], item["dst"]) for item in result.report["quarantined"]] == [
        (f"{2:016x}.start", f"{1:016x}.start")
    ]
    assert result.report["violations"] == 0


def test_a_cycle_of_links_between_unrelated_clocks_is_broken():
    rows = [
        {"span_id": n + 1, "process": f"p{n}", "domain": f"d{n}", "start_ns": T0, "end_ns": T0 + MS}
        for n in range(3)
    ]
    result = correlate_tables(ingested(rows, links=[(0, 2), (1, 3), (2, 1)]))
    assert len(result.report["quarantined"]) == 1
    assert result.edges.num_rows == 2
    assert result.report["violations"] == 0


def test_what_nothing_ties_to_the_reference_keeps_its_time_and_has_no_bar():
    rows = [
        *call(1, 2, at=0, off=3 * S),
        {"span_id": 3, "process": "p9", "domain": "d9", "start_ns": T0 - 5 * S, "end_ns": T0},
    ]
    result = correlate_tables(ingested(rows))
    lone = result.spans.to_pylist()[2]
    assert (lone["corrected_start_ns"], lone["corrected_end_ns"], lone["error_ns"]) == (T0 - 5 * S, T0, None)
    assert {clock["domain"]: clock["error_ns"] is None for clock in result.report["clocks"]} == {
        "d0": False,
        "d1": False,
        "d9": True,
    }


def test_a_clock_bounded_from_one_side_only_has_no_bar_and_obeys():
    rows = [
        {"span_id": 1, "kind": 4, "start_ns": T0, "end_ns": T0 + MS},
        {
            "span_id": 2,
            "parent_id": 1,
            "kind": 5,
            "process": "p1",
            "domain": "d1",
            "start_ns": T0 - S,
            "end_ns": T0,
        },
    ]
    result = correlate_tables(ingested(rows, []), reference="d0")
    late = result.spans.to_pylist()[1]
    assert late["corrected_start_ns"] > T0
    assert late["error_ns"] is None
    assert result.report["wall_clock_inversions"] == 1
    assert result.report["violations"] == 0


def test_a_stray_stamp_from_another_century_harms_nobody_else():
    rows = [
        row for n in range(100) for row in call(2 * n + 1, 2 * n + 2, at=n * 10 * MS + 137 * n, off=7 * S)
    ]
    clean = correlate_tables(ingested(rows)).spans
    rows.append({"span_id": 999, "process": "p1", "domain": "d1", "start_ns": 5, "end_ns": 9})
    result = correlate_tables(ingested(rows))
    assert result.report["violations"] == 0
    for column in ("corrected_start_ns", "corrected_end_ns", "error_ns"):
        assert result.spans[column].slice(0, 200).to_pylist() == clean[column].to_pylist()
    assert result.spans["error_ns"].to_pylist()[200] is None


def test_the_bar_grows_with_the_distance_to_the_last_edge():
    rows = [
        row for n in range(100) for row in call(2 * n + 1, 2 * n + 2, at=n * 10 * MS + 137 * n, off=7 * S)
    ]
    for n in range(4):
        at = T0 + 8 * S + n * 1000 * S
        rows.append({"process": "p1", "domain": "d1", "span_id": 900 + n, "start_ns": at, "end_ns": at + MS})
    bars = correlate_tables(ingested(rows)).spans["error_ns"].to_pylist()[200:]
    growth = np.diff(bars)
    assert (growth > 0.5 * S).all()  # what 500 ppm make of 1000 s
    assert (growth < 0.7 * S).all()


@pytest.mark.parametrize("days", [1, 300])
def test_runs_of_many_days_are_no_harder(days):
    step = days * 86_400 * S // 200
    rows = [row for n in range(200) for row in call(2 * n + 1, 2 * n + 2, at=n * step, off=7 * S)]
    result = correlate_tables(ingested(rows))
    assert result.report["violations"] == 0
    assert result.report["quarantined"] == []
    start = result.spans["corrected_start_ns"].to_numpy()
    error = result.spans["error_ns"].to_numpy()
    true = np.array([T0 + n * step + side * 100 * US for n in range(200) for side in (0, 1)])
    assert (np.abs(start - true) <= error).all()


def test_the_reference_is_the_busiest_domain_unless_named():
    rows = [row for n in range(4) for row in call(2 * n + 1, 2 * n + 2, at=n * MS, off=S)]
    rows += [
        {**row, "span_id": row["span_id"] + 100, "parent_id": row.get("parent_id", 0) and 101}
        for row in call(1, 2, at=0)
    ]
    rows[-1].update(process="p2", domain="d2")
    assert correlate_tables(ingested(rows)).report["reference"] == "d0"
    assert correlate_tables(ingested(rows), reference="d1").report["reference"] == "d1"
    with pytest.raises(UserError, match=r"no clock domain 'x'; there are: d0, d1, d2"):
        correlate_tables(ingested(rows), reference="x")


def test_nothing_to_correlate_and_no_such_engine_are_said():
    with pytest.raises(UserError, match="no spans"):
        correlate_tables(ingested([]))
    with pytest.raises(UserError, match="no engine 'abacus'"):
        correlate_tables(ingested(call(1, 2, at=0)), engine="abacus")


def test_wall_clock_inversions_count_pairs_in_the_wrong_order_not_ties_on_one_clock():
    rows = [
        {"span_id": 1, "start_ns": T0, "end_ns": T0 + MS},
        {"span_id": 2, "parent_id": 1, "start_ns": T0, "end_ns": T0 + MS, "kind": INTERNAL},
        *(
            {**row, "span_id": row["span_id"] + 2, "parent_id": row.get("parent_id") and 3}
            for row in call(1, 2, at=0, off=-S)
        ),
    ]
    rows[2]["parent_id"] = 0
    report = correlate_tables(ingested(rows)).report
    assert report["wall_clock_inversions"] == 1  # the request; the answer looks fine
    assert report["violations"] == 0
