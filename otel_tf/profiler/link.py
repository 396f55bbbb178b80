"""Which span each run of a function belongs to.

In this order, the surest first:

``traceme``  the call lay in a TraceMe that carries the span's ids;
``stamps``   the worker's own clock stamped the step inside the graph, and the profile has the same clock;
``dispatch`` the n-th dispatch to a worker is the n-th run on it: two sequences, laid against each other where
             one difference of clocks puts each run inside its dispatch;
``step_id``  the executor's step id is the same on all hosts of one call.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from otel_tf import ids
from otel_tf.profiler._keys import match
from otel_tf.profiler.combine import Whole
from otel_tf.profiler.executor import NONE
from otel_tf.profiler.markers import signed
from otel_tf.profiler.run import Run, RunSteps
from otel_tf.profiler.sequence import aligned

__all__ = ["HOW", "Links", "is_server", "link"]

Int = npt.NDArray[np.int64]

#: How a run was linked, by code.
HOW = ("", "traceme", "stamps", "dispatch", "step_id")
_TRACEME, _STAMPS, _DISPATCH, _STEP_ID = 1, 2, 3, 4
#: A stamp is float64 seconds, and not read by the code that records the event.
_TOLERANCE_NS = 5_000
#: How much of a step lies in its run, or the other way round.
_INSIDE = 0.8


@dataclasses.dataclass
class Links:
    """The span of each run of a function (S,). Ids are int64, as in the correlator.

    Attributes:
        how: Index into `HOW`; 0 where the span is not the program's, but made here.
        trace_hi, trace_lo: Its trace.
        step_span: The step's span.
        parent: What ops hang under: the step's span, or that of a region of eager code in it.
        global_step: -1 where there is none.
        worker: Whose step it is; "" where nothing says it.
    """

    how: Int
    trace_hi: Int
    trace_lo: Int
    step_span: Int
    parent: Int
    global_step: Int
    worker: npt.NDArray[np.object_]

    @staticmethod
    def none(count: int) -> Links:
        """Returns the links of runs that nothing is known of yet."""
        how, trace_hi, trace_lo, step_span, parent = (np.zeros(count, np.int64) for _ in range(5))
        unknown = np.full(count, -1, np.int64)
        return Links(how, trace_hi, trace_lo, step_span, parent, unknown, np.full(count, "", object))

    def copy(self, to: Int, source: Int, how: int) -> None:
        """Gives the rows ``to`` the spans of the rows ``source``."""
        for field in dataclasses.fields(self):
            column = getattr(self, field.name)
            column[to] = column[source]
        self.how[to] = how


def link(whole: Whole, run: Run) -> Links:
    """Returns the span of each run of a function; names hosts that only their spans name."""
    links = Links.none(len(whole.steps))
    _by_traceme(whole, run, links)
    _name_hosts(whole, run, links)
    _told_by_run(whole, run, links)
    if run.steps is not None:
        _by_stamps(whole, run.steps, links)
        _by_dispatch(whole, run.steps, links)
    _by_coordinator(whole, links)
    _by_step_id(whole, links)
    _called(whole, links)
    _made_here(whole, run, links)
    return links


def _by_traceme(whole: Whole, run: Run, links: Links) -> None:
    steps = whole.steps
    for number, host in enumerate(whole.hosts):
        rows = np.flatnonzero((steps.host == number) & (steps.marker >= 0))
        marks = host.markers
        at = steps.marker[rows]
        links.how[rows] = _TRACEME
        links.trace_hi[rows], links.trace_lo[rows] = marks.trace_hi[at], marks.trace_lo[at]
        links.step_span[rows], links.parent[rows] = marks.step_span[at], marks.span[at]
        links.global_step[rows] = np.where(marks.step_num[at] >= 0, marks.step_num[at], -1)


def _name_hosts(whole: Whole, run: Run, links: Links) -> None:
    """Names the hosts that no address names: by whose spans their TraceMes carry."""
    known = run.steps
    for number, host in enumerate(whole.hosts):
        if host.task:
            continue
        names = [run.process_of_span.get(span, "") for span in host.markers.dispatch.tolist() if span]
        if not any(names) and known is not None:
            mine = links.step_span[(whole.steps.host == number) & (links.how == _TRACEME)]
            at = match((mine,), (known.span,))
            names = known.worker[at[at >= 0]].tolist()
        names = [name for name in names if name]
        if names:
            host.task = max(sorted(set(names)), key=names.count)


def _told_by_run(whole: Whole, run: Run, links: Links) -> None:
    """Takes worker and step of linked runs from the run, else the worker from the host."""
    steps = whole.steps
    linked = np.flatnonzero(links.how == _TRACEME)
    tasks = np.array([host.task for host in whole.hosts], object)
    links.worker[linked] = tasks[steps.host[linked]]
    if run.steps is None:
        return
    at = match((links.step_span[linked], links.trace_lo[linked]), (run.steps.span, run.steps.trace_lo))
    found, rows = at[at >= 0], linked[at >= 0]
    links.worker[rows] = run.steps.worker[found]
    told = run.steps.global_step[found]
    links.global_step[rows] = np.where(told >= 0, told, links.global_step[rows])


def _take(links: Links, rows: Int, known: RunSteps, at: Int, how: int) -> None:
    links.how[rows] = how
    links.trace_hi[rows], links.trace_lo[rows] = known.trace_hi[at], known.trace_lo[at]
    links.step_span[rows] = links.parent[rows] = known.span[at]
    links.global_step[rows] = known.global_step[at]
    links.worker[rows] = known.worker[at]


def _by_stamps(whole: Whole, known: RunSteps, links: Links) -> None:
    """Links runs and steps of one worker, one of which lies in the other by the same clock.

    What was stamped inside the graph lies in its run. Where no run of a host is around a step, the steps are
    their programs' own, around runs. A host with TraceMes has told of its steps: what else ran there
    meanwhile, such as an input pipeline's functions, is none's.
    """
    steps = whole.steps
    own = steps.root == np.arange(len(steps))
    for number, host in enumerate(whole.hosts):
        of = np.flatnonzero((known.worker == host.task) & known.own_clock)
        here = steps.host == number
        rows = np.flatnonzero(here & (links.how == 0) & own)
        told = (links.how[here] == _TRACEME).any()
        if told or not host.absolute or not len(of) or not len(rows):
            continue
        begin, end = steps.start_ns[rows], steps.end_ns[rows]
        first, last = known.start_ns[of], known.end_ns[of]
        for length_of_run in (False, True):
            best, share = np.full(len(rows), -1, np.int64), np.zeros(len(rows))
            middle = np.searchsorted(first, begin, side="right")
            for near in (-2, -1, 0, 1):
                at = middle + near
                inside = (at >= 0) & (at < len(of))
                at = np.where(inside, at, 0)
                common = np.minimum(end + _TOLERANCE_NS, last[at]) - np.maximum(
                    begin - _TOLERANCE_NS, first[at]
                )
                length = end - begin if length_of_run else last[at] - first[at]
                part = np.where(inside, common / np.maximum(length, 1), 0)
                better = part > share
                best[better], share[better] = at[better], part[better]
            good = share >= _INSIDE
            if good.any():
                _take(links, rows[good], known, of[best[good]], _STAMPS)
                break


def _by_dispatch(whole: Whole, known: RunSteps, links: Links) -> None:
    """Links what is left of workers by the order of their dispatches."""
    for number, host in enumerate(whole.hosts):
        of = np.flatnonzero((known.worker == host.task) & ~known.own_clock)
        rows = _unlinked_roots(whole, links, number)
        for row, at in aligned(
            whole.steps.start_ns[rows], whole.steps.end_ns[rows], known.start_ns[of], known.end_ns[of]
        ):
            _take(links, rows[row], known, of[at], _DISPATCH)


def _by_coordinator(whole: Whole, links: Links) -> None:
    """Links what is left of workers by the order of dispatches in a coordinator's profile."""
    tasks = [host.task for host in whole.hosts]
    for host in whole.hosts:
        marks = host.markers
        workers = np.array(marks.worker, object)
        for worker in sorted(set(marks.worker) - {""}):
            of = np.flatnonzero(workers == worker)
            for number in (n for n, task in enumerate(tasks) if task == worker):
                rows = _unlinked_roots(whole, links, number)
                begin, end = marks.start_ps[of] // 1000, marks.end_ps[of] // 1000
                for row, at in aligned(whole.steps.start_ns[rows], whole.steps.end_ns[rows], begin, end):
                    to, source = rows[row], of[at]
                    links.how[to] = _DISPATCH
                    links.trace_hi[to], links.trace_lo[to] = marks.trace_hi[source], marks.trace_lo[source]
                    links.step_span[to] = links.parent[to] = marks.step_span[source]
                    links.global_step[to] = np.where(marks.step_num[source] >= 0, marks.step_num[source], -1)
                    links.worker[to] = worker


