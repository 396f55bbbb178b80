from __future__ import annotations

import numpy as np
import pytest

from otel_tf.correlator.columns import from_spans
from otel_tf.correlator.edges import causal_edges
from otel_tf.correlator.engines.duckdb import DuckEngine
from otel_tf.correlator.program import program_order
from tests.correlator.support import T0, ingested


def order_of(rows):
    """Events in program order, by timeline, as texts: 1s is the start of span 1."""
    given = ingested(rows)
    columns = from_spans(given.spans)
    local = np.stack([columns.start_ns, columns.end_ns], axis=1).ravel()
    program = program_order(columns, local, causal_edges(columns, local, given.links, DuckEngine()))
    assert program.position[program.event].tolist() == list(range(len(local)))
    names = [f"{event // 2 + 1}{'se'[event % 2]}" for event in program.event.tolist()]
    return [" ".join(names[a:b]) for a, b in zip(program.first[:-1], program.first[1:], strict=True)]


def span(start, end, **more):
    return {"start_ns": T0 + start, "end_ns": T0 + end, **more}


def test_events_are_ordered_by_local_time_within_each_timeline():
    rows = [span(5, 9), span(1, 7), span(3, 4, process="p1"), span(2, 8, process="p1", domain="d1")]
    assert order_of(rows) == ["2s 1s 2e 1e", "3s 3e", "4s 4e"]


def test_sequence_numbers_order_starts_where_the_clock_went_back():
    rows = [span(10, 12, seq=1), span(20, 22, seq=2), span(5, 25, seq=3), span(30, 31, seq=4)]
    assert order_of(rows) == ["1s 1e 2s 3s 2e 3e 4s 4e"]


def test_sequence_numbers_that_disagree_all_the_time_are_not_believed():
    rows = [span(10 * n, 10 * n + 1, seq=100 - n) for n in range(20)]
    assert order_of(rows) == [" ".join(f"{n + 1}s {n + 1}e" for n in range(20))]


@pytest.mark.parametrize("numbered", [True, False])
def test_in_one_tick_parents_begin_before_and_end_after_their_children(numbered):
    # Ids against the depth, so that only nesting can tell.
    rows = [
        span(0, 0, span_id=9, parent_id=0),
        span(0, 0, span_id=5, parent_id=9),
        span(0, 0, span_id=1, parent_id=5),
        span(0, 4, span_id=3, parent_id=9),
    ]
    if numbered:
        rows = [{**row, "seq": number} for number, row in enumerate(rows)]
    (found,) = order_of(rows)
    place = {name: number for number, name in enumerate(found.split())}
    assert place["1s"] < place["2s"] < place["3s"] < place["3e"] < place["2e"] < place["1e"]
    assert place["1s"] < place["4s"]


def test_a_negative_duration_ends_where_it_starts():
    assert order_of([span(10, 3), span(10, 12), span(11, 11)]) == ["1s 2s 1e 3s 3e 2e"]
