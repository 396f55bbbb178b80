"""Epochs: every clock cut at its certified steps, and every event put on one side of each cut.

Which of a pair's clocks stepped is a vote: a clock that steps does so against everybody at once; against the
reference it is always the other one. Which events come before the step is certain for those whose edges
certified it; sequence numbers, then readings decide for the rest, and what stays open gets a wider bar.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from otel_tf.correlator import clocks, pieces
from otel_tf.correlator.clockwork import Clockwork, crossings
from otel_tf.correlator.columns import Columns, Int, median
from otel_tf.correlator.crossings import HARD_DRIFT, Crossings
from otel_tf.correlator.edges import Barriers, Edges, waited_for
from otel_tf.correlator.sides import AFTER, BEFORE, Evidence, sides
from otel_tf.correlator.steps import Bounds, Finding, Step, first_step

if TYPE_CHECKING:
    from otel_tf.correlator.engines.duckdb import Engine

__all__ = ["Cut", "split"]

#: More steps than that in one clock are noise in disguise.
_MOST_ROUNDS = 64
#: Edges of a pair on either side of a step that are asked which side they are on.
_VICINITY = 64


@dataclasses.dataclass(frozen=True)
class _Found:
    """What there is to find in one pair of epochs, if ``suspect`` is the one that stepped.

    The crossings of the pair in its partner's order, what a walk along them found, and how fast the pair
    may drift.
    """

    pair: tuple[int, int]
    suspect: int
    order: Int
    finding: Finding
    drift: int

    @property
    def step(self) -> Step:
        """The step, where there is one."""
        assert self.finding.step is not None
        return self.finding.step


@dataclasses.dataclass(frozen=True)
class Cut:
    """Clocks without steps, and the edges between them.

    Attributes:
        work: Events on clocks without steps.
        edges: Their edges.
        crossing: Edges between the clocks.
        outliers: Edges that contradict those around them: indices, or −1 − barrier.
        rows: Bounds of ``crossing`` by windows, if they are known already.
    """

    work: Clockwork
    edges: Edges
    crossing: Crossings
    outliers: npt.NDArray[np.signedinteger[Any]]
    rows: dict[str, Int] | None

    def judged_again(self) -> Cut:
        """Returns the same, with which children were waited for told by the readings without steps."""
        edges, number = waited_for(self.edges, self.work.local_ns)

        def moved(edge: npt.NDArray[np.signedinteger[Any]]) -> npt.NDArray[np.signedinteger[Any]]:
            return np.where(edge >= 0, number[np.maximum(edge, 0)], edge).astype(edge.dtype)

        crossing = dataclasses.replace(self.crossing, edge=moved(self.crossing.edge))
        return Cut(self.work, edges, crossing, moved(self.outliers), self.rows)


def split(
    columns: Columns,
    work: Clockwork,
    edges: Edges,
    met: Barriers,
    *,
    reference: int,
    engine: Engine,
) -> Cut:
    """Returns ``work`` with its clocks cut at every certified step, and the edges that are outliers.

    Args:
        columns: The spans.
        work: Events on whole clocks: epoch = domain.
        edges: Edges between them.
        met: Barriers.
        reference: Domain that is kept: a step against it is the other's.
        engine: Runs the statements.
    """
    settled: dict[tuple[int, int], list[_Found]] = {}
    for _ in range(_MOST_ROUNDS):
        crossing = crossings(work, edges, met)
        if not len(crossing.edge):
            break
        flat = _flattened(crossing, work, reference, engine)
        found = _find(flat, reference, settled)
        stepped = [item for item in found if item.finding.step is not None]
        cut = work
        guilty = _blame(stepped, flat)
        for epoch, seen in guilty.items():
            cut = _cut(columns, cut, flat, epoch, seen)
        if len(cut.domain) == len(work.domain):
            return Cut(work, edges, crossing, _outliers(found, crossing), flat.rows)
        # Pairs of clocks that did not step need no second walk; but barriers' pairs are chosen by durations,
        # and those have changed.
        settled = {} if met.count else _settled(found, set(guilty))
        work = cut
    return Cut(work, edges, crossings(work, edges, met), np.zeros(0, np.int64), None)


def _settled(found: list[_Found], guilty: set[int]) -> dict[tuple[int, int], list[_Found]]:
    """Returns what was found in pairs without a step and without a clock that is being cut."""
    settled: dict[tuple[int, int], list[_Found]] = {}
    stepped = {item.pair for item in found if item.finding.step is not None}
    for item in found:
        if item.pair not in stepped and not guilty & set(item.pair):
            settled.setdefault(item.pair, []).append(item)
    return settled


def _outliers(found: list[_Found], crossing: Crossings) -> npt.NDArray[np.signedinteger[Any]]:
    """Returns the edges that contradict those around them, by the order that leaves fewest of them."""
    best: dict[tuple[int, int], _Found] = {}
    for item in found:
        known = best.setdefault(item.pair, item)
        if item.finding.contradictions < known.finding.contradictions:
            best[item.pair] = item
    rows = [item.order[item.finding.outliers] for item in best.values()]
    return np.unique(crossing.edge[np.concatenate(rows)]) if rows else np.zeros(0, np.int64)


@dataclasses.dataclass(frozen=True)
class _Flat(Crossings):
    """Crossings with every clock's own drift taken off its readings."""

    work: Clockwork
    slope: Int
    doubt: Int
    rows: dict[str, Int]


