from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_tf.correlator.repair import FADE_BITS, CycleError, Layout, repair, smooth

PROPERTY = settings(max_examples=200, deadline=None)


@st.composite
def laid_out(draw: st.DrawFn) -> tuple[np.ndarray, Layout]:
    """Random timelines of at most 200 events, with edges that a true order of all events allows."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lanes = int(rng.integers(1, 5))
    lane = np.sort(rng.integers(0, lanes, int(rng.integers(1, 200))))
    true = rng.permutation(len(lane)) * int(rng.choice([1, 10, 1000]))
    order = np.lexsort((true, lane))
    lane, true = lane[order], true[order]
    wrong = rng.normal(0, draw(st.sampled_from([1, 30, 3000])), lanes).astype(np.int64)
    time = true + wrong[lane]
    src, dst = rng.integers(0, len(lane), (2, int(rng.integers(0, 60))))
    forward = true[src] < true[dst]
    least = rng.integers(1, 3, len(src))
    segment = np.r_[True, lane[1:] != lane[:-1]]
    return time, Layout(segment, src[forward], dst[forward], least[forward])


def slowly(time: np.ndarray, layout: Layout) -> np.ndarray:
    """The least fixpoint by its definition, one event at a time."""
    moved = [int(t) for t in time]
    begin = 0
    begins = []
    for at in range(len(moved)):
        begin = at if layout.segment[at] else begin
        begins.append(begin)
    fade = [(int(time[at]) - int(time[begins[at]])) // 2**FADE_BITS for at in range(len(moved))]
    while True:
        before = list(moved)
        for at in range(len(moved)):
            if not layout.segment[at]:
                shift = moved[at - 1] - int(time[at - 1]) + fade[at - 1] - fade[at]
                moved[at] = max(moved[at], int(time[at]) + shift)
        for src, dst, least in zip(layout.src, layout.dst, layout.min_ns, strict=True):
            moved[dst] = max(moved[dst], moved[src] + int(least))
        if moved == before:
            return np.array(moved)


def holds(time: np.ndarray, layout: Layout) -> bool:
    later = np.diff(time) >= 0
    return bool(
        (time[layout.src] + layout.min_ns <= time[layout.dst]).all() and (later | layout.segment[1:]).all()
    )


@PROPERTY
@given(laid_out())
def test_repair_is_the_least_fixpoint(case):
    time, layout = case
    assert repair(time, layout).tolist() == slowly(time, layout).tolist()


@PROPERTY
@given(laid_out())
def test_everything_holds_after_repair_and_after_smoothing(case):
    time, layout = case
    moved = repair(time, layout)
    smoothed = smooth(time, moved, layout)
    assert holds(moved, layout)
    assert holds(smoothed, layout)
    assert (smoothed >= moved).all()
    assert (moved >= time).all()


@PROPERTY
@given(laid_out())
def test_repairing_again_changes_nothing(case):
    time, layout = case
    moved = repair(time, layout)
    assert repair(moved, layout).tolist() == moved.tolist()
    assert smooth(moved, moved, layout).tolist() == moved.tolist()


def one_lane(*times: int, edges: list[tuple[int, int]] = ()) -> tuple[np.ndarray, Layout]:
    segment = np.zeros(len(times), bool)
    segment[0] = True
    src, dst = np.array(edges, np.int64).reshape(-1, 2).T
    return np.array(times, np.int64), Layout(segment, src, dst, np.ones(len(src), np.int64))


def test_a_shift_fades_along_its_timeline():
    # The first timeline's last event must come after 10,000; the second timeline follows slowly.
    time = np.array([10_000, 0, 128, 1280, 128_000], np.int64)
    layout = Layout(
        np.array([True, True, False, False, False]), np.array([0]), np.array([1]), np.array([1], np.int64)
    )
    moved = repair(time, layout)
    assert (moved - time).tolist() == [0, 10_001, 10_000, 9_991, 9_001]


def test_what_comes_before_a_jump_is_led_up_to_it_but_never_past_its_own_effects():
    # Lane 0 sends to the event at 20,000 of lane 1; its event at 19,000 has sent to one at 19,050 before.
    time = np.array([30_000, 19_050, 18_000, 19_000, 20_000], np.int64)
    segment = np.array([True, True, True, False, False])
    layout = Layout(segment, np.array([0, 3]), np.array([4, 1]), np.array([1, 1], np.int64))
    moved = repair(time, layout)
    assert moved.tolist() == [30_000, 19_050, 18_000, 19_000, 30_001]
    assert smooth(time, moved, layout).tolist() == [30_000, 19_050, 19_049, 19_049, 30_001]


@pytest.mark.parametrize("edges", [[(1, 0)], [(2, 0), (1, 2)], [(1, 1)]])
def test_a_cycle_is_found_and_its_edges_are_named(edges):
    time, layout = one_lane(0, 5, 9, edges=edges)
    with pytest.raises(CycleError) as caught:
        repair(time, layout)
    cycle = caught.value.edges
    assert len(cycle) >= 1
    assert {edges[index] for index in cycle} <= set(edges)
    assert any(src >= dst for src, dst in (edges[index] for index in cycle))


@PROPERTY
@given(laid_out(), st.data())
def test_an_injected_cycle_is_always_found(case, data):
    time, layout = case
    if len(layout.src) == 0:
        return
    turned = data.draw(st.integers(0, len(layout.src) - 1))
    bad = Layout(
        layout.segment,
        np.r_[layout.src, layout.dst[turned]],
        np.r_[layout.dst, layout.src[turned]],
        np.r_[layout.min_ns, 1],
    )
    with pytest.raises(CycleError) as caught:
        repair(time, bad)
    assert len(layout.src) in caught.value.edges.tolist()
