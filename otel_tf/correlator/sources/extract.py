"""From nested OTLP in Arrow to the canonical tables, whole columns at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from otel_tf import semconv
from otel_tf.correlator.sources import ids
from otel_tf.correlator.sources.attributes import MOST_ATTRIBUTES, Attributes, Texts
from otel_tf.correlator.sources.attributes import parents as parents_of
from otel_tf.correlator.sources.checks import usable
from otel_tf.correlator.sources.skipped import Skipped
from otel_tf.correlator.tables import LINKS, SPANS

__all__ = ["STATUS_MESSAGE", "Chunk", "extract"]

#: Where OpenTelemetry keeps a status message in formats without one.
STATUS_MESSAGE = "otel.status_description"

_OWN_COLUMN = frozenset(
    {
        semconv.WORKER,
        semconv.GLOBAL_STEP,
        semconv.LOCAL_STEP,
        semconv.SEQ,
        semconv.MONOTONIC_NS,
        semconv.STALENESS,
        semconv.STALENESS_SOURCE,
        semconv.COLLECTIVE_GROUP_KEY,
        semconv.COLLECTIVE_INSTANCE_KEY,
        semconv.RUN_ID,
        semconv.CLOCK_DOMAIN,
    }
)
_UNKNOWN_SERVICE = "unknown_service"

Row = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Chunk:
    """The spans of one piece of input, rows of `SPANS`, and their links, rows of `LINKS`."""

    spans: pa.Table
    links: pa.Table


def extract(
    resource_spans: pa.Array,
    skipped: Skipped,
    where: Callable[[int], str],
    order: tuple[int, ...] = (),
    line_of_resource: Row | None = None,
) -> Chunk:
    """Returns the usable spans below ``resource_spans``.

    Args:
        resource_spans: OTLP ``ResourceSpans`` in the shape of `shape`.
        skipped: Where unusable spans are counted.
        where: From a number of ``line_of_resource`` to ``file:line`` for the examples.
        order: Where the piece stands in the whole input, for choosing the first example.
        line_of_resource: For each of ``resource_spans``, the number that ``where`` takes; default 0.

    Raises:
        pyarrow.ArrowInvalid: A leaf cannot be read as what it should be, e.g. a time that is no number.
    """
    scope_spans = resource_spans.field("scopeSpans")
    scopes = scope_spans.flatten()
    span_lists = scopes.field("spans")
    spans: pa.StructArray = span_lists.flatten()
    resource_of_scope = parents_of(scope_spans)
    resource: Row = resource_of_scope[parents_of(span_lists)] if len(spans) else np.empty(0, np.int64)

    trace, trace_good = ids.from_arrow(spans.field("traceId"), 16)
    span, span_good = ids.from_arrow(spans.field("spanId"), 8)
    parents = spans.field("parentSpanId")
    parent, parent_good = ids.from_arrow(parents, 8)
    start, end = _times(spans.field("startTimeUnixNano")), _times(spans.field("endTimeUnixNano"))

    def report(reason: str, bad: npt.NDArray[np.bool_], say: Callable[[int], str]) -> None:
        rows = np.flatnonzero(bad)
        if len(rows):
            row = int(rows[0])
            line = 0 if line_of_resource is None else int(line_of_resource[resource[row]])
            name = spans.field("name")[row].as_py() or ""
            skipped.add(reason, f"{where(line)}: span {name!r}: {say(row)}", len(rows), (*order, line))

    def id_text(row: int) -> str:
        pair = [spans.field(field)[row].as_py() for field in ("traceId", "spanId")]
        shown = [x.hex() if isinstance(x, bytes) else x or "" for x in pair]
        return f"trace id {shown[0]!r}, span id {shown[1]!r}"

    used = usable(trace_good & span_good, start, end, id_text, report)
    no_parent = _is_no_id(parents)
    report(
        "bad_parent_id", used & ~parent_good & ~no_parent, lambda row: f"parent id {parents[row].as_py()!r}"
    )

    attributes = Attributes(spans.field("attributes"))
    cut = np.zeros(len(spans), np.bool_)
    cut[attributes.cut()] = True
    report("attributes_cut", cut & used, lambda _: f"more than {MOST_ATTRIBUTES} attributes")

    columns: dict[str, pa.Array] = {
        "trace_hi": pa.array(trace[:, 0]),
        "trace_lo": pa.array(trace[:, 1]),
        "span_id": pa.array(span[:, 0]),
        "parent_id": pa.array(parent[:, 0]),
        "name": spans.field("name").fill_null("").dictionary_encode(),
        "kind": _small(spans.field("kind"), 5),
        "status": _small(spans.field("status").field("code"), 2),
        "start_ns": pa.array(start),
        "end_ns": pa.array(end),
        **_identity(resource_spans, resource, attributes),
        "global_step": attributes.integers(semconv.GLOBAL_STEP).array(),
        "local_step": attributes.integers(semconv.LOCAL_STEP).array(),
        "seq": attributes.integers(semconv.SEQ).array(),
        "mono_ns": attributes.integers(semconv.MONOTONIC_NS).array(),
        "staleness": attributes.integers(semconv.STALENESS).array(),
        "staleness_source": attributes.texts(semconv.STALENESS_SOURCE).array(),
        "group_key": attributes.integers(semconv.COLLECTIVE_GROUP_KEY).array(),
        "instance_key": attributes.integers(semconv.COLLECTIVE_INSTANCE_KEY).array(),
        "attributes": attributes.json(_OWN_COLUMN, spans.field("status").field("message"), STATUS_MESSAGE),
    }
    table = pa.table([columns[field.name] for field in SPANS], schema=SPANS)
    links = _links(spans.field("links"), used)
    return Chunk(table if used.all() else table.filter(pa.array(used)), links)


def _identity(resource_spans: pa.Array, resource: Row, spans: Attributes) -> dict[str, pa.Array]:
    """Returns who recorded each span: service, run, process, clock domain, worker."""
    of = Attributes(resource_spans.field("resource").field("attributes"))
    service = of.texts(semconv.SERVICE_NAME)
    pid, host, instance, host_id, kind, index = (
        of.texts(key)
        for key in (
            semconv.PROCESS_PID,
            semconv.HOST_NAME,
            semconv.SERVICE_INSTANCE_ID,
            semconv.HOST_ID,
            semconv.TASK_TYPE,
            semconv.TASK_INDEX,
        )
    )

    def made(make: Callable[[int], str]) -> Texts:
        names = [make(row) for row in range(of.count)]
        none = [-1 if not name else row for row, name in enumerate(names)]
        return Texts(np.array(none, np.int32), names)

    def name(texts: Texts, row: int) -> str:
        return texts.names[texts.codes[row]] if texts.codes[row] >= 0 else ""

    def process_name(row: int) -> str:
        parts = (name(service, row) or _UNKNOWN_SERVICE, name(pid, row), name(host, row))
        return name(instance, row) or "/".join(part for part in parts if part)

    def worker_name(row: int) -> str:
        task, number = name(kind, row), name(index, row)
        return f"{task}:{number}" if task and number else ""

    process = made(process_name)
    domain = of.texts(semconv.CLOCK_DOMAIN).over(host_id).over(host).over(process)
    worker = of.texts(semconv.WORKER).over(made(worker_name))
    run = of.texts(semconv.RUN_ID)
    return {
        "service": service.over(made(lambda _: _UNKNOWN_SERVICE)).take(resource).array(),
        "process": process.take(resource).array(),
        "run": spans.texts(semconv.RUN_ID).over(run.take(resource)).array(),
        "domain": spans.texts(semconv.CLOCK_DOMAIN).over(domain.take(resource)).array(),
        "worker": spans.texts(semconv.WORKER).over(worker.take(resource)).array(),
    }


def _links(lists: pa.Array, used: npt.NDArray[np.bool_]) -> pa.Table:
    links = lists.flatten()
    row = parents_of(lists)
    trace, trace_good = ids.from_arrow(links.field("traceId"), 16)
    span, span_good = ids.from_arrow(links.field("spanId"), 8)
    keep = trace_good & span_good & used[row]
    new_row = np.cumsum(used) - 1  # rows count in the spans that are left
    columns = [new_row[row[keep]], trace[keep, 0], trace[keep, 1], span[keep, 0]]
    return pa.table([pa.array(column, pa.int64()) for column in columns], schema=LINKS)


def _times(times: pa.Array) -> Row:
    """Returns times as int64, 0 where there is none. What int64 cannot hold becomes its largest value."""
    if pa.types.is_string(times.type):
        # What is no int64 raises, and the reader then looks at the texts one by one.
        signed: Row = times.fill_null("0").cast(pa.int64()).to_numpy(zero_copy_only=False)
        return signed
    unsigned: npt.NDArray[np.uint64] = times.fill_null(0).to_numpy(zero_copy_only=False)
    return np.minimum(unsigned, np.uint64(2**63 - 1)).astype(np.int64)


def _small(values: pa.Array, largest: int) -> pa.Array:
    """Returns an enum as int8; a number that the enum does not have counts as unset."""
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
    return pa.array(np.where((numbers < 0) | (numbers > largest), 0, numbers).astype(np.int8))


def _is_no_id(texts: pa.Array) -> npt.NDArray[np.bool_]:
    """Returns where an optional id is absent: null, empty, or zeros."""
    absent = pc.equal(pc.binary_length(texts), 0).fill_null(True)
    zeros = {"0" * 16} if pa.types.is_string(texts.type) else {bytes(8)}
    zero = pc.is_in(texts, pa.array(list(zeros), texts.type))
    result: npt.NDArray[np.bool_] = pc.or_(absent, zero).to_numpy(zero_copy_only=False)
    return result
