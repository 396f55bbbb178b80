"""The arithmetic of logical traces: who is whose child, which spans share a trace, where bars are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "CONSUMER",
    "code_of",
    "codes",
    "distinct",
    "parent_rows",
    "part_numbers",
    "rows_of",
    "steps_with_inheritance",
    "times",
    "unique_ids",
    "window_size",
    "without_cycles",
]

Int = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: OTLP's SpanKind of a span that may end after its parent, which did not wait for it.
CONSUMER = 5

#: Nobody nests spans deeper than that; what does is bad data.
_DEEPEST = 256


def codes(column: Any) -> tuple[Int, list[Any]]:
    """Returns a dictionary-encoded column as indices (-1 for null) and its names."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        return np.empty(0, np.int64), [""]
    return array.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(
        np.int64
    ), array.dictionary.to_pylist()


def code_of(names: list[Any], name: str) -> int:
    """Returns the index of a name; for one that is not there, an index that no row has."""
    return names.index(name) if name in names else -2


def distinct(*keys: Int) -> tuple[Int, Int]:
    """Returns the first row of each distinct tuple, tuples ascending, and each row's tuple number."""
    order = np.lexsort(keys[::-1])
    new = np.zeros(len(order), np.bool_)
    new[:1] = True
    for key in keys:
        new[1:] |= key[order][1:] != key[order][:-1]
    number = np.empty(len(order), np.int64)
    number[order] = np.cumsum(new) - 1
    # lexsort is stable: the first row of a run of equals is the first of all.
    return order[new], number


def _mixed(high: Int, low: Int, span: Int) -> npt.NDArray[np.uint64]:
    """Returns one word a span; different ids give different words almost always, so check the ids too."""
    words = [word.astype(np.uint64) for word in (high, low, span)]
    return words[0] * np.uint64(0x9E3779B97F4A7C15) ^ words[1] * np.uint64(0xC2B2AE3D27D4EB4F) ^ words[2]


def rows_of(spans: pa.Table, high: Int, low: Int, span: Int) -> Int:
    """Returns the row in ``spans`` that has these ids; -1 for none."""
    own = [spans[name].to_numpy() for name in ("trace_hi", "trace_lo", "span_id")]
    if not len(own[0]) or not len(span):
        return np.full(len(span), -1, np.int64)
    # A hash table: in random order, binary searches cost five times as much.
    found = pc.index_in(pa.array(_mixed(high, low, span)), value_set=pa.array(_mixed(*own)))
    row = found.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    there = found.is_valid().to_numpy(zero_copy_only=False) & (span != 0)
    same = (own[0][row] == high) & (own[1][row] == low) & (own[2][row] == span)
    return np.where(there & same, row, -1)


def parent_rows(spans: pa.Table) -> Int:
    """Returns the row of each span's parent; -1 where it has none or it is not here."""
    return rows_of(spans, *(spans[name].to_numpy() for name in ("trace_hi", "trace_lo", "parent_id")))


def without_cycles(parent: Int) -> Int:
    """Returns ``parent`` with -1 for spans that are, or hang below, their own ancestors."""
    ancestor = parent.copy()
    # Pointer jumping: after k rounds it has gone 2^k generations up.
    for _ in range(_DEEPEST.bit_length()):
        above = ancestor >= 0
        if not above.any():
            return parent
        ancestor[above] = ancestor[ancestor[above]]
    return np.where(ancestor >= 0, -1, parent)


