"""From local times to corrected ones: clocks fitted, contradictions set aside, the rest repaired exactly."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from otel_tf.correlator.clocks import Fit, fit
from otel_tf.correlator.clockwork import Clockwork, leaves
from otel_tf.correlator.columns import Columns, Int
from otel_tf.correlator.edges import Barriers, Edges, with_barriers
from otel_tf.correlator.epochs import Cut
from otel_tf.correlator.program import Program
from otel_tf.correlator.repair import CycleError, Layout, repair, smooth
from otel_tf.correlator.solver import UNBOUNDED

if TYPE_CHECKING:
    from otel_tf.correlator.engines.duckdb import Engine

__all__ = ["Adjusted", "Quarantine", "adjust", "busiest_domain", "last_entrants"]

#: From the most to the least trusted kind of edge, by code: what is set aside when a cycle leaves a choice.
_DOUBT = np.array([0, 2, 3, 4, 5, 1])


@dataclasses.dataclass(frozen=True)
class Quarantine:
    """Edges set aside: which, by how much corrected times contradict them (ns), and why; arrays (Q,)."""

    edges: Edges
    excess_ns: Int
    reason: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Adjusted:
    """Corrected times.

    Attributes:
        time_ns: Corrected time of every event and barrier, ns (2N+B,).
        error_ns: Half-width of its bar, `UNBOUNDED` where unknown, ns (2N+B,).
        by_position: Corrected times of events by program position, ns (2N,).
        edges: Accepted edges, barriers included.
        quarantine: Those set aside.
        work: Which epoch each event is in.
        clocks: The epochs' models.
        violations: Accepted edges that the corrected times contradict: 0.
    """

    time_ns: Int
    error_ns: Int
    by_position: Int
    edges: Edges
    quarantine: Quarantine
    work: Clockwork
    clocks: Fit
    violations: int


def busiest_domain(columns: Columns, edges: Edges, met: Barriers) -> int:
    """Returns the domain with the most edges to other domains, of equals the first by name."""
    domain = columns.timeline_domain[columns.timeline]
    real = edges.src < 2 * columns.count
    left, right = domain[edges.src[real] >> 1], domain[edges.dst[real] >> 1]
    other = left != right
    count = np.bincount(left[other], minlength=len(columns.domains))
    count = count + np.bincount(right[other], minlength=len(columns.domains))
    count = count + np.bincount(domain[met.row], minlength=len(columns.domains))
    if not count.any():
        count = np.bincount(domain, minlength=len(columns.domains))
    return int(np.argmax(count)) if len(count) else 0


def adjust(
    columns: Columns,
    cut: Cut,
    edges: Edges,
    met: Barriers,
    program: Program,
    *,
    reference: int,
    engine: Engine,
) -> Adjusted:
    """Corrects all events to the clock of the domain ``reference``.

    Args:
        columns: The spans.
        cut: Events on clocks without steps, and the edges between those.
        edges: Edges between events of spans.
        met: Barriers.
        program: Program order.
        reference: Domain whose clock is kept.
        engine: Runs the statements.
    """
    work, crossing, rows = cut.work, cut.crossing, cut.rows
    if len(cut.outliers):
        crossing, rows = crossing.take(~np.isin(crossing.edge, cut.outliers)), None
    together = leaves(work, met, reference)
    model = fit(crossing, together, work.extents, reference=reference, engine=engine, rows=rows)
    outliers = cut.outliers
    del crossing, cut
    shift, half = model.at(work.epoch, work.local_ns)
    fitted = shift
    fitted += work.local_ns
    base = _in_program_order(fitted, program)
    last, barrier_ns = last_entrants(met, base)
    base, fitted = _extended(base, barrier_ns + 1), _extended(fitted, barrier_ns + 1)
    half += work.unsure_ns
    half += np.repeat(work.resolution_ns[work.timeline], 2)
    np.minimum(half, UNBOUNDED, out=half)
    half = _extended(half, half[last])
    total = with_barriers(edges, met, columns.count) if met.count else edges
    aside = _Aside(total)
    aside.put_numbers(outliers, "contradicts the edges around it", columns.count)
    aside.put_numbers(model.contradictions, "contradicts the clocks that the other edges give", columns.count)
    _set_aside(aside, base, half, work=work, last=last)
    position = _extended(program.position, 2 * columns.count + np.arange(met.count))
    time_ns = _repaired(base, position, program, aside)[position]
    kept = total.take(~aside.mask) if aside.mask.any() else total
    known = _extended(model.known[work.epoch], model.known[work.epoch[last]])
    np.subtract(time_ns, fitted, out=fitted)
    error = np.abs(fitted, out=fitted)
    error += half
    error[~known | (half >= UNBOUNDED)] = UNBOUNDED
    return Adjusted(
        time_ns=time_ns,
        error_ns=error,
        by_position=time_ns[program.event],
        edges=kept,
        quarantine=aside.quarantine(time_ns),
        work=work,
        clocks=model,
        violations=int((time_ns[kept.src] + kept.min_ns > time_ns[kept.dst]).sum()),
    )


class _Aside:
    """Which of the edges are set aside, and why."""

    def __init__(self, edges: Edges) -> None:
        self.edges = edges
        self.mask = np.zeros(len(edges), dtype=bool)
        self._reason: dict[int, str] = {}

    def put(self, index: Int, reason: str) -> None:
        """Sets edges aside; the first reason stays."""
        new = ~self.mask[index]
        self.mask[index] = True
        self._reason.update(dict.fromkeys(index[new].tolist(), reason))

    def put_numbers(self, numbers: Int, reason: str, spans: int) -> None:
        """Sets edges aside by number; −1 − barrier stands for all that follows the barrier."""
        self.put(numbers[numbers >= 0], reason)
        self.put(np.flatnonzero(np.isin(self.edges.src, 2 * spans - 1 - numbers[numbers < 0])), reason)

    def quarantine(self, time_ns: Int) -> Quarantine:
        """Returns what was set aside, and by how much corrected times contradict it."""
        index = np.flatnonzero(self.mask)
        edges = self.edges.take(index)
        excess = np.maximum(time_ns[edges.src] + edges.min_ns - time_ns[edges.dst], 0)
        return Quarantine(edges, excess, tuple(self._reason[i] for i in index.tolist()))


def _extended(values: npt.NDArray[Any], more: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns values of events followed by those of barriers."""
    return np.concatenate([values, more]) if len(more) else values