def _unlinked_roots(whole: Whole, links: Links, host: int) -> Int:
    """Returns the runs that somebody outside may have called, in the order in which they began."""
    steps = whole.steps
    roots = (steps.host == host) & (links.how == 0) & (steps.function >= 0) & (steps.step_id != NONE)
    rows = np.flatnonzero(roots & (steps.root == np.arange(len(steps))))
    return rows[np.argsort(steps.start_ns[rows], kind="stable")]


def _by_step_id(whole: Whole, links: Links) -> None:
    steps = whole.steps
    linked = np.flatnonzero((links.how > 0) & (steps.step_id != NONE))
    rest = np.flatnonzero((links.how == 0) & (steps.step_id != NONE))
    at = match((steps.step_id[rest],), (steps.step_id[linked],))
    links.copy(rest[at >= 0], linked[at[at >= 0]], _STEP_ID)


def _called(whole: Whole, links: Links) -> None:
    """Links functions that an op of a linked run called."""
    root = whole.steps.root
    rest = np.flatnonzero((links.how == 0) & (links.how[root] > 0))
    links.copy(rest, root[rest], 0)
    links.how[rest] = links.how[root[rest]]


def _made_here(whole: Whole, run: Run, links: Links) -> None:
    """Gives what is left spans of its own, the same whenever the profile is read.

    Of one call on several hosts, the host that ran the function itself, and not a part of it, has the root.
    """
    steps = whole.steps
    rest = np.flatnonzero(links.how == 0)
    tasks = [host.task for host in whole.hosts]
    # Parameter servers last: they run parts.
    rank = np.array([is_server(task) for task in tasks] or [0])[steps.host[rest]]
    order = rest[np.lexsort((steps.host[rest], rank))]
    first = match((steps.root[order],), (steps.root[order],))
    step_ids = steps.step_id[steps.root[order]]
    shared = match((step_ids,), (step_ids,))
    owner = order[np.where(step_ids != NONE, shared, first)]
    made: dict[int, tuple[int, int]] = {}
    for row, own in zip(order.tolist(), owner.tolist(), strict=True):
        if own not in made:
            host = whole.hosts[steps.host[own]]
            named = (
                host.session,
                "profile",
                host.path.name,
                int(steps.step_id[own]),
                int(steps.start_ns[own]),
            )
            made[own] = ids.trace_id(*named), ids.span_id(*named)
        trace, span = made[own]
        links.trace_hi[row], links.trace_lo[row] = signed(trace >> 64), signed(trace & (1 << 64) - 1)
        links.step_span[row] = links.parent[row] = signed(span)
        links.worker[row] = tasks[steps.host[own]]


def is_server(task: str) -> int:
    """Returns 1 for parameter servers, 0 for the others."""
    return int(task.startswith("ps:"))
