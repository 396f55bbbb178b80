"""The corrected run as traces that Jaeger shows in logical order.

Jaeger sorts siblings by start time in whole microseconds and by nothing else, so the order is told by
times: siblings start at least 1 µs apart, in causal order. A trace is one step of a synchronous run, or a
window of steps of an asynchronous one; spans without any step keep the trace they had. All get new trace
ids, made from the run id, the step and what was found out: writing the same result twice writes the same
spans, which Jaeger shows once; another result of the same run becomes traces beside the first, since
Jaeger keeps both of two spans with one id and would draw every row twice.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from otel_tf import ids, semconv
from otel_tf.correlator.sinks import layout
from otel_tf.correlator.sinks.attributes import clock_warnings
from otel_tf.correlator.sinks.straggler import straggler_last
from otel_tf.correlator.sources.lives import SECOND_LIFE

if TYPE_CHECKING:
    from otel_tf.correlator.result import Result

__all__ = ["MOST_SPANS", "Logical", "logical"]

#: Browsers draw traces of up to about 2,000 spans well.
MOST_SPANS = 2000
#: Up to that many workers, each is a service of its own, so that Jaeger's colour means the worker.
_MOST_WORKER_SERVICES = 20

#: What it takes to know each span's trace and parent.
_FOR_PLACES = ["trace_hi", "trace_lo", "span_id", "parent_id", "name", "global_step"]

_WORD = 2**64 - 1
_LATEST_NS = 2**62

Int = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Logical:
    """Spans to write, sorted by trace, then causal order. Arrays have one item a span.

    Attributes:
        spans: Rows of a result's ``correlated``, for what was recorded; of a root that was added, only the
            name, the step and the service are there, and its ids are 0.
        trace: Index into ``traces``.
        traces: 128-bit trace ids.
        span_id, parent_id: 64-bit ids as int64; no parent is 0.
        start_ns, end_ns: As they are to be shown.
        resource: Index into ``resources``.
        resources: Attributes of each resource.
        links: Per span with links, the trace ids and span ids (both as integers) of those.
        warnings: Per span with warnings, their texts.
    """

    spans: pa.Table
    trace: Int
    traces: list[int]
    span_id: Int
    parent_id: Int
    start_ns: Int
    end_ns: Int
    resource: Int
    resources: list[dict[str, str]]
    links: dict[int, list[tuple[int, int]]]
    warnings: dict[int, list[str]]

    def warnings_of(self, rows: Int) -> dict[int, list[str]]:
        """Returns the warnings of some rows, by their places among these."""
        # Mostly there are none, and looking for them costs as much as writing a number of each span.
        if not self.warnings:
            return {}
        found = {place: self.warnings.get(row) for place, row in enumerate(rows.tolist())}
        return {place: texts for place, texts in found.items() if texts}


@dataclasses.dataclass(frozen=True)
class _Groups:
    """Which trace each span goes to: ``of`` (one a span) indexes the other two."""

    of: Int
    traces: list[int]
    #: Name and step of the root to add; None where the trace keeps its own roots.
    roots: list[tuple[str, int] | None]


def logical(result: Result) -> Logical:
    """Returns the run of ``result`` as logical traces."""
    run = str(result.report.get("run_id") or "")
    by_order = np.argsort(result.correlated["order"].to_numpy(), kind="stable")
    # Probes serve the clocks. Every few seconds a trace of theirs would bury the steps in Jaeger's search.
    code, names = layout.codes(result.correlated["name"])
    by_order = by_order[code[by_order] != layout.code_of(names, semconv.SPAN_CLOCK_PROBE)]
    # Rows of all columns are moved once, at the end, when their places are known.
    spans = result.correlated.select(_FOR_PLACES).take(by_order)
    count = spans.num_rows
    parent = layout.parent_rows(spans)
    groups = _group(spans, parent, run)
    same_trace = (parent >= 0) & (groups.of[parent] == groups.of)
    parent = layout.without_cycles(np.where(same_trace, parent, -1))
    root_row, added = _root_rows(spans, parent, groups)
    # Roots that are added stand behind the spans for now.
    root_of = root_row[groups.of]
    orphan = (parent < 0) & (root_of >= 0) & (root_of != np.arange(count))
    parent = np.concatenate([np.where(orphan, root_of, parent), np.full(len(added), -1)])
    group = np.concatenate([groups.of, added])
    root_ids = [ids.span_id(run, "logical", groups.traces[number], "root") for number in added.tolist()]
    span_id = np.concatenate([spans["span_id"].to_numpy(), np.array(root_ids, np.uint64).astype(np.int64)])
    # Now to their places: by trace, the root that was added first, then in causal order.
    order = np.lexsort([np.concatenate([np.arange(count), np.full(len(added), -1)]), group])
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    parent = np.where(parent[order] >= 0, place[parent[order]], -1)
    row = np.concatenate([by_order, result.correlated.num_rows + np.arange(len(added))])[order]
    spans, group = _with_roots(result.correlated, groups, added).take(row).combine_chunks(), group[order]
    span_id = layout.unique_ids(group, span_id[order])
    place_of_row = np.full(result.correlated.num_rows, -1)
    place_of_row[by_order] = place[:count]
    start, end = _times(spans, group, parent)
    parent_id = np.where(parent >= 0, span_id[parent], 0)
    traces = _trace_ids(groups.traces, group, [span_id, parent_id, start, end, *_found_out(spans)])
    links = _links(result.links, _Targets(spans, group, traces, span_id), place_of_row, parent)
    resources, resource = _resources(spans, run, result.report.get("reference"))
    return Logical(
        spans=spans,
        trace=group,
        traces=traces,
        span_id=span_id,
        parent_id=parent_id,
        start_ns=start,
        end_ns=end,
        resource=resource,
        resources=resources,
        links=links,
        warnings=clock_warnings(spans, result.report.get("clocks") or []),
    )


def _found_out(spans: pa.Table) -> list[Int]:
    """Returns what the correlator found out about spans and writes beside their times."""
    names = [
        name
        for name in ("order", "shift_ns", "error_ns", "staleness", "wait_ns")
        if name in spans.column_names
    ]
    return [spans[name].fill_null(-1).to_numpy() for name in names]


def _trace_ids(names: list[int], group: Int, content: list[Int]) -> list[int]:
    """Returns a trace id for each trace, made from its name and its content (columns, sorted by trace)."""
    rows = np.stack(content, axis=1)
    firsts = np.searchsorted(group, np.arange(len(names) + 1))
    digests = [
        hashlib.blake2b(rows[begin:end].tobytes(), digest_size=16).hexdigest()
        for begin, end in itertools.pairwise(firsts.tolist())
    ]
    return [ids.trace_id("logical", *pair) for pair in zip(names, digests, strict=True)]


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


def _root_rows(spans: pa.Table, parent: Int, groups: _Groups) -> tuple[Int, Int]:
    """Returns the row of each trace's root, -1 for none, and the traces that one is added to.

    A step's own ``step`` span, written by its chief, stays the root. Where there is none, since its
    process died or another instrumentation made the spans, one is added.
    """
    root_row = np.full(len(groups.traces), -1, np.int64)
    code, names = layout.codes(spans["name"])
    is_step = code == layout.code_of(names, semconv.SPAN_STEP)
    own = np.flatnonzero(is_step & (parent < 0))
    single = own[np.bincount(groups.of[own], minlength=len(root_row))[groups.of[own]] == 1]
    root_row[groups.of[single]] = single
    for number, root in enumerate(groups.roots):
        # In windows of steps, one step's root is not the window's.
        if root is None or root[0] == semconv.SPAN_STEPS:
            root_row[number] = -1
    wants = np.array([root is not None for root in groups.roots], np.bool_)
    added = np.flatnonzero(wants & (root_row < 0))
    root_row[added] = spans.num_rows + np.arange(len(added))
    return root_row, added


def _with_roots(spans: pa.Table, groups: _Groups, added: Int) -> pa.Table:
    """Returns ``spans`` and below them the roots to add: no ids, times that give way to the children's."""
    if not len(added):
        return spans
    code, names = layout.codes(spans["service"])
    service = names[int(np.bincount(code, minlength=1).argmax())]
    blank = {
        **dict.fromkeys(("trace_hi", "trace_lo", "span_id", "parent_id", "status"), 0),
        **{"kind": 1, "service": service, "process": "", "domain": ""},
        **{"start_ns": _LATEST_NS, "end_ns": 0, "corrected_start_ns": _LATEST_NS, "corrected_end_ns": 0},
    }
    roots = [root for number in added.tolist() if (root := groups.roots[number]) is not None]
    rows = [{**blank, "name": name, "global_step": step} for name, step in roots]
    # What a span must have, such as an order, a root that nobody recorded may lack.
    schema = pa.schema([field.with_nullable(True) for field in spans.schema])
    root_rows = pa.Table.from_pylist(rows, schema=schema).cast(spans.schema)
    return pa.concat_tables([spans, root_rows]).unify_dictionaries().combine_chunks()


