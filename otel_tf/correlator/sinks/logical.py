"""The corrected run as traces that Jaeger shows in logical order.

Jaeger sorts siblings by start time in whole microseconds and by nothing else, so the order is told by
times: siblings start at least 1 µs apart, in causal order. A trace is one step of a synchronous run, or a
window of steps of an asynchronous one; spans without any step keep the trace they had. All get new trace
ids, made from the run id and the step, so that writing the same run twice writes the same spans.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from otel_tf import ids, semconv
from otel_tf.correlator.sinks import layout
from otel_tf.correlator.sinks.attributes import attributes_of
from otel_tf.correlator.sinks.flat import Flat
from otel_tf.correlator.sinks.straggler import straggler_last

if TYPE_CHECKING:
    from otel_tf.correlator.result import Result

__all__ = ["MOST_SPANS", "Logical", "logical"]

#: Browsers draw traces of up to about 2,000 spans well.
MOST_SPANS = 2000
#: Up to that many workers, each is a service of its own, so that Jaeger's colour means the worker.
_MOST_WORKER_SERVICES = 20

_WORD = 2**64 - 1

Int = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Logical:
    """Spans to write, sorted by trace, then causal order. Lists and arrays have one item a span.

    Attributes:
        trace: Index into ``traces``.
        traces: 128-bit trace ids.
        span_id, parent_id: 64-bit ids as int64; no parent is 0.
        name, kind, status, message: Of the span and its status; an empty text is no message.
        start_ns, end_ns: As they are to be shown.
        resource: Index into ``resources``.
        resources: Attributes of each resource.
        links: Per span with links, the trace ids and span ids (both as integers) of those.
    """

    trace: Int
    traces: list[int]
    span_id: Int
    parent_id: Int
    name: pa.StringArray
    kind: npt.NDArray[np.int8]
    status: npt.NDArray[np.int8]
    message: pa.StringArray
    start_ns: Int
    end_ns: Int
    resource: Int
    resources: list[dict[str, Any]]
    attributes: Flat
    links: dict[int, list[tuple[int, int]]]


@dataclasses.dataclass(frozen=True)
class _Groups:
    """Which trace each span goes to: ``of`` (one a span) indexes the other two."""

    of: Int
    traces: list[int]
    #: Name and step of the root to add; None where the trace keeps its own roots.
    roots: list[tuple[str, int] | None]


@dataclasses.dataclass(frozen=True)
class _Placed:
    """The spans sorted by trace, then causal order: trace and parent's row (-1: none) of each."""

    spans: pa.Table
    row_in_result: Int
    group: Int
    parent: Int


def logical(result: Result) -> Logical:
    """Returns the run of ``result`` as logical traces."""
    run = str(result.report.get("run_id") or "")
    by_order = np.argsort(result.correlated["order"].to_numpy(), kind="stable")
    spans = result.correlated.take(by_order)
    parent = layout.parent_rows(spans)
    groups = _group(spans, parent, run)
    by_group = np.argsort(groups.of, kind="stable")
    place = np.empty_like(by_group)
    place[by_group] = np.arange(len(by_group))
    group = groups.of[by_group]
    parent = np.where(parent[by_group] >= 0, place[parent[by_group]], -1)
    parent = layout.without_cycles(np.where((parent >= 0) & (group[parent] == group), parent, -1))
    placed = _Placed(spans.take(by_group), by_order[by_group], group, parent)
    return _assemble(placed, groups, result, run)