def steps_with_inheritance(spans: pa.Table, parent: Int) -> Int:
    """Returns the step of each span: its own, its nearest ancestor's, or its trace's only one; else -1."""
    step: Int = spans["global_step"].combine_chunks().fill_null(-1).to_numpy(zero_copy_only=False).copy()
    step[step < 0] = -1
    parent = without_cycles(parent)
    ancestor = parent.copy()
    while (wanting := np.flatnonzero((step < 0) & (ancestor >= 0))).size:
        step[wanting] = step[ancestor[wanting]]
        ancestor[wanting] = parent[ancestor[wanting]]
    _, trace = distinct(spans["trace_hi"].to_numpy(), spans["trace_lo"].to_numpy())
    there = step >= 0
    lowest = np.full(int(trace.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    highest = np.full(len(lowest), -1)
    np.minimum.at(lowest, trace[there], step[there])
    np.maximum.at(highest, trace[there], step[there])
    only = (lowest == highest)[trace] & ~there
    step[only] = lowest[trace[only]]
    return step


def window_size(step: Int, most: int) -> int:
    """Returns the most steps a window can have with no more than ``most`` spans in each: 1, 2, 5, 10, ….

    Windows begin at multiples of their size, so that a second look at a run makes the same ones.
    """
    there = step[step >= 0]
    last = int(there.max(initial=0))
    best = 1
    for size in (digit * 10**exponent for exponent in range(18) for digit in (2, 5, 10)):
        if best > last or int(np.unique(there // size, return_counts=True)[1].max(initial=0)) > most:
            break
        best = size
    return best


def part_numbers(kind: Int, key: Int, most: int) -> Int:
    """Returns 0 for the first ``most`` rows of a key, 1 for the next, and so on."""
    _, number = distinct(kind, key)
    order = np.argsort(number, kind="stable")
    counts = np.bincount(number)
    firsts = np.concatenate([[0], np.cumsum(counts)[:-1]]) if len(counts) else np.empty(0, np.int64)
    part = np.empty(len(number), np.int64)
    part[order] = (np.arange(len(number)) - firsts[number[order]]) // most if len(number) else 0
    return part


def unique_ids(group: Int, span_id: Int) -> Int:
    """Returns span ids that are unique in their trace: traces put together may share some."""
    result = span_id.copy()
    while True:
        first, _ = distinct(group, result)
        again = np.ones(len(result), np.bool_)
        again[first] = False
        if not again.any():
            return result
        # Any odd constant: a repeated id moves on, the same way every time.
        result[again] += np.int64(0x1D8E4E27C47D124F)
        result[again & (result == 0)] = 1


def _levels(parent: Int) -> list[Int]:
    """Returns the rows by generation, roots first."""
    depth = np.zeros(len(parent), np.int64)
    ancestor = parent.copy()
    while (above := np.flatnonzero(ancestor >= 0)).size:
        depth[above] += 1
        ancestor[above] = parent[ancestor[above]]
    order = np.argsort(depth, kind="stable")
    return np.split(order, np.cumsum(np.bincount(depth))[:-1]) if len(parent) else []


def times(start_ns: Int, end_ns: Int, parent: Int, group: Int, waited_for: Mask) -> tuple[Int, Int]:
    """Returns the times to show, ns: siblings in the order of their rows, children inside their parents.

    A start moves only if its whole microsecond is not after the one of the sibling before, or lies
    before its parent's. An end moves only to enclose the children that were waited for, and to make the
    duration whole microseconds: Jaeger cuts start and duration down to those, so that a child might end
    after its parent.

    Args:
        start_ns: Corrected starts.
        end_ns: Corrected ends.
        parent: Row of the parent or -1; without cycles.
        group: Number of the trace; spans without a parent are siblings within it.
        waited_for: Whether the parent, if any, ended after the span did.
    """
    start, end = start_ns.copy(), end_ns.copy()
    levels = _levels(parent)
    for level in levels[1:2]:
        # Of a step that many processes took, the root is only the chief's, or was added.
        np.minimum.at(start, parent[level], start[level])
    for level in levels:
        family = np.where(parent[level] >= 0, parent[level], len(parent) + group[level])
        _, number = distinct(family)
        rank = np.lexsort([level, number])
        rows, number = level[rank], number[rank]
        earliest = np.where(parent[rows] >= 0, start[parent[rows]], start[rows])
        moved = np.maximum(start[rows], earliest)
        spaced = _strictly_rising(moved // 1000, number)
        start[rows] = np.where(spaced > moved // 1000, spaced * 1000, moved)
    end = np.maximum(end, start)
    for level in levels[::-1]:
        end[level] = start[level] - (start[level] - end[level]) // 1000 * 1000
        inside = level[waited_for[level] & (parent[level] >= 0)]
        np.maximum.at(end, parent[inside], end[inside])
    return start, end


def _strictly_rising(values: Int, family: Int) -> Int:
    """Returns the least values ≥ ``values`` that rise by at least 1 within each family (rows by family)."""
    if not len(values):
        return values
    place = np.arange(len(values))
    base = int(values.min())
    flat = values - base - place
    # One running maximum for all families: each is lifted above the ones before.
    span = int(flat.max() - flat.min()) + 1
    lifted = np.maximum.accumulate(flat + family * span)
    return lifted - family * span + place + base