def _times(spans: pa.Table, group: Int, parent: Int) -> tuple[Int, Int]:
    start, end = spans["corrected_start_ns"].to_numpy(), spans["corrected_end_ns"].to_numpy()
    end = straggler_last(spans, group, parent, end)
    waited_for = spans["kind"].to_numpy() != layout.CONSUMER
    return layout.times(start, end, parent, group, waited_for)


def _service_name(service: str, worker: str, by_role: bool) -> str:
    name = service + semconv.LOGICAL_SERVICE_SUFFIX
    if not worker:
        return name
    return f"{name} {worker.partition(':')[0] if by_role else worker}"


def _resources(spans: pa.Table, run: str, reference: str | None) -> tuple[list[dict[str, str]], Int]:
    """Returns the resources and the number of each span's.

    All times are the reference clock's now: read again, they are not corrected again.
    """
    columns = [layout.codes(spans[name]) for name in ("service", "worker", "process", "domain")]
    first, number = layout.distinct(*(code for code, _ in columns))
    rows = [[names[code[row]] if code[row] >= 0 else "" for code, names in columns] for row in first.tolist()]
    tasks = [_task(run, worker, process) for _, worker, process, _ in rows]
    by_role = len({task for task in tasks if task}) > _MOST_WORKER_SERVICES
    found = [
        {
            semconv.SERVICE_NAME: _service_name(service, task, by_role),
            semconv.SERVICE_INSTANCE_ID: process,
            semconv.CLOCK_DOMAIN: reference or domain,
            semconv.LOGICAL_ORIGINAL_CLOCK: domain,
            semconv.RUN_ID: run,
        }
        for (service, _, process, domain), task in zip(rows, tasks, strict=True)
    ]
    return [{key: value for key, value in item.items() if value} for item in found], number