def _flattened(crossing: Crossings, work: Clockwork, reference: int, engine: Engine) -> _Flat:
    """Returns the crossings as if no clock drifted, as far as that can be told while clocks may step."""
    rough, rows = clocks.rough_slopes(crossing, work.extents, reference, engine)
    columns = {field.name: getattr(crossing, field.name) for field in dataclasses.fields(crossing)}
    for end in ("src", "dst"):
        columns[f"{end}_ns"] = _flat(work, rough.slope, columns[f"{end}_epoch"], columns[f"{end}_ns"])
    return _Flat(**columns, work=work, slope=rough.slope, doubt=rough.doubt, rows=rows)


def _flat(work: Clockwork, slope: Int, epoch: npt.NDArray[np.int32], local_ns: Int) -> Int:
    """Returns readings with their clock's own drift taken off, ns."""
    if not slope.any():
        return local_ns
    first, flat = work.extents.first_ns, np.empty_like(local_ns)

    def fill(piece: slice) -> None:
        since = np.minimum(local_ns[piece] - first[epoch[piece]], 1 << 53)
        flat[piece] = local_ns[piece] + ((since >> 16) * slope[epoch[piece]] >> 14)

    pieces.each(len(flat), fill)
    return flat


def _find(crossing: _Flat, reference: int, settled: dict[tuple[int, int], list[_Found]]) -> list[_Found]:
    """Walks along the edges of every pair of epochs that is not settled, once for each suspect of the two."""
    count, clocks_there = len(crossing.edge), len(crossing.doubt)
    upward = np.empty(count, dtype=np.bool_)
    value, at_low, at_high = (np.empty(count, dtype=np.int64) for _ in range(3))
    # Two bytes are sorted by counting, eight by comparing.
    pair = np.empty(count, dtype=np.int16 if clocks_there**2 < 1 << 15 else np.int64)

    def fill(piece: slice) -> None:
        src, dst = crossing.src_epoch[piece], crossing.dst_epoch[piece]
        up = upward[piece] = src < dst
        # shift(low) − shift(high): an edge from low to high bounds it from above, one back from below.
        gap = crossing.dst_ns[piece] - crossing.src_ns[piece] - crossing.min_ns[piece]
        value[piece] = np.where(up, gap, -gap)
        at_low[piece] = np.where(up, crossing.src_ns[piece], crossing.dst_ns[piece])
        at_high[piece] = np.where(up, crossing.dst_ns[piece], crossing.src_ns[piece])
        pair[piece] = np.minimum(src, dst) * pair.dtype.type(clocks_there) + np.maximum(src, dst)

    pieces.each(count, fill)
    by_pair = np.argsort(pair, kind="stable")
    in_order = pair[by_pair]
    bounds = np.flatnonzero(in_order[1:] != in_order[:-1]) + 1

    def walk(rows: Int) -> list[_Found]:
        a, b = divmod(int(pair[rows[0]]), clocks_there)
        if (a, b) in settled:
            return settled[a, b]
        found = []
        drift = HARD_DRIFT * (1 if reference in (a, b) else 2)
        drift += int(crossing.doubt[a] + crossing.doubt[b])
        for suspect, at in ((a, at_high), (b, at_low)):
            if suspect == reference:
                continue
            # A clock that steps backwards makes its own readings a wrong order: the partner's are used.
            order = rows[_by_time(at[rows], upward[rows], value[rows])]
            finding = first_step(Bounds(upward[order], value[order], at[order], drift))
            found.append(_Found((a, b), suspect, order, finding, drift))
        return found

    return list(itertools.chain.from_iterable(pieces.mapped(walk, np.split(by_pair, bounds))))


def _by_time(at: Int, upper: npt.NDArray[np.bool_], value: Int) -> Int:
    """Returns the order by time; equal times by what else they say, never by the order of the rows."""
    order = np.argsort(at, kind="stable")
    if (np.diff(at[order]) == 0).any():
        order = np.lexsort((value, upper, at))
    return order


def _interval(found: _Found, crossing: _Flat) -> tuple[int, int]:
    """Returns readings of the suspect that enclose its step, the jump itself included."""
    rows = found.order[found.step.before : found.step.after + 1]
    mine = np.where(crossing.src_epoch[rows] == found.suspect, crossing.src_ns[rows], crossing.dst_ns[rows])
    size = abs(found.step.size_ns)
    return int(mine.min()) - size, int(mine.max()) + size


