"""What others do about clocks, to be measured against: each returns a time for every event, ns (2N,)."""

from __future__ import annotations

import numpy as np

from otel_tf.correlator.columns import Columns, Int
from otel_tf.correlator.edges import LINK, Edges

__all__ = ["first_event", "jaeger", "linear_fit", "raw"]


def raw(columns: Columns) -> Int:
    """Returns the wall clocks as they stand."""
    times = np.empty(2 * columns.count, dtype=np.int64)
    times[0::2], times[1::2] = columns.start_ns, columns.end_ns
    return times


def first_event(columns: Columns, reference: int) -> Int:
    """Returns every clock shifted so that all begin together: what trace viewers do who "align" processes.

    Args:
        columns: The spans.
        reference: Domain whose first event the others' are put on.
    """
    times = raw(columns)
    domain = np.repeat(columns.timeline_domain[columns.timeline].astype(np.int64), 2)
    first = np.full(len(columns.domains), np.iinfo(np.int64).max, dtype=np.int64)
    np.minimum.at(first, domain, times)
    aligned: Int = times + (first[reference] - first)[domain]
    return aligned


def jaeger(columns: Columns, edges: Edges) -> Int:
    """Returns times as Jaeger's clock-skew adjuster would show them.

    Per trace, from the root down: a child on another host that does not fit inside its parent is centred
    in it, one longer than its parent is moved to the parent's start if it begins before; its descendants
    on that host move along (jaeger: internal/adjuster/clockskew).

    Args:
        columns: The spans; a domain counts as a host.
        edges: Edges; those between starts tell parents from children.
    """
    times = raw(columns)
    parent = _parents(columns, edges)
    host = columns.timeline_domain[columns.timeline].astype(np.int64)
    moved = np.zeros(columns.count, dtype=np.int64)
    start, end = columns.start_ns, columns.end_ns
    for rows in _levels(parent):
        above = parent[rows]
        from_start, from_end = start[above] + moved[above], end[above] + moved[above]
        own, outer = end[rows] - start[rows], from_end - from_start
        centred = from_start + (outer - own) // 2 - start[rows]
        fits = (start[rows] >= from_start) & (end[rows] <= from_end)
        longer = np.where(start[rows] < from_start, from_start - start[rows], 0)
        skew = np.where(own > outer, longer, np.where(fits, 0, centred))
        moved[rows] = np.where(host[rows] == host[above], moved[above], skew)
    return times + np.repeat(moved, 2)


def linear_fit(columns: Columns, edges: Edges, reference: int) -> Int:
    """Returns each clock corrected by one straight line: least squares over the round trips to the reference.

    Clocks without round trips to the reference itself are fitted to the nearest that has some.

    Args:
        columns: The spans.
        edges: Edges; calls are round trips.
        reference: Domain whose clock is kept.
    """
    times = raw(columns)
    parent = _parents(columns, edges)
    child = np.flatnonzero((parent >= 0) & (columns.kind == 2))
    child = child[columns.kind[parent[child]] == 3]
    domain = columns.timeline_domain[columns.timeline].astype(np.int64)
    caller, callee = domain[parent[child]], domain[child]
    sent, returned = times[2 * parent[child]], times[2 * parent[child] + 1]
    arrived, answered = times[2 * child], times[2 * child + 1]
    # By how much the callee's clock is ahead of the caller's, halving what the round trip took.
    ahead = ((arrived - sent) + (answered - returned)) / 2.0
    # From here on relative to the first time: floats of whole times are 256 ns coarse.
    origin = int(times.min())
    corrected = (times - origin).astype(np.float64)
    done = {reference}
    while True:
        best: tuple[int, int, int] | None = None
        pairs, counts = np.unique(np.stack([caller, callee], axis=1), axis=0, return_counts=True)
        for (a, b), count in zip(pairs.tolist(), counts.tolist(), strict=True):
            if (a in done) != (b in done) and (best is None or count > best[0]):
                best = count, a, b
        if best is None:
            return np.rint(corrected).astype(np.int64) + origin
        _, a, b = best
        new, sign = (b, 1.0) if a in done else (a, -1.0)
        trips = (caller == a) & (callee == b)
        own = (arrived if new == b else sent)[trips] - origin
        other = corrected[2 * (parent[child] if new == b else child)[trips]]
        raw_other = (sent if new == b else arrived)[trips] - origin
        line = np.polyfit(own - own.mean(), sign * ahead[trips] + raw_other - other, min(1, len(own) - 1))
        mine = np.repeat(domain == new, 2)
        corrected[mine] -= np.polyval(line, corrected[mine] - own.mean())
        done.add(new)


def _parents(columns: Columns, edges: Edges) -> Int:
    """Returns the row of every span's parent, -1 for none."""
    parent = np.full(columns.count, -1, dtype=np.int64)
    starts = ((edges.src | edges.dst) & 1 == 0) & (edges.kind < LINK)
    parent[edges.dst[starts] >> 1] = edges.src[starts] >> 1
    return parent


def _levels(parent: Int) -> list[Int]:
    """Returns the rows that have a parent, by depth."""
    levels: list[Int] = []
    known = parent < 0
    while True:
        rows = np.flatnonzero(~known & np.where(parent >= 0, known[parent], False))
        if not len(rows):
            return levels
        levels.append(rows)
        known[rows] = True
