"""Placing records between the events of their process, and what is known of others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_tf.correlator.log_placing import by_own_time, place
from otel_tf.correlator.log_tables import LOGS
from otel_tf.correlator.pipeline import correlate_tables
from tests.correlator.support import MS, T0, S, ingested

BOOT = 1000 * S


def table(rows: list[dict[str, Any]]) -> pa.Table:
    full = [{"severity": 9, "body": f"line {number}", **row} for number, row in enumerate(rows)]
    plain = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in LOGS]
    arrays = [
        pa.array([row.get(field.name) for row in full], kind) for field, kind in zip(LOGS, plain, strict=True)
    ]
    return pa.table(arrays, names=LOGS.names).cast(LOGS)


def step(number: int, start: int, end: int, *, process: str = "p0", **fields: Any) -> dict[str, Any]:
    """A step of one process, whose monotonic clock began `BOOT` before `T0`."""
    return {
        "span_id": number,
        "name": "train_step",
        "process": process,
        "global_step": number,
        "seq": 10 * number,
        "mono_ns": BOOT + start,
        "start_ns": T0 + start,
        "end_ns": T0 + end,
        **fields,
    }


STEPS = [step(number, number * 10 * MS, number * 10 * MS + 6 * MS) for number in range(1, 4)]


def line(at: int, **fields: Any) -> dict[str, Any]:
    return {
        "time_ns": T0 + at,
        "observed_ns": T0 + at,
        "mono_ns": BOOT + at,
        "process": "p0",
        "domain": "d0",
        **fields,
    }


def placed(rows: list[dict[str, Any]], spans: list[dict[str, Any]] = STEPS) -> list[dict[str, Any]]:
    correlated = correlate_tables(ingested(spans))
    found: list[dict[str, Any]] = place(
        table(rows), correlated.spans, reference=correlated.report["reference"]
    ).to_pylist()
    return found


def test_in_a_step_between_steps_and_before_all() -> None:
    before, inside, between = placed([line(5 * MS), line(12 * MS), line(18 * MS)])
    assert [row["global_step"] for row in (before, inside, between)] == [None, 1, 1]
    assert [row["span_id"] for row in (before, inside, between)] == [None, 1, None]
    assert all(row["corrected_ns"] == row["time_ns"] for row in (before, inside, between))
    assert all(row["evidence"] == "program" for row in (before, inside, between))


def test_a_step_that_the_record_knows_is_left_to_it() -> None:
    (row,) = placed([line(12 * MS, global_step=7, span_id=99, trace_hi=1, trace_lo=2)])
    assert (row["global_step"], row["span_id"], row["trace_lo"]) == (7, 99, 2)


def test_of_two_steps_at_once_none_is_claimed() -> None:
    spans = [step(1, 10 * MS, 30 * MS), step(2, 15 * MS, 25 * MS)]
    alone, both = placed([line(12 * MS), line(20 * MS)], spans)
    assert (alone["span_id"], both["span_id"]) == (1, None)


def test_the_monotonic_clock_counts_where_the_wall_clock_jumped() -> None:
    jumped = line(25 * MS)
    jumped["time_ns"] = jumped["observed_ns"] = T0 - 3600 * S
    (row,) = placed([jumped])
    assert row["corrected_ns"] == T0 + 25 * MS
    assert row["global_step"] == 2


def test_a_line_of_stderr_was_made_when_it_says_and_read_later() -> None:
    stderr = {"stream": "stderr"}
    own = line(30 * MS, **stderr) | {"time_ns": T0 + 12 * MS}
    printed = line(29 * MS, **stderr)
    # The reader gets both late, in this order; what came first was made first.
    first, second = placed([printed, own])
    assert (first["body"], second["body"]) == ("line 0", "line 1")
    assert first["corrected_ns"] <= second["corrected_ns"] == T0 + 12 * MS
    assert second["global_step"] == 1


def test_a_process_without_spans_has_its_hosts_clock_and_one_of_no_host_its_own() -> None:
    server, stranger = placed(
        [line(12 * MS, process="ps"), line(13 * MS, process="who", domain="elsewhere", mono_ns=None)]
    )
    assert (server["evidence"], server["error_ns"]) == ("clock", 0)
    assert server["global_step"] is None
    assert (stranger["evidence"], stranger["error_ns"]) == ("time", None)


def test_bars_grow_away_from_what_is_known() -> None:
    """A second process, tied to the first by a round trip, whose clock is 8 s behind."""
    back = -8 * S
    spans = [
        {**STEPS[0], "kind": 3},
        {
            **step(11, back + 11 * MS, back + 15 * MS, process="p1"),
            **{"kind": 2, "parent_id": 1, "domain": "d1", "global_step": 1},
        },
    ]
    far = {"process": "p1", "domain": "d1"}
    inside, after = placed([line(back + 12 * MS, **far), line(back + 10 * S, **far)], spans)
    assert abs(inside["corrected_ns"] - (T0 + 12 * MS)) <= inside["error_ns"] <= 2 * MS
    assert 5 * MS < after["error_ns"] - inside["error_ns"] < 10 * MS


def test_a_restarted_process_has_two_lives() -> None:
    spans = [*STEPS, *(step(number, number * S, number * S + MS, process="p0#2") for number in (100, 101))]
    for span in spans[3:]:
        # Another boot: its monotonic clock says something else.
        span["mono_ns"] -= 50 * S
    second = line(100 * S + MS // 2, pid="2")
    second["mono_ns"] -= 50 * S
    first, later = placed([line(12 * MS, pid="1"), second], spans)
    assert (first["global_step"], later["global_step"]) == (1, 100)


def test_without_spans() -> None:
    found = by_own_time(table([line(5), line(3), {}])).to_pylist()
    assert [row["corrected_ns"] for row in found] == [None, T0 + 3, T0 + 5]


@given(st.lists(st.integers(0, 60 * MS), max_size=50), st.integers(-5 * S, 5 * S))
@settings(deadline=None, max_examples=30)
def test_records_stay_where_they_were_among_events_whatever_the_clock(times: list[int], offset: int) -> None:
    spans = [
        {**span, "start_ns": span["start_ns"] + offset, "end_ns": span["end_ns"] + offset} for span in STEPS
    ]
    rows = [line(at) | {"time_ns": T0 + at + offset, "observed_ns": T0 + at + offset} for at in times]
    found = placed(rows, spans)
    assert sorted(row["body"] for row in found) == sorted(f"line {number}" for number in range(len(times)))
    order = [times[int(row["body"].split()[1])] for row in found]
    assert order == sorted(order)
    correlated = correlate_tables(ingested(spans)).spans.to_pylist()
    for row in found:
        at = times[int(row["body"].split()[1])]
        for span in correlated:
            before = at < span["mono_ns"] - BOOT
            assert not before or row["corrected_ns"] <= span["corrected_start_ns"]
            assert before or row["corrected_ns"] >= span["corrected_start_ns"]


@pytest.mark.parametrize("count", [0, 1])
def test_few(count: int) -> None:
    assert len(placed([line(12 * MS)] * count)) == count
    assert np.array_equal(place(table([]), correlate_tables(ingested(STEPS)).spans)["order"].to_numpy(), [])