def _set_aside(aside: _Aside, base: Int, half: Int, *, work: Clockwork, last: Int) -> None:
    """Sets the edges aside that corrected times contradict by more than the clocks' bars explain."""
    edges = aside.edges
    late = base[edges.src] + edges.min_ns - base[edges.dst]
    some = np.flatnonzero((late > 0) & ~aside.mask)
    events = 2 * len(work.timeline)

    def known_as(event: Int) -> Int:
        """The event itself; of a barrier, the last to enter."""
        barrier = event >= events
        return np.where(barrier, last[np.where(barrier, event - events, 0)], event) if len(last) else event

    src, dst = known_as(edges.src[some]), known_as(edges.dst[some])
    # Events on one clock are as far apart as they were read, to within the readings' own blur.
    blur = work.blur(src) + work.unsure_ns[src] + work.blur(dst) + work.unsure_ns[dst] + edges.min_ns[some]
    same_clock = work.epoch[src] == work.epoch[dst]
    allowed = np.where(same_clock, blur, half[src] + half[dst])
    aside.put(some[late[some] > allowed], "contradicts the clocks by more than both error bars")


def _in_program_order(times: Int, program: Program) -> Int:
    """Returns times, raised where they fall along a timeline's program order."""
    laid = times[program.event]
    falls = laid[1:] < laid[:-1]
    falls[program.first[1:-1] - 1] = False
    if not falls.any():
        return times
    for begin, end in zip(program.first[:-1], program.first[1:], strict=True):
        laid[begin:end] = np.maximum.accumulate(laid[begin:end])
    return laid[program.position]


def last_entrants(met: Barriers, times: Int) -> tuple[Int, Int]:
    """Returns, per barrier, the start event that entered last and its time, ns (B,)."""
    entered = times[2 * met.row]
    order = np.lexsort((entered, met.number))
    last = np.searchsorted(met.number[order], np.arange(met.count), side="right") - 1
    chosen = order[last]
    return 2 * met.row[chosen], entered[chosen]


def _repaired(base: Int, position: Int, program: Program, aside: _Aside) -> Int:
    """Returns corrected times by position; edges of cycles are set aside until there is none."""
    laid = np.empty_like(base)
    laid[position] = base
    segment = np.ones(len(base), dtype=bool)
    segment[: len(program.event)] = program.segment_starts()
    total = aside.edges
    while True:
        kept = np.flatnonzero(~aside.mask)
        layout = Layout(segment, position[total.src[kept]], position[total.dst[kept]], total.min_ns[kept])
        try:
            return smooth(laid, repair(laid, layout), layout)
        except CycleError as error:
            cycle = kept[error.edges]
            doubt = _DOUBT[total.kind[cycle]]
            loser = cycle[np.lexsort((total.dst[cycle], total.src[cycle], -doubt))[:1]]
            aside.put(loser, f"closes a cycle of {len(cycle)} edges")
