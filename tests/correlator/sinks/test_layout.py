"""The arithmetic of logical traces, against plain definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_tf.correlator.sinks import layout


@st.composite
def forests(draw):
    count = draw(st.integers(1, 30))
    parent = [draw(st.integers(-1, row - 1)) for row in range(count)]
    start = [draw(st.integers(0, 20_000)) for _ in range(count)]
    end = [begin + draw(st.integers(0, 5_000)) for begin in start]
    waited = [draw(st.booleans()) for _ in range(count)]
    return (np.array(part) for part in (parent, start, end, waited))


@given(forests())
def test_times_keep_the_order_of_siblings_and_children_inside(forest):
    parent, start, end, waited = forest
    group = np.zeros(len(parent), np.int64)
    shown_start, shown_end = layout.times(start, end, parent, group, waited)
    assert (shown_end >= shown_start).all()
    last: dict[int, int] = {}
    for row, above in enumerate(parent.tolist()):
        micros = shown_start[row] // 1000
        assert micros > last.get(above, -1)
        last[above] = micros
        if above >= 0:
            assert shown_start[row] >= shown_start[above]
            if waited[row]:
                assert shown_end[row] <= shown_end[above]


@given(forests())
def test_times_that_are_right_already_stay(forest):
    parent, start, end, waited = forest
    group = np.zeros(len(parent), np.int64)
    once = layout.times(start, end, parent, group, waited)
    twice = layout.times(*once, parent, group, waited)
    assert [array.tolist() for array in twice] == [array.tolist() for array in once]


def test_times_move_no_more_than_needed():
    parent = np.array([-1, 0, 0, 0, 0])
    start = np.array([5_000, 5_100, 5_200, 9_999, 10_500])
    end = np.array([6_000, 5_150, 7_000, 9_999, 10_600])
    start, end = layout.times(start, end, parent, np.zeros(5, np.int64), np.array([True] * 4 + [False]))
    assert start.tolist() == [5_000, 5_100, 6_000, 9_999, 10_500]
    # Durations are whole microseconds.
    assert end.tolist() == [10_000, 6_100, 7_000, 9_999, 11_500]


def test_traces_do_not_push_each_other():
    start = np.array([5_000, 5_000, 5_000])
    shown, _ = layout.times(start, start, np.full(3, -1), np.array([0, 0, 1]), np.ones(3, bool))
    assert shown.tolist() == [5_000, 6_000, 5_000]


@pytest.mark.parametrize(
    ("parent", "expected"),
    [
        ([-1, 0, 1], [-1, 0, 1]),
        ([1, 0, 1, -1], [-1, -1, -1, -1]),
        ([0], [-1]),
        ([2, 0, 1, 0, -1, 4], [-1] * 5 + [4]),
    ],
)
def test_cycles_lose_their_parents(parent, expected):
    assert layout.without_cycles(np.array(parent)).tolist() == expected


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=300), st.integers(1, 20))
def test_windows_hold_no_more_than_may_be_and_the_next_size_would(steps, most):
    step = np.array(steps)

    def largest(size):
        return np.bincount(step // size).max()

    size = layout.window_size(step, most)
    assert str(size).strip("0") in ("1", "2", "5")
    assert size == 1 or largest(size) <= most
    larger = size * 2 if str(size)[0] in "15" else size * 5 // 2
    assert largest(larger) > most or size > step.max()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=60), st.integers(1, 7))
def test_parts_are_full_before_the_next_begins(rows, most):
    kind = np.array([row[0] for row in rows], np.int64)
    key = np.array([row[1] for row in rows], np.int64)
    seen: dict[tuple[int, int], int] = {}
    expected = []
    for row in rows:
        expected.append(seen.get(row, 0) // most)
        seen[row] = seen.get(row, 0) + 1
    assert layout.part_numbers(kind, key, most).tolist() == expected


def test_ids_that_repeat_in_a_trace_become_others():
    group = np.array([0, 0, 0, 1])
    ids = layout.unique_ids(group, np.array([7, 7, 7, 7]))
    assert ids[[0, 3]].tolist() == [7, 7]
    assert len(set(ids[:3].tolist())) == 3
    assert 0 not in ids
