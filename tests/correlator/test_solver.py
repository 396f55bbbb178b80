from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_tf.correlator import solver
from otel_tf.correlator.solver import UNBOUNDED, Constraints, InfeasibleError

PROPERTY = settings(max_examples=150, deadline=None)


def tight(constraints: Constraints) -> list[tuple[int, int, int]]:
    """All constraints as (a, b, w): value[a] ≤ value[b] + w."""
    epochs, windows = constraints.shape
    found = list(
        zip(constraints.src.tolist(), constraints.dst.tolist(), constraints.bound.tolist(), strict=True)
    )
    for epoch in range(epochs):
        for window in range(windows - 1):
            node = epoch * windows + window
            if constraints.fixed[epoch]:
                continue
            found.append((node + 1, node, int(constraints.up[epoch, window])))
            found.append((node, node + 1, int(constraints.down[epoch, window])))
    fixed = [
        epoch * windows + window for epoch in np.flatnonzero(constraints.fixed) for window in range(windows)
    ]
    found += [(a, b, 0) for a in fixed for b in fixed if a != b]
    return found


def slowly(constraints: Constraints, *, elsewhere: float = float("inf")) -> list[int | None] | None:
    """Largest values up to ``elsewhere`` by Bellman and Ford, one edge at a time; None if there are none."""
    epochs, windows = constraints.shape
    value: list[float] = [
        0.0 if constraints.fixed[node // windows] else elsewhere for node in range(epochs * windows)
    ]
    edges = tight(constraints)
    for _ in range(len(value) + 1):
        changed = False
        for a, b, w in edges:
            if value[b] + w < value[a]:
                value[a], changed = value[b] + w, True
        if not changed:
            return [None if v == float("inf") else int(v) for v in value]
    return None


@st.composite
def systems(draw: st.DrawFn, *, feasible: bool) -> Constraints:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    epochs, windows = int(rng.integers(1, 5)), int(rng.integers(2, 7))
    truth = np.cumsum(rng.integers(-20, 21, (epochs, windows)), axis=1) + rng.integers(
        -999, 1000, (epochs, 1)
    )
    truth[0] = 0
    rows = int(rng.integers(0, 40))
    src, dst = rng.integers(0, epochs * windows, (2, rows))
    slack = rng.integers(0, 50, rows) if feasible else rng.integers(-60, 200, rows)
    flat = truth.ravel()
    rate = np.diff(truth, axis=1)
    fixed = np.zeros(epochs, bool)
    fixed[0] = True
    room = rng.integers(0, 9, rate.shape)
    return Constraints(src, dst, flat[src] - flat[dst] + slack, rate + room, room - rate, fixed)


@PROPERTY
@given(systems(feasible=True))
def test_bounds_are_the_shortest_paths(constraints):
    expected = slowly(constraints)
    assert expected is not None
    found = [None if value == UNBOUNDED else value for value in solver.highest(constraints).ravel().tolist()]
    assert found == expected


@PROPERTY
@given(systems(feasible=True))
def test_the_middle_satisfies_everything(constraints):
    low, high = solver.lowest(constraints).ravel(), solver.highest(constraints).ravel()
    assert (low <= high).all()
    known = (high < UNBOUNDED) & (low > -UNBOUNDED)
    for values in (low, high, (low + high) >> 1):
        for a, b, w in tight(constraints):
            if known[a] and known[b]:
                assert values[a] <= values[b] + w + (values is not low and values is not high)


@PROPERTY
@given(systems(feasible=True), st.data())
def test_a_true_edge_more_never_widens_a_bound(constraints, data):
    if not len(constraints.src):
        return
    index = data.draw(st.integers(0, len(constraints.src) - 1))
    fewer = Constraints(
        np.delete(constraints.src, index),
        np.delete(constraints.dst, index),
        np.delete(constraints.bound, index),
        constraints.up,
        constraints.down,
        constraints.fixed,
    )
    assert (solver.highest(constraints) <= solver.highest(fewer)).all()
    assert (solver.lowest(constraints) >= solver.lowest(fewer)).all()


@PROPERTY
@given(systems(feasible=False))
def test_a_contradiction_is_a_cycle_that_is_too_short(constraints):
    if slowly(constraints) is not None:
        solver.highest(constraints)
        return
    with pytest.raises(InfeasibleError) as caught:
        solver.highest(constraints)
    error = caught.value
    assert error.excess_ns > 0
    assert len(error.rows) >= 1
    # Its bounds alone, with the chains, are contradictory already.
    rows = np.unique(error.rows)
    alone = Constraints(
        constraints.src[rows],
        constraints.dst[rows],
        constraints.bound[rows],
        constraints.up,
        constraints.down,
        constraints.fixed,
    )
    assert slowly(alone, elsewhere=0.0) is None


def test_settle_moves_only_as_far_as_it_must():
    # Epoch 1 wants to be at 100 but may be at most 30 above the fixed one.
    constraints = Constraints(
        np.array([2]),
        np.array([0]),
        np.array([30]),
        np.zeros((2, 1), int),
        np.zeros((2, 1), int),
        np.array([True, False]),
    )
    start = np.array([[0, 0], [100, 100]])
    assert solver.settle(constraints, start, downwards=True).tolist() == [[0, 0], [30, 30]]
    assert solver.settle(constraints, start // 10, downwards=True).tolist() == [[0, 0], [10, 10]]
    # Upwards, the fixed one would have to follow.
    assert solver.settle(constraints, start, downwards=False) is None
