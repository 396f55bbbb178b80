"""Enclosing events are those that a stack finds, for whatever calls threads make."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_tf.profiler.nesting import Intervals, enclosing, roots


def calls(children, start=0):
    """Flattens nested calls to (start, end): each child takes its time, with the gaps given."""
    found, at = [], start
    for gap, lead, inside in children:
        begin = at + gap
        below, end = calls(inside, begin + lead)
        found += [(begin, end + lead), *below]
        at = end + lead
    return found, at


call = st.recursive(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.just([])),
    lambda inside: st.tuples(st.integers(0, 2), st.integers(0, 2), st.lists(inside, max_size=3)),
    max_leaves=10,
)
threads = st.lists(st.lists(call, max_size=4), min_size=1, max_size=2)


def as_events(threads):
    rows = [(line, *times) for line, thread in enumerate(threads) for times in calls(thread)[0]]
    rows.sort(key=lambda row: (row[0], row[1], row[1] - row[2]))
    line, start, end = np.array(rows, np.int64).reshape(-1, 3).T
    return line, start, end


@settings(max_examples=100, deadline=None)
@given(threads=threads, data=st.data())
def test_the_same_as_with_a_stack(threads, data):
    line, start, end = as_events(threads)
    count = len(line)
    outer = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)), np.bool_)
    found = enclosing(Intervals(line, start, end), outer, np.arange(count))
    for row in range(count):
        around = [
            other
            for other in range(row)
            if outer[other]
            and end[other] > start[other]
            and line[other] == line[row]
            and start[other] <= start[row]
            and end[row] <= end[other]
            # What ends where another begins is over; nothing happens at the last instant of a call.
            and end[other] > start[row]
        ]
        assert found[row] == (around[-1] if around else -1)


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 9)), max_size=30))
def test_of_events_that_overlap_none_is_said_to_enclose_what_it_does_not(rows):
    rows = sorted(
        ((line, start, start + long) for line, start, long in rows), key=lambda r: (r[0], r[1], r[1] - r[2])
    )
    line, start, end = np.array(rows, np.int64).reshape(-1, 3).T
    found = enclosing(Intervals(line, start, end), np.ones(len(line), np.bool_), np.arange(len(line)))
    for row, other in enumerate(found.tolist()):
        if other >= 0:
            assert other < row and line[other] == line[row]
            assert start[other] <= start[row] and end[row] <= end[other]


def test_times_of_damaged_files_do_not_overflow():
    line, start = np.array([0, 0, 1 << 20]), np.array([0, 10, 0])
    found = enclosing(
        Intervals(line, start, np.array([1 << 58, 20, 1 << 58])), np.ones(3, np.bool_), np.arange(3)
    )
    assert found[2] == -1


def test_roots_end_also_in_circles():
    assert roots(np.array([-1, 0, 1, 2, -1, 4])).tolist() == [0, 0, 0, 0, 4, 4]
    assert len(roots(np.array([1, 2, 0]))) == 3