def _group(spans: pa.Table, parent: Int, run: str) -> _Groups:
    step = layout.steps_with_inheritance(spans, parent)
    synchronous = semconv.SPAN_STEP in set(spans["name"].unique().to_pylist())
    size = 1 if synchronous else layout.window_size(step, MOST_SPANS - 1)
    has_step = step >= 0
    # Steps first, then traces without one; a part is what is left of a trace too large for a browser.
    _, trace = layout.distinct(spans["trace_hi"].to_numpy(), spans["trace_lo"].to_numpy())
    stepless = np.where(has_step, 0, 1)
    key = np.where(has_step, step // size, trace)
    part = layout.part_numbers(stepless, key, MOST_SPANS - 1)
    first, of = layout.distinct(stepless, key, part)
    traces: list[int] = []
    roots: list[tuple[str, int] | None] = []
    for row in first.tolist():
        extra = ("part", int(part[row])) if part[row] else ()
        begin = int(key[row]) * size
        if stepless[row]:
            words = (spans[name][row].as_py() for name in ("trace_hi", "trace_lo"))
            traces.append(ids.trace_id(run, "logical", "trace", *words, *extra))
            roots.append(None)
        elif synchronous:
            traces.append(ids.trace_id(run, "logical", "step", begin, *extra))
            roots.append((semconv.SPAN_STEP, begin))
        else:
            traces.append(ids.trace_id(run, "logical", "steps", begin, begin + size - 1, *extra))
            roots.append((semconv.SPAN_STEPS, begin))
    return _Groups(of, traces, roots)


def _assemble(placed: _Placed, groups: _Groups, result: Result, run: str) -> Logical:
    spans, count = placed.spans, placed.spans.num_rows
    root_row, added = _root_rows(placed, groups)
    roots = [root for number in added.tolist() if (root := groups.roots[number]) is not None]
    # Roots that are added stand behind the spans here, and first in their traces in the end.
    group = np.concatenate([placed.group, added])
    orphan = (
        (placed.parent < 0) & (root_row[placed.group] >= 0) & (root_row[placed.group] != np.arange(count))
    )
    parent = np.where(orphan, root_row[placed.group], placed.parent)
    parent = np.concatenate([parent, np.full(len(added), -1)])
    first_child = np.searchsorted(placed.group, added)
    start, end = spans["corrected_start_ns"].to_numpy(), spans["corrected_end_ns"].to_numpy()
    end = straggler_last(spans, placed.group, placed.parent, end)
    start, end = layout.times(
        np.concatenate([start, start[first_child]]),
        np.concatenate([end, start[first_child]]),
        parent,
        group,
        np.concatenate([spans["kind"].to_numpy() != layout.CONSUMER, np.ones(len(added), np.bool_)]),
    )
    root_ids = [ids.span_id(run, "logical", groups.traces[number], "root") for number in added.tolist()]
    span_id = np.concatenate(
        [
            layout.unique_ids(placed.group, spans["span_id"].to_numpy()),
            np.array(root_ids, np.uint64).astype(np.int64),
        ]
    )
    resources, resource = _resources(spans, run)
    order = np.lexsort([np.r_[np.ones(count), np.zeros(len(added))], group])
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    name = pa.concat_arrays(
        [spans["name"].cast(pa.string()).combine_chunks(), pa.array([name for name, _ in roots], pa.string())]
    )
    clocks = result.report.get("clocks") or []
    attributes, messages = attributes_of(spans, clocks, [step for _, step in roots])
    added_kind, added_status = np.ones(len(added), np.int8), np.zeros(len(added), np.int8)
    found_links = _links(result.links, placed, span_id, parent, groups)
    return Logical(
        trace=group[order],
        traces=groups.traces,
        span_id=span_id[order],
        parent_id=np.where(parent >= 0, span_id[parent], 0)[order],
        name=name.take(pa.array(order)),
        kind=np.concatenate([spans["kind"].to_numpy(), added_kind])[order],
        status=np.concatenate([spans["status"].to_numpy(), added_status])[order],
        message=pa.array(messages, pa.string()).take(pa.array(order)),
        start_ns=start[order],
        end_ns=end[order],
        resource=np.concatenate([resource, np.full(len(added), len(resources) - 1)])[order],
        resources=resources,
        attributes=attributes.take(order),
        links={int(place[row]): pairs for row, pairs in found_links.items()},
    )


def _root_rows(placed: _Placed, groups: _Groups) -> tuple[Int, Int]:
    """Returns the row of each trace's root, -1 for none, and the traces that one is added to.

    A step's own ``step`` span, written by its chief, stays the root. Where there is none, since its
    process died or another instrumentation made the spans, one is added.
    """
    count, group = placed.spans.num_rows, placed.group
    root_row = np.full(len(groups.traces), -1, np.int64)
    code, names = layout.codes(placed.spans["name"])
    is_step = code == (names.index(semconv.SPAN_STEP) if semconv.SPAN_STEP in names else -2)
    own = np.flatnonzero(is_step & (placed.parent < 0))
    how_many = np.bincount(group[own], minlength=len(groups.traces))
    single = own[how_many[group[own]] == 1]
    root_row[group[single]] = single
    wants = np.fromiter((root is not None for root in groups.roots), np.bool_, len(groups.roots))
    # In windows of steps, one step's root is not the window's.
    windows = np.fromiter(
        (root is not None and root[0] == semconv.SPAN_STEPS for root in groups.roots), np.bool_, len(wants)
    )
    root_row[~wants | windows] = -1
    added = np.flatnonzero(wants & (root_row < 0))
    root_row[added] = count + np.arange(len(added))
    return root_row, added


def _service_name(service: str, worker: str | None, by_role: bool) -> str:
    name = service + semconv.LOGICAL_SERVICE_SUFFIX
    if not worker:
        return name
    return f"{name} {worker.partition(':')[0] if by_role else worker}"


def _resources(spans: pa.Table, run: str) -> tuple[list[dict[str, Any]], Int]:
    """Returns the resources, last the one of roots that are added, and the number of each span's."""
    columns = [layout.codes(spans[name]) for name in ("service", "worker", "process", "domain")]
    first, number = layout.distinct(*(code for code, _ in columns))
    rows = [
        [names[code[row]] if code[row] >= 0 else None for code, names in columns] for row in first.tolist()
    ]
    tasks = [_task(run, worker, str(process)) for _, worker, process, _ in rows]
    by_role = len({task for task in tasks if task}) > _MOST_WORKER_SERVICES
    found: list[dict[str, Any]] = [
        {
            semconv.SERVICE_NAME: _service_name(str(service), task, by_role),
            semconv.SERVICE_INSTANCE_ID: process,
            semconv.CLOCK_DOMAIN: domain,
        }
        for (service, _, process, domain), task in zip(rows, tasks, strict=True)
    ]
    code, names = columns[0]
    common = names[int(np.bincount(code, minlength=1).argmax())]
    found.append({semconv.SERVICE_NAME: _service_name(common, None, by_role)})
    if run:
        found = [{**item, semconv.RUN_ID: run} for item in found]
    return found, number


def _task(run: str, worker: str | None, process: str) -> str | None:
    """Returns whose a span is: a coordinator's spans name the worker that they wait for, not itself."""
    return process.removeprefix(f"{run}/") if process.startswith(f"{run}/") else worker


def _links(
    links: pa.Table, placed: _Placed, span_id: Int, parent: Int, groups: _Groups
) -> dict[int, list[tuple[int, int]]]:
    """Returns links by row, to the logical spans where they are ours.

    Only of spans with a parent: Jaeger takes a parentless span's link for its parent.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    words = [links[name].to_numpy() for name in ("trace_hi", "trace_lo", "span_id")]
    place = np.empty_like(placed.row_in_result)
    place[placed.row_in_result] = np.arange(len(place))
    source = place[links["row"].to_numpy()]
    target = layout.rows_of(placed.spans, *words)
    for link in np.flatnonzero(parent[source] >= 0).tolist():
        to = int(target[link])
        if to >= 0:
            pair = (groups.traces[int(placed.group[to])], int(span_id[to]) & _WORD)
        else:
            high, low, span = (int(word[link]) & _WORD for word in words)
            pair = (high << 64 | low, span)
        found.setdefault(int(source[link]), []).append(pair)
    return found
