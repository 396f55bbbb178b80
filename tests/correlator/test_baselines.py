from __future__ import annotations

import numpy as np
import pytest

from otel_tf.correlator import baselines
from otel_tf.correlator.columns import from_spans
from otel_tf.correlator.edges import causal_edges
from otel_tf.correlator.engines.duckdb import DuckEngine
from tests.correlator.support import CLIENT, MS, SERVER, T0, US, S, ingested


def columns_and_edges(rows):
    given = ingested(rows)
    columns = from_spans(given.spans)
    return columns, causal_edges(columns, baselines.raw(columns), given.links, DuckEngine())


def calls(count, *, off, drift=0.0, there=100 * US, back=100 * US):
    rows = []
    for n in range(count):
        at = n * 10 * MS
        ahead = off + round(at * drift)
        rows.append(
            {"span_id": 2 * n + 1, "kind": CLIENT, "start_ns": T0 + at, "end_ns": T0 + at + there + MS + back}
        )
        start = T0 + at + there + ahead
        rows.append(
            {
                "span_id": 2 * n + 2,
                "parent_id": 2 * n + 1,
                "kind": SERVER,
                "process": "p1",
                "domain": "d1",
                "start_ns": start,
                "end_ns": start + MS,
            }
        )
    return rows


def test_raw_is_what_was_read():
    columns, _ = columns_and_edges(calls(2, off=S))
    assert baselines.raw(columns)[:4].tolist() == [
        T0,
        T0 + MS + 200 * US,
        T0 + 100 * US + S,
        T0 + 100 * US + S + MS,
    ]


def test_first_events_are_aligned():
    columns, _ = columns_and_edges(calls(3, off=S))
    times = baselines.first_event(columns, columns.domains.index("d0"))
    assert times[2] == T0
    assert times[0] == T0


def test_jaeger_centres_a_child_that_does_not_fit_and_takes_its_descendants_along():
    rows = calls(1, off=-S)
    rows.append(
        {
            "span_id": 9,
            "parent_id": 2,
            "process": "p1",
            "domain": "d1",
            "start_ns": T0 - S + 200 * US,
            "end_ns": T0 - S + 300 * US,
        }
    )
    columns, edges = columns_and_edges(rows)
    times = baselines.jaeger(columns, edges)
    assert times[2:4].tolist() == [T0 + 100 * US, T0 + 100 * US + MS]
    assert times[4:6].tolist() == [T0 + 200 * US, T0 + 300 * US]


def test_jaeger_leaves_alone_what_fits_and_moves_only_starts_of_what_is_longer():
    columns, edges = columns_and_edges(calls(1, off=50 * US))
    assert (baselines.jaeger(columns, edges) == baselines.raw(columns)).all()
    rows = calls(1, off=-S)
    rows[1]["end_ns"] += 5 * MS
    columns, edges = columns_and_edges(rows)
    assert baselines.jaeger(columns, edges)[2] == T0


def test_a_straight_line_fits_a_clock_that_drifts_and_cannot_fit_one_that_steps():
    rows = calls(200, off=3 * S, drift=50e-6)
    columns, edges = columns_and_edges(rows)
    times = baselines.linear_fit(columns, edges, columns.domains.index("d0"))
    true = np.array([T0 + n * 10 * MS + 100 * US for n in range(200)])
    assert np.abs(times[2::4] - true).max() < 2000
    for row in rows[201::2]:
        row["start_ns"] += 20 * MS
        row["end_ns"] += 20 * MS
    columns, edges = columns_and_edges(rows)
    times = baselines.linear_fit(columns, edges, columns.domains.index("d0"))
    assert np.abs(times[2::4] - true).max() > MS


@pytest.mark.parametrize("reference", ["d0", "d1"])
def test_the_line_leaves_its_reference_alone(reference):
    columns, edges = columns_and_edges(calls(20, off=3 * S))
    times = baselines.linear_fit(columns, edges, columns.domains.index(reference))
    mine = np.repeat(
        np.array([columns.domains[d] == reference for d in columns.timeline_domain[columns.timeline]]), 2
    )
    assert np.abs(times[mine] - baselines.raw(columns)[mine]).max() <= 1
