"""Difference constraints over (epoch, window) nodes: hard bounds by two shortest-path runs.

Nodes form a grid of E epochs × K windows; node = epoch·K + window. Unknown is each node's origin, the
corrected time of its clock's zero. Constraints are ``origin[src] − origin[dst] ≤ bound`` between clocks
and ``−down ≤ origin[e, k+1] − origin[e, k] ≤ up`` along one. The largest and the smallest solution with
given nodes fixed at 0 are shortest paths (Attiya, Herzberg, Rajsbaum, "Optimal clock synchronization under
different delay assumptions", SIAM J. Comput. 25(2), 1996). All integers, ns.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from otel_tf.correlator.columns import Int

__all__ = ["UNBOUNDED", "Constraints", "InfeasibleError", "highest", "lowest", "settle"]

Bool = npt.NDArray[np.bool_]

#: A bound that nothing gives. Far above any run's length, far below an int64 overflow.
UNBOUNDED = 1 << 61


class InfeasibleError(Exception):
    """The constraints contradict each other along a cycle.

    Attributes:
        rows: Indices of the bounds on the cycle, in its order.
        nodes: Nodes on the cycle.
        excess_ns: By how much the cycle's bounds miss being satisfiable (> 0).
    """

    def __init__(self, rows: Int, nodes: Int, excess_ns: int) -> None:
        super().__init__(f"a cycle of {len(rows)} bounds is {excess_ns} ns short")
        self.rows = rows
        self.nodes = nodes
        self.excess_ns = excess_ns


@dataclasses.dataclass(frozen=True)
class Constraints:
    """Bounds between nodes (R,) and along the chains (E, K−1)."""

    src: Int
    dst: Int
    bound: Int
    up: Int
    down: Int
    fixed: Bool  # (E,): epochs whose every node is at 0

    @property
    def shape(self) -> tuple[int, int]:
        """(E, K)."""
        return self.up.shape[0], self.up.shape[1] + 1


def highest(constraints: Constraints) -> Int:
    """Returns the largest origin of every node (E, K), `UNBOUNDED` where nothing bounds it.

    Raises:
        InfeasibleError: A cycle of negative length.
    """
    return _shortest(constraints)


def lowest(constraints: Constraints) -> Int:
    """Returns the smallest origin of every node (E, K), −`UNBOUNDED` where nothing bounds it.

    Raises:
        InfeasibleError: A cycle of negative length.
    """
    return -_shortest(_mirrored(constraints))


def settle(constraints: Constraints, start: Int, *, downwards: bool) -> Int | None:
    """Returns the largest solution nowhere above ``start`` (or the smallest nowhere below it), or None.

    Fixed epochs are fixed at their values in ``start``; None when no solution leaves them there.

    Args:
        constraints: The constraints.
        start: Where every node would like to be, ns (E, K).
        downwards: Whether nodes may only go below it, or only above.
    """
    if not downwards:
        found = settle(_mirrored(constraints), -start, downwards=True)
        return None if found is None else -found
    distance = start.copy()
    return distance if _relax(constraints, distance) else None


def _mirrored(constraints: Constraints) -> Constraints:
    """Returns the constraints on the negatives of all origins."""
    return dataclasses.replace(
        constraints, src=constraints.dst, dst=constraints.src, up=constraints.down, down=constraints.up
    )


def _shortest(constraints: Constraints) -> Int:
    """Distances from the fixed nodes, where ``d[src] ≤ d[dst] + bound``."""
    distance = np.full(constraints.shape, UNBOUNDED, dtype=np.int64)
    distance[constraints.fixed] = 0
    if not _relax(constraints, distance):
        raise _find_cycle(constraints, distance.reshape(-1))
    return distance


def _relax(constraints: Constraints, distance: Int) -> bool:
    """Lowers distances until all constraints hold; False if they do not come to rest, or fixed ones move."""
    epochs = constraints.shape[0]
    order = np.argsort(constraints.src, kind="stable")
    origin, bound, target = constraints.dst[order], constraints.bound[order], constraints.src[order]
    first = np.flatnonzero(np.r_[True, target[1:] != target[:-1]]) if len(order) else order
    heads = target[first]
    zero = np.zeros((epochs, 1), np.int64)
    climbed = np.concatenate([zero, np.cumsum(constraints.up, axis=1)], axis=1)
    fallen = np.concatenate([zero, np.cumsum(constraints.down, axis=1)], axis=1)
    kept = distance[constraints.fixed].copy()
    flat = distance.reshape(-1)
    # A shortest path enters each epoch a few times at most; far more rounds than epochs mean a cycle.
    for _ in range(4 * epochs + 16):
        before = distance.copy()
        if len(heads):
            reached = np.minimum.reduceat(flat[origin] + bound, first)
            flat[heads] = np.minimum(flat[heads], reached)
        forward = np.minimum.accumulate(distance - climbed, axis=1) + climbed
        backward = np.minimum.accumulate((distance + fallen)[:, ::-1], axis=1)[:, ::-1] - fallen
        free = ~constraints.fixed
        distance[free] = np.minimum(np.minimum(distance, forward), backward)[free]
        distance[distance > UNBOUNDED // 2] = UNBOUNDED
        if (distance[constraints.fixed] < kept).any():
            return False
        if np.array_equal(before, distance):
            return True
    return False


def _find_cycle(constraints: Constraints, start: Int) -> InfeasibleError:
    """Runs plain Bellman-Ford with predecessors until they close a cycle, and returns it."""
    epochs, windows = constraints.shape
    target, source, up, down = constraints.src, constraints.dst, constraints.up, constraints.down
    nodes = np.arange(epochs * windows, dtype=np.int64).reshape(epochs, windows)
    fixed = np.flatnonzero(constraints.fixed)
    hub = int(nodes[fixed[0], 0]) if len(fixed) else 0
    # All fixed nodes are one: tie them to the first with links of length 0 both ways.
    tied = nodes[fixed].reshape(-1)
    free = ~constraints.fixed
    heads = np.concatenate(
        [
            target,
            nodes[free][:, 1:].ravel(),
            nodes[free][:, :-1].ravel(),
            tied,
            np.full(len(tied), hub),
        ]
    )
    tails = np.concatenate(
        [source, nodes[free][:, :-1].ravel(), nodes[free][:, 1:].ravel(), np.full(len(tied), hub), tied]
    )
    zero = np.zeros(2 * len(tied), np.int64)
    weights = np.concatenate([constraints.bound, up[free].ravel(), down[free].ravel(), zero])
    by_head = np.argsort(heads, kind="stable")
    heads, tails, weights = heads[by_head], tails[by_head], weights[by_head]
    first = np.flatnonzero(np.r_[True, heads[1:] != heads[:-1]])
    segment = np.repeat(np.arange(len(first)), np.diff(np.r_[first, len(heads)]))
    predecessor = np.full(epochs * windows, -1, dtype=np.int64)  # index of an edge
    distance = np.minimum(start, UNBOUNDED)
    for round_number in range(1, 8 * epochs * windows + 64):
        reached = distance[tails] + weights
        best = np.minimum.reduceat(reached, first)
        better = best < distance[heads[first]]
        # Of equally good edges the first, so that the answer does not depend on chance.
        hit = np.flatnonzero((reached == best[segment]) & better[segment])
        if not len(hit):
            break
        _, unique = np.unique(heads[hit], return_index=True)
        hit = hit[unique]
        predecessor[heads[hit]] = hit
        distance[heads[hit]] = reached[hit]
        if round_number % 8 == 0:
            cycle = _closed(predecessor, tails)
            if cycle is not None:
                edge = predecessor[cycle]
                original = by_head[edge]
                rows = original[original < len(target)]
                return InfeasibleError(rows, cycle, int(-weights[edge].sum()))
    raise AssertionError("Bellman-Ford neither converged nor closed a cycle")


def _closed(predecessor: Int, tails: Int) -> Int | None:
    """Returns the nodes of one cycle of the predecessor graph, or None."""
    parent = np.where(predecessor >= 0, tails[np.maximum(predecessor, 0)], -1)
    jump = np.r_[parent, -1]  # index -1 stays -1
    for _ in range(len(parent).bit_length()):
        jump = jump[jump]
        jump[-1] = -1
    on_cycle = jump[:-1][jump[:-1] >= 0]
    if not len(on_cycle):
        return None
    start = int(on_cycle.min())
    walk = [start]
    while parent[walk[-1]] != start:
        walk.append(int(parent[walk[-1]]))
    return np.array(walk, dtype=np.int64)
