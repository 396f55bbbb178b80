"""From local times to corrected ones: clocks fitted, contradictions set aside, the rest repaired exactly."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from otel_tf.correlator import pieces
from otel_tf.correlator.aside import Aside, Quarantine
from otel_tf.correlator.clocks import Fit, fit
from otel_tf.correlator.clockwork import Clockwork, Timekeeping, leaves
from otel_tf.correlator.columns import Columns, Int
from otel_tf.correlator.edges import Barriers, Edges, Events, with_barriers
from otel_tf.correlator.epochs import Cut
from otel_tf.correlator.order import linear_order
from otel_tf.correlator.program import Program, program_order
from otel_tf.correlator.repair import CycleError, Layout, repair, smooth
from otel_tf.correlator.solver import UNBOUNDED

if TYPE_CHECKING:
    from otel_tf.correlator.engines.duckdb import Engine

__all__ = ["Adjusted", "adjust", "busiest_domain", "last_entrants"]


@dataclasses.dataclass(frozen=True)
class Adjusted:
    """Corrected times.

    Attributes:
        time_ns: Corrected time of every event, ns (2N,).
        rank: Rank of every event in the causal order (2N,).
        error_ns: Half-width of the bar of both ends of every span, `UNBOUNDED` where unknown, ns (N,).
        edges: Accepted edges, barriers included.
        quarantine: Those set aside.
        clocks: The epochs.
        model: Their shifts.
        violations: Accepted edges that the corrected times contradict: 0.
    """

    time_ns: Int
    rank: Events
    error_ns: Int
    edges: Edges
    quarantine: Quarantine
    clocks: Timekeeping
    model: Fit
    violations: int


def busiest_domain(columns: Columns, edges: Edges, met: Barriers) -> int:
    """Returns the domain with the most edges to other domains, of equals the first by name."""
    domain = columns.timeline_domain[columns.timeline]

    def ends(piece: slice) -> Int:
        src, dst = edges.src[piece], edges.dst[piece]
        real = src < 2 * columns.count
        left, right = domain[src[real] >> 1], domain[dst[real] >> 1]
        other = left != right
        both = np.concatenate([left[other], right[other]])
        return np.bincount(both, minlength=len(columns.domains))

    count = np.bincount(domain[met.row], minlength=len(columns.domains))
    count = count + sum(pieces.each(len(edges), ends))
    if not count.any():
        count = np.bincount(domain, minlength=len(columns.domains))
    return int(np.argmax(count)) if len(count) else 0


def adjust(
    columns: Columns,
    cut: Cut,
    met: Barriers,
    *,
    reference: int,
    engine: Engine,
) -> Adjusted:
    """Corrects all events to the clock of the domain ``reference``.

    Args:
        columns: The spans.
        cut: Events on clocks without steps, and their edges.
        met: Barriers.
        reference: Domain whose clock is kept.
        engine: Runs the statements.
    """
    work, edges, crossing, rows = cut.work, cut.edges, cut.crossing, cut.rows
    outliers = cut.outliers
    if len(outliers):
        crossing, rows = crossing.take(~np.isin(crossing.edge, outliers)), None
    together = leaves(work, met, reference)
    model = fit(crossing, together, work.extents, reference=reference, engine=engine, rows=rows)
    del crossing, cut
    program = program_order(columns, work.local_ns, edges)
    laid = _by_clocks(work, model, program)
    last, barrier_ns = last_entrants(met, laid[program.position[2 * met.row]])
    aside = Aside(with_barriers(edges, met, columns.count))
    aside.put_numbers(outliers, "contradicts the edges around it", columns.count)
    aside.put_numbers(model.contradictions, "contradicts the clocks that the other edges give", columns.count)
    layout = _layout(aside.edges, program, met.count)
    laid = np.concatenate([laid, barrier_ns + 1]) if met.count else laid
    late = layout.too_soon(laid)
    excess = laid[layout.src[late]] + layout.min_ns[late] - laid[layout.dst[late]]
    wrong = excess > _explained(aside.edges.take(late), work, model, last)
    aside.put(late[wrong], "contradicts the clocks by more than both error bars")
    moved = _repaired(laid, layout, aside, columns)
    del laid
    gone = np.flatnonzero(aside.mask)
    excess = moved[layout.src[gone]] + layout.min_ns[gone] - moved[layout.dst[gone]]
    violations = len(layout.too_soon(moved)) - int((excess > 0).sum())
    del layout
    rank = linear_order(moved[: len(program.event)], program)
    time_ns = moved[program.position]
    del moved
    return Adjusted(
        time_ns=time_ns,
        rank=rank,
        error_ns=_bars(work, model, time_ns),
        edges=aside.kept(),
        quarantine=aside.quarantine(excess),
        clocks=work.summary(),
        model=model,
        violations=violations,
    )


def last_entrants(met: Barriers, entered_ns: Int) -> tuple[Int, Int]:
    """Returns, per barrier, the start event that entered last and its time, ns (B,).

    Args:
        met: The barriers.
        entered_ns: When each member entered, ns (members,).
    """
    order = np.lexsort((entered_ns, met.number))
    chosen = order[np.searchsorted(met.number[order], np.arange(met.count), side="right") - 1]
    return 2 * met.row[chosen], entered_ns[chosen]


def _by_clocks(work: Clockwork, model: Fit, program: Program) -> Int:
    """Returns the times that the clocks' models give, by position, never falling along a timeline (2N,)."""
    laid = np.empty(len(program.event), dtype=np.int64)

    def lay(piece: slice) -> None:
        event = program.event[piece]
        local = work.local_ns[event]
        laid[piece] = local + model.at(work.epoch[event], local)[0]

    pieces.each(len(laid), lay)
    falls = pieces.flatnonzero(len(laid) - 1, lambda piece: laid[1:][piece] < laid[:-1][piece])
    falls = np.setdiff1d(falls, program.first[1:-1] - 1)
    for lane in np.unique(np.searchsorted(program.first, falls, side="right") - 1):
        part = slice(program.first[lane], program.first[lane + 1])
        laid[part] = np.maximum.accumulate(laid[part])
    return laid


