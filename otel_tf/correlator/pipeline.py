"""The correlation itself: from ingested tables to corrected, ordered spans, edges, clocks and answers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from otel_tf.correlator import pieces
from otel_tf.correlator.adjust import Adjusted, adjust, busiest_domain, last_entrants
from otel_tf.correlator.answers import Answers, answer
from otel_tf.correlator.aside import Quarantine
from otel_tf.correlator.clock_tables import clock_report, clock_table
from otel_tf.correlator.clockwork import whole_clocks
from otel_tf.correlator.columns import Columns, Int, codes, from_spans, integers
from otel_tf.correlator.edges import KINDS, Barriers, Edges, barriers, causal_edges
from otel_tf.correlator.epochs import split
from otel_tf.correlator.local_time import local_times
from otel_tf.correlator.solver import UNBOUNDED
from otel_tf.correlator.tables import EDGES
from otel_tf.errors import UserError

if TYPE_CHECKING:
    from otel_tf.correlator.engines.duckdb import Engine
    from otel_tf.correlator.tables import Ingested

__all__ = ["Correlated", "correlate_tables"]

#: Quarantined edges that the report lists, the worst first; the table has all.
_MOST_QUARANTINED = 10_000


@dataclasses.dataclass(frozen=True)
class Correlated:
    """A run in causal order.

    Attributes:
        spans: The columns of `tables.SPANS` in the order of the input, and ``order`` (rank of the start),
            ``corrected_start_ns``, ``corrected_end_ns``, ``shift_ns`` (corrected − recorded start),
            ``error_ns`` (half-width of the bar, null where unknown), ``wait_ns`` and ``lateness_ns`` of
            collectives; ``staleness`` and its source are filled in for asynchronous steps.
        edges: Accepted edges, rows of `tables.EDGES`; a barrier is told as its last entrant before each
            leave.
        quarantined: Edges that contradict the others, with ``excess_ns`` and ``reason``.
        clocks: Per domain and window: ``domain``, ``epoch``, ``at_ns`` (local centre), ``shift_ns``,
            ``low_ns``, ``high_ns`` (null where unknown).
        report: The JSON object of ``otel-tf correlate``, without what only the command line knows.
    """

    spans: pa.Table
    edges: pa.Table
    quarantined: pa.Table
    clocks: pa.Table
    report: dict[str, Any]


def correlate_tables(
    ingested: Ingested, *, reference: str | None = None, engine: str = "duckdb"
) -> Correlated:
    """Puts the spans of one run into causal order on the reference domain's clock.

    Args:
        ingested: What the sources delivered.
        reference: Clock domain to keep; default: the one with the most edges to others.
        engine: ``duckdb``, in this process, or ``spark``; the answers are the same.

    Raises:
        UserError: There is no span, no such domain or no such engine.
    """
    runner = _engine(engine)
    if not ingested.spans.num_rows:
        raise UserError("there are no spans to correlate")
    columns = from_spans(ingested.spans)
    if reference is not None and reference not in columns.domains:
        raise UserError(f"no clock domain {reference!r}; there are: {', '.join(columns.domains) or 'none'}")
    met = barriers(columns)
    keep, adjusted = _adjusted(columns, ingested, met, reference, runner)
    answers = answer(ingested.spans, columns, met, adjusted)
    edges = _between_spans(adjusted.edges, met, adjusted.time_ns, columns.count)
    set_aside = adjusted.quarantine
    report = {
        "run_id": _run_id(ingested.spans),
        "spans": columns.count,
        "events": 2 * columns.count,
        "edges": len(edges),
        "processes": len(columns.processes),
        "domains": len(columns.domains),
        "reference": columns.domains[keep] if columns.domains else None,
        "violations": adjusted.violations,
        "quarantined_count": len(set_aside.edges),
        "quarantined": _quarantine_report(set_aside, columns),
        "wall_clock_inversions": _inversions(columns, edges),
        "clocks": clock_report(columns, adjusted),
        **answers.report,
    }
    clocks = clock_table(columns, adjusted)
    spans = _spans(ingested.spans, columns, met, adjusted, answers)
    # The largest tables last, when nothing else needs memory for a moment any more.
    return Correlated(spans, _edges(edges), _quarantined(set_aside), clocks, report)


def _adjusted(
    columns: Columns, ingested: Ingested, met: Barriers, reference: str | None, engine: Engine
) -> tuple[int, Adjusted]:
    """Returns the domain whose clock is kept, and everything on it."""
    local, steps = local_times(columns, ingested.clocks)
    edges = causal_edges(columns, local, ingested.links, engine)
    keep = busiest_domain(columns, edges, met) if reference is None else columns.domains.index(reference)
    work = whole_clocks(columns, local, steps)
    cut = split(columns, work, edges, met, reference=keep, engine=engine)
    if len(cut.work.domain) > len(columns.domains):
        cut = cut.judged_again()
    # Nothing here may hold on to what `adjust` lets go of on the way: events are the bulk of all memory.
    handed = [cut]
    del local, edges, work, cut
    return keep, adjust(columns, handed.pop(), met, reference=keep, engine=engine)


def _engine(name: str) -> Engine:
    if name == "duckdb":
        from otel_tf.correlator.engines.duckdb import DuckEngine

        return DuckEngine()
    if name == "spark":
        from otel_tf.correlator.engines.spark import SparkEngine

        return SparkEngine()
    raise UserError(f"no engine {name!r}; there are: duckdb, spark")


def _between_spans(edges: Edges, met: Barriers, time_ns: Int, count: int) -> Edges:
    """Returns the edges with each barrier told as its last entrant before every leave."""
    if not met.count:
        return edges
    plain = edges.take((edges.src < 2 * count) & (edges.dst < 2 * count))
    leaving = edges.take(edges.src >= 2 * count)
    if not len(leaving):
        return plain
    last, _ = last_entrants(met, time_ns[2 * met.row])
    source = last[leaving.src - 2 * count]
    return Edges(
        np.concatenate([plain.src, source]),
        np.concatenate([plain.dst, leaving.dst]),
        np.concatenate([plain.min_ns, leaving.min_ns]),
        np.concatenate([plain.kind, leaving.kind]),
    )


def _inversions(columns: Columns, edges: Edges) -> int:
    """Returns how many edges the wall clocks alone have the wrong way round.

    Between two clocks an edge needs its least time; on one clock only going backwards is wrong, since a
    step without stamps of its worker has its dispatch's times.
    """
    start, end = columns.start_ns, columns.end_ns
    domain = columns.timeline_domain[columns.timeline]

    def inverted(piece: slice) -> int:
        src, dst = edges.src[piece], edges.dst[piece]
        before, after = (np.where(event & 1, end[event >> 1], start[event >> 1]) for event in (src, dst))
        other = domain[src >> 1] != domain[dst >> 1]
        return int((after - before < np.where(other, edges.min_ns[piece], 0)).sum())

    return sum(pieces.each(len(edges), inverted))


def _spans(
    spans: pa.Table, columns: Columns, met: Barriers, adjusted: Adjusted, answers: Answers
) -> pa.Table:
    start, error = np.ascontiguousarray(adjusted.time_ns[0::2]), adjusted.error_ns
    order = np.empty(columns.count, dtype=np.int64)
    order[np.argsort(adjusted.rank[0::2])] = np.arange(columns.count)
    result = _with_staleness(spans, columns, answers)
    extra = {
        "order": pa.array(order),
        "corrected_start_ns": pa.array(start),
        "corrected_end_ns": pa.array(np.ascontiguousarray(adjusted.time_ns[1::2])),
        "shift_ns": pa.array(start - columns.start_ns),
        "error_ns": pa.array(error, mask=error >= UNBOUNDED),
        "wait_ns": _sparse(columns.count, met.row, answers.wait_ns),
        "lateness_ns": _sparse(columns.count, met.row, answers.lateness_ns),
    }
    for name, values in extra.items():
        result = result.append_column(name, values)
    return result


def _sparse(count: int, rows: Int, values: Int) -> pa.Array:
    """Returns a column that is null but at ``rows``."""
    if not len(rows):
        return pa.nulls(count, pa.int64())
    whole, missing = np.zeros(count, dtype=np.int64), np.ones(count, dtype=bool)
    whole[rows], missing[rows] = values, False
    return pa.array(whole, mask=missing)


def _with_staleness(spans: pa.Table, columns: Columns, answers: Answers) -> pa.Table:
    """Returns the spans with staleness and its source filled in for asynchronous steps."""
    if not len(answers.steps):
        return spans
    given, names = codes(spans["staleness_source"])
    source = given.astype(np.int32)
    source[answers.steps] = answers.staleness_source + len(names)
    stale = integers(spans["staleness"]).copy()
    stale[answers.steps] = answers.staleness
    for name, values in (
        ("staleness", pa.array(stale, mask=stale < 0)),
        ("staleness_source", _distinct_texts(source, (*names, *answers.sources))),
    ):
        at = spans.schema.get_field_index(name)
        spans = spans.set_column(at, spans.schema.field(name), values)
    return spans


def _distinct_texts(index: npt.NDArray[np.int32], names: tuple[str, ...]) -> pa.DictionaryArray:
    """Returns texts by index into ``names``, which may repeat; -1 is null."""
    distinct = sorted(set(names))
    number = np.array([distinct.index(name) for name in names] + [-1], dtype=np.int32)[index]
    return pa.DictionaryArray.from_arrays(pa.array(number, mask=number < 0), pa.array(distinct, pa.string()))


def _edges(edges: Edges) -> pa.Table:
    # Widened here: Arrow would do it one number at a time.
    columns = [pieces.widened(values) for values in (edges.src, edges.dst, edges.min_ns)]
    kind = pa.DictionaryArray.from_arrays(pa.array(edges.kind.astype(np.int32)), pa.array(KINDS))
    return pa.table([*columns, kind], schema=EDGES)


def _quarantined(aside: Quarantine) -> pa.Table:
    return (
        _edges(aside.edges)
        .append_column("excess_ns", pa.array(aside.excess_ns))
        .append_column("reason", pa.array(aside.reason, pa.string()))
    )


def _quarantine_report(aside: Quarantine, columns: Columns) -> list[dict[str, Any]]:
    """Returns the edges set aside, for people: span ids, what they joined, by how much they were off."""
    span_id = columns.span_id

    def end(event: int) -> str:
        row, which = event >> 1, ("start", "end")[event & 1]
        if row >= columns.count:
            return "barrier"
        return f"{int(span_id[row]) & (1 << 64) - 1:016x}.{which}"

    worst = np.argsort(-aside.excess_ns, kind="stable")[:_MOST_QUARANTINED]
    edges = aside.edges.take(worst)
    return [
        {
            "src": end(int(edges.src[n])),
            "dst": end(int(edges.dst[n])),
            "kind": KINDS[edges.kind[n]],
            "excess_ns": int(aside.excess_ns[number]),
            "reason": aside.reason[number],
        }
        for n, number in enumerate(worst.tolist())
    ]


def _run_id(spans: pa.Table) -> str | None:
    counted = spans["run"].unify_dictionaries().value_counts().to_pylist()
    known = [(-each["counts"], each["values"]) for each in counted if each["values"] is not None]
    return str(min(known)[1]) if known else None