def _task(run: str, worker: str, process: str) -> str:
    """Returns whose a span is: a coordinator's spans name the worker that they wait for, not itself."""
    # A restarted task is the same task.
    process = process.partition(SECOND_LIFE)[0]
    return process.removeprefix(f"{run}/") if process.startswith(f"{run}/") else worker


@dataclasses.dataclass(frozen=True)
class _Targets:
    """What a link may point at."""

    spans: pa.Table
    group: Int
    traces: list[int]
    span_id: Int


def _links(
    links: pa.Table, targets: _Targets, place_of_row: Int, parent: Int
) -> dict[int, list[tuple[int, int]]]:
    """Returns links by row, to the logical spans where they are ours.

    Only of spans with a parent: Jaeger takes a parentless span's link for its parent.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    words = [links[name].to_numpy() for name in ("trace_hi", "trace_lo", "span_id")]
    source = place_of_row[links["row"].to_numpy()]
    target = layout.rows_of(targets.spans, *words)
    for link in np.flatnonzero((source >= 0) & (parent[source] >= 0)).tolist():
        to = int(target[link])
        if to >= 0:
            pair = (targets.traces[int(targets.group[to])], int(targets.span_id[to]) & _WORD)
        else:
            high, low, span = (int(word[link]) & _WORD for word in words)
            pair = (high << 64 | low, span)
        found.setdefault(int(source[link]), []).append(pair)
    return found
