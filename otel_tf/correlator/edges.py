"""Happened-before edges: from parents, links and collectives (`sql/edges.sql` says which are true)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from otel_tf.correlator.columns import ROLE_COLLECTIVE, ROLE_RECV, Columns, Int, integers

if TYPE_CHECKING:
    from otel_tf.correlator.engines.duckdb import Engine

__all__ = [
    "COLLECTIVE",
    "KINDS",
    "LINK",
    "NESTED",
    "Barriers",
    "Edges",
    "Events",
    "barrier_pairs",
    "barriers",
    "causal_edges",
    "event_type",
    "waited_for",
    "with_barriers",
]

#: Names of the edge kinds, by code; the codes of `sql/edges.sql`.
KINDS = ("nested", "request", "response", "context", "link", "collective")
NESTED, LINK, COLLECTIVE = 0, 4, 5
#: Spans whose join should fit into memory at once.
_PART = 1 << 25
#: How many of a barrier's last entrants are told as pairs with all who left.
_LAST_FEW = 8


#: Numbers of events: int32 as long as that is enough.
Events = npt.NDArray[np.signedinteger[Any]]


@dataclasses.dataclass(frozen=True)
class Edges:
    """Happened-before between events: corrected(dst) − corrected(src) ≥ min_ns ≥ 1; arrays (E,)."""

    src: Events
    dst: Events
    min_ns: npt.NDArray[np.signedinteger[Any]]
    kind: npt.NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.src)

    def take(self, index: npt.NDArray[Any]) -> Edges:
        """Returns the edges at ``index``."""
        return Edges(self.src[index], self.dst[index], self.min_ns[index], self.kind[index])


@dataclasses.dataclass(frozen=True)
class Barriers:
    """Collectives met by several timelines: member i of all is span ``row[i]`` at barrier ``number[i]``.

    Arrays (members,), sorted by ``number``. Barrier b is the virtual event ``2·N + b``.
    """

    number: Int
    row: Int
    count: int


def causal_edges(columns: Columns, local: Int, links: pa.Table, engine: Engine) -> Edges:
    """Returns the edges from parents, children and links, in a fixed order.

    Args:
        columns: The spans.
        local: Local time of every event (2N,), ns.
        links: Rows of `tables.LINKS`.
        engine: Runs `sql/edges.sql` and `sql/links.sql`.
    """
    parent, start_kind, end_kind, linked = _joined(columns, links, engine)
    begun, ended = np.flatnonzero(start_kind >= 0), np.flatnonzero(end_kind >= 0)
    # A child that ended before its parent on the same timeline was waited for; another was not. In one tick
    # nothing is known: were it waited for, corrections that make one tick of two would make a cause.
    late = (end_kind[ended] == NESTED) & (local[2 * ended + 1] >= local[2 * parent[ended] + 1])
    ended = ended[~late]
    src = [2 * parent[begun], 2 * ended + 1, linked[0]]
    dst = [2 * begun, 2 * parent[ended] + 1, linked[1]]
    kind = [start_kind[begun], end_kind[ended], np.full(len(linked[0]), LINK, dtype=np.int8)]
    source = np.concatenate(src).astype(event_type(columns.count), copy=False)
    return Edges(
        source,
        np.concatenate(dst).astype(source.dtype, copy=False),
        np.ones(len(source), np.int8),
        np.concatenate(kind),
    )


def event_type(spans: int) -> type[np.signedinteger[Any]]:
    """Returns the type for numbers of events, half as wide where that is enough."""
    return np.int32 if spans < 1 << 29 else np.int64


def _joined(
    columns: Columns, links: pa.Table, engine: Engine
) -> tuple[Int, npt.NDArray[np.int8], npt.NDArray[np.int8], tuple[Int, Int]]:
    """Returns each span's parent and the kinds of the edges with it, −1 for none, and the links' edges.

    Many spans are joined in parts, by trace: parents and children share theirs.
    """
    parent = np.full(columns.count, -1, dtype=event_type(columns.count))
    start_kind = np.full(columns.count, -1, dtype=np.int8)
    end_kind = np.full(columns.count, -1, dtype=np.int8)
    sources, targets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    parts = 1 << (columns.count // _PART).bit_length()
    trace = columns.trace_lo
    part_of = (trace & (parts - 1)).astype(np.int16)
    part_of_link = integers(links["trace_lo"]) & (parts - 1)
    ids = {"trace_hi": columns.trace_hi, "trace_lo": trace, "span_id": columns.span_id}
    ids["parent_id"] = columns.parent_id
    told = {
        "kind": columns.kind,
        "failed": columns.failed,
        "role": columns.role,
        "timeline": columns.timeline,
    }
    for part in range(parts):
        spans = {**ids, **told, "row": np.arange(columns.count, dtype=parent.dtype)}
        if parts > 1:
            row = np.flatnonzero(part_of == part)
            spans = {name: column[row] for name, column in spans.items()}
        found = engine.query("edges", spans=spans)
        # By row of the child, of which there is one each: an order that no engine's threads can change.
        parent[found["child"]] = found["parent"]
        start_kind[found["child"]], end_kind[found["child"]] = found["start_kind"], found["end_kind"]
        here = np.flatnonzero(part_of_link == part)
        if len(here):
            linked = engine.query("links", spans=spans, links=links.take(pa.array(here)))
            sources.append(linked["linked"])
            targets.append(linked["linking"])
    source, target = np.concatenate(sources), np.concatenate(targets)
    order = np.lexsort((target, source))
    source, target = source[order], target[order]
    # What is linked had begun; a receive may wait for its send, so there only the end comes after it.
    return parent, start_kind, end_kind, (2 * source, 2 * target + (columns.role[target] == ROLE_RECV))


def waited_for(edges: Edges, local: Int) -> tuple[Edges, Int]:
    """Returns the edges with those from children's ends to their parents' judged again by ``local``.

    Also returns where every edge went, −1 for those that are gone.
    """
    nested = edges.kind == NESTED
    ends = nested & (edges.dst & 1 == 1)
    stay = np.flatnonzero(~ends)
    family = np.flatnonzero(nested & ~ends)
    parent, child = edges.src[family] + 1, edges.dst[family] + 1
    waited = local[child] < local[parent]
    number = np.full(len(edges), -1, dtype=np.int64)
    number[stay] = np.arange(len(stay))
    kept = edges.take(stay)
    parent, child = parent[waited], child[waited]
    again = Edges(
        np.concatenate([kept.src, child]),
        np.concatenate([kept.dst, parent]),
        np.concatenate([kept.min_ns, np.ones(len(child), np.int8)]),
        np.concatenate([kept.kind, np.full(len(child), NESTED, np.int8)]),
    )
    return again, number


def barriers(columns: Columns) -> Barriers:
    """Returns the collectives that at least two timelines entered.

    Spans of one (group, instance) on different timelines are one barrier. Where a timeline met the same
    pair more than once, the n-th meeting of each within one trace (one step) is one barrier, so that a
    lost span unpairs one step and not all that follow.
    """
    rows = np.flatnonzero(
        (columns.role == ROLE_COLLECTIVE) & (columns.group_key >= 0) & (columns.instance_key >= 0)
    )
    if not len(rows):
        return Barriers(np.zeros(0, np.int64), np.zeros(0, np.int64), 0)
    group, instance = columns.group_key[rows], columns.instance_key[rows]
    timeline = columns.timeline[rows].astype(np.int64)
    key = _dense(group, instance)
    per_timeline = _dense(key, timeline)
    repeated = np.bincount(per_timeline)[per_timeline] > 1
    again = np.zeros(int(key.max()) + 1, dtype=bool)
    again[key[repeated]] = True
    by_trace = again[key]
    hi = np.where(by_trace, columns.trace_hi[rows], 0)
    lo = np.where(by_trace, columns.trace_lo[rows], 0)
    key = _dense(key, hi, lo)
    occurrence = _occurrence(_dense(key, timeline), columns.start_ns[rows], columns.span_id[rows])
    key = _dense(key, occurrence)
    # One timeline alone is no barrier.
    members = np.bincount(key)
    keep = members[key] > 1
    number = _dense(key[keep]) if keep.any() else np.zeros(0, np.int64)
    order = np.lexsort((timeline[keep], number))
    return Barriers(number[order], rows[keep][order], int(number.max()) + 1 if len(number) else 0)


def with_barriers(edges: Edges, met: Barriers, spans: int) -> Edges:
    """Returns ``edges`` with enter → barrier → leave added: 2 edges a member, not one for every pair."""
    if not met.count:
        return edges
    virtual = 2 * spans + met.number
    ones = np.ones(2 * len(virtual), dtype=np.int8)
    return Edges(
        np.concatenate([edges.src, 2 * met.row, virtual]),
        np.concatenate([edges.dst, virtual, 2 * met.row + 1]),
        np.concatenate([edges.min_ns, ones]),
        np.concatenate([edges.kind, np.full(len(ones), COLLECTIVE, np.int8)]),
    )


def barrier_pairs(met: Barriers, duration_ns: Int) -> tuple[Int, Int, Int]:
    """Returns (start event, end event, barrier) of pairs of members: who entered before whom left.

    Not all ordered pairs of many members, but those that say most: everybody left after the last few had
    entered, and the last left after everybody had. (Were it only the last, a straggler that always is
    would leave all others without a close bound.) The last ones are those that were inside the shortest,
    which takes no clocks to tell.

    Args:
        met: The barriers.
        duration_ns: How long each member was inside (members,).
    """
    size = np.bincount(met.number, minlength=met.count)
    first = np.cumsum(size) - size
    order = np.lexsort((np.arange(len(met.row)), duration_ns, met.number))
    everybody = np.arange(len(met.row))
    enter, leave = [everybody], [order[first][met.number]]
    for rank in range(_LAST_FEW):
        some = everybody[size[met.number] > rank]
        enter.append(order[first[met.number[some]] + rank])
        leave.append(some)
    entered, left = np.concatenate(enter), np.concatenate(leave)
    apart = entered != left
    # The last one's own pairs came in both ways.
    entered, left = np.divmod(np.unique(entered[apart] * len(met.row) + left[apart]), max(len(met.row), 1))
    return 2 * met.row[entered], 2 * met.row[left] + 1, met.number[entered]


def _dense(*keys: Int) -> Int:
    """Returns the rank of each row's tuple of keys among the distinct tuples."""
    order = np.lexsort(keys[::-1])
    change = np.zeros(len(order), dtype=bool)
    for key in keys:
        change[1:] |= key[order][1:] != key[order][:-1]
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.cumsum(change)
    return rank


def _occurrence(group: Int, start: Int, tie: Int) -> Int:
    """Returns how many rows of the same group start before each row."""
    order = np.lexsort((tie, start, group))
    first = np.flatnonzero(np.r_[True, group[order][1:] != group[order][:-1]])
    length = np.diff(np.r_[first, len(order)])
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order)) - np.repeat(first, length)
    return number