def _blame(found: list[_Found], crossing: _Flat) -> dict[int, list[_Found]]:
    """Returns the epochs that stepped, each with the pairs that certify its first step."""
    intervals = [_interval(item, crossing) for item in found]
    by_suspect: dict[int, list[int]] = {}
    by_pair: dict[tuple[int, int], list[int]] = {}
    for number, item in enumerate(found):
        by_suspect.setdefault(item.suspect, []).append(number)
        by_pair.setdefault(item.pair, []).append(number)

    def together(number: int) -> list[int]:
        begin, end = intervals[number]
        same = by_suspect[found[number].suspect]
        return [other for other in same if intervals[other][0] <= end and intervals[other][1] >= begin]

    def guilt(number: int) -> tuple[int, int, int]:
        return len(together(number)), -found[number].finding.contradictions, found[number].suspect

    guilty = {max(numbers, key=guilt) for numbers in by_pair.values()}
    result = {}
    for epoch, numbers in by_suspect.items():
        mine = [number for number in numbers if number in guilty]
        if mine:
            # One step at a time: the earliest by the clock's own readings, and all that saw the same one.
            earliest = min(mine, key=lambda number: intervals[number])
            result[epoch] = [found[number] for number in together(earliest) if number in guilty]
    return result


def _cut(columns: Columns, work: Clockwork, crossing: _Flat, epoch: int, seen: list[_Found]) -> Clockwork:
    """Returns ``work`` with ``epoch`` cut in two where the evidence says."""
    evidence = [_evidence(item, crossing, epoch) for item in seen]
    # D = shift(a) − shift(b), and a shift falls when its clock jumps forward.
    jumps = [-item.step.size_ns if item.pair[0] == epoch else item.step.size_ns for item in seen]
    size = median(np.array(jumps, dtype=np.int64))
    events = np.flatnonzero(work.epoch == epoch)
    reading = _flat(
        crossing.work, crossing.slope, crossing.work.epoch[events], crossing.work.local_ns[events]
    )
    side, unsure = sides(columns, events, reading, evidence, size)
    after = events[side == AFTER]
    before = events[side == BEFORE]
    if not len(after) or not len(before) or size == 0:
        return work
    number, domain = len(work.domain), int(work.domain[epoch])
    new_epoch, local = work.epoch.copy(), work.local_ns.copy()
    new_epoch[after] = number
    rank = np.append(work.rank, work.rank[epoch] + 1)
    rank[:-1][(work.domain == domain) & (work.rank > work.rank[epoch])] += 1
    # The size is known to within a round trip; readings taken out by it must not run into each other.
    surely = [events[(side == which) & ~unsure] for which in (BEFORE, AFTER)]
    overlap = int(local[surely[0]].max()) - int(local[surely[1]].min()) + size if all(map(len, surely)) else 0
    taken = size - max(overlap, 0)
    later = (rank > work.rank[epoch]) & (np.append(work.domain, domain) == domain)
    local[later[new_epoch]] -= taken
    taken_ns = np.append(work.taken_ns, work.taken_ns[epoch]) + np.where(later, taken, 0)
    doubted = np.union1d(work.unsure_event, events[unsure])
    doubt = work.unsure(doubted) + np.where(np.isin(doubted, events[unsure]), abs(size), 0)
    return Clockwork(
        new_epoch,
        local,
        work.timeline,
        work.resolution_ns,
        doubted,
        doubt,
        np.append(work.domain, domain),
        rank,
        taken_ns,
        work.steps,
    )


def _evidence(item: _Found, crossing: _Flat, epoch: int) -> Evidence:
    """Returns what the partner in a pair says about ``epoch``, which stepped."""
    around = np.arange(
        max(item.step.before - _VICINITY, 0), min(item.step.after + _VICINITY, len(item.order))
    )
    rows = item.order[around]
    to_it = crossing.dst_epoch[rows] == epoch
    old, new = item.step.old_ns, item.step.new_ns
    # D = shift(a) − shift(b); partner − clock = shift(clock) − shift(partner).
    if item.pair[0] != epoch:
        old, new = (-old[1], -old[0]), (-new[1], -new[0])
    witness = item.order[item.step.after]
    return Evidence(
        event=np.where(to_it, crossing.dst[rows], crossing.src[rows]),
        no_earlier=to_it,
        stray=np.isin(around, item.finding.outliers),
        at_ns=np.where(
            to_it,
            crossing.src_ns[rows] + crossing.min_ns[rows],
            crossing.dst_ns[rows] - crossing.min_ns[rows],
        ),
        before_ns=old,
        after_ns=new,
        drift=item.drift,
        pivot_reading_ns=int(
            crossing.src_ns[witness] if crossing.src_epoch[witness] == epoch else crossing.dst_ns[witness]
        ),
    )