def _layout(edges: Edges, program: Program, barriers: int) -> Layout:
    """Returns the edges between positions; barriers come after all events, each on its own."""
    events = len(program.event)
    segment = np.ones(events + barriers, dtype=bool)
    segment[:events] = program.segment_starts()
    position = program.position
    if barriers:
        position = np.concatenate([position, np.arange(events, events + barriers, dtype=position.dtype)])
    return Layout(segment, position[edges.src], position[edges.dst], edges.min_ns)


def _explained(edges: Edges, work: Clockwork, model: Fit, last: Int) -> Int:
    """Returns by how much edges may be contradicted before the clocks' bars cannot explain it, ns."""
    events = 2 * len(work.timeline)

    def event_of(event: Events) -> Events:
        """The event itself; of a barrier, the last to enter."""
        barrier = event >= events
        return np.where(barrier, last[np.where(barrier, event - events, 0)], event) if len(last) else event

    src, dst = event_of(edges.src), event_of(edges.dst)
    blur = work.blur(src) + work.unsure(src) + work.blur(dst) + work.unsure(dst)
    bars = sum(
        np.minimum(model.at(work.epoch[event], work.local_ns[event])[1], UNBOUNDED) for event in (src, dst)
    )
    # Events on one clock are as far apart as they were read, to within the readings' own blur.
    one_clock = work.epoch[src] == work.epoch[dst]
    return np.where(one_clock, blur + edges.min_ns, blur + bars)


def _repaired(laid: Int, layout: Layout, aside: Aside, columns: Columns) -> Int:
    """Returns corrected times by position; edges of cycles are set aside until there is none."""
    while True:
        kept = np.flatnonzero(~aside.mask) if aside.mask.any() else None
        some = layout
        if kept is not None:
            some = Layout(layout.segment, layout.src[kept], layout.dst[kept], layout.min_ns[kept])
        try:
            return smooth(laid, repair(laid, some), some)
        except CycleError as error:
            cycle = error.edges if kept is None else kept[error.edges]
            aside.put_least_trusted(cycle, columns.span_id)


def _bars(work: Clockwork, model: Fit, time_ns: Int) -> Int:
    """Returns the half-width of each span's bar: its clock's, its readings' blur, and its repair (N,)."""
    bars = np.empty(len(work.timeline), dtype=np.int64)

    def measure(span: slice) -> None:
        event = slice(2 * span.start, 2 * span.stop)
        epoch, local = work.epoch[event], work.local_ns[event]
        shift, width = model.at(epoch, local)
        error = width + np.abs(time_ns[event] - local - shift)
        if len(work.unsure_event):
            error += work.unsure(np.arange(event.start, event.stop))
        error[~model.known[epoch] | (width >= UNBOUNDED)] = UNBOUNDED
        bar = np.maximum(error[0::2], error[1::2]) + work.resolution_ns[work.timeline[span]]
        bars[span] = np.minimum(bar, UNBOUNDED)

    pieces.each(len(bars), measure)
    return bars
