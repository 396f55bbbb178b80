"""From what a format's reader found to the canonical tables, whole columns at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from otel_tf import semconv
from otel_tf.correlator.sources.attributes import MOST_ATTRIBUTES, Attributes, Extra, Texts
from otel_tf.correlator.sources.checks import usable
from otel_tf.correlator.sources.skipped import Skipped
from otel_tf.correlator.tables import LINKS, SPANS

__all__ = [
    "CREATED",
    "PID",
    "READ",
    "STATUS_MESSAGE",
    "Chunk",
    "Found",
    "Linked",
    "Origin",
    "Piece",
    "identity",
    "to_chunk",
]

#: Where OpenTelemetry keeps a status message in formats without one.
STATUS_MESSAGE = "otel.status_description"

#: When the process that recorded a span began, and its number: what `lives` tells restarts by.
CREATED, PID = "process_created", "process_pid"
#: `tables.SPANS`, and what is gone before they are handed on.
READ = pa.schema(
    [*SPANS, *(pa.field(name, pa.dictionary(pa.int32(), pa.string())) for name in (CREATED, PID))]
)

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

Int = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Chunk:
    """The spans of one piece of input, rows of `READ`, and their links, rows of `LINKS`."""

    spans: pa.Table
    links: pa.Table


@dataclasses.dataclass(frozen=True)
class Piece:
    """What one part of the input holds: spans, and snapshots of clocks."""

    chunk: Chunk
    clocks: list[dict[str, Any]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Linked:
    """Links with good ids: the row of the linking span, and the linked span's ids."""

    row: Int
    trace: Int
    span: Int


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where spans were found, for the examples of what was left out.

    Attributes:
        where: From a number of ``line`` to ``file:line``.
        order: Where the piece stands in the whole input, for choosing the first example.
        line: Of each span.
    """

    where: Callable[[int], str]
    order: tuple[int, ...]
    line: Int


@dataclasses.dataclass(frozen=True)
class Found:
    """N spans as a format's reader found them, nothing checked but ids.

    Attributes:
        trace: Trace ids (N, 2), big-endian words; 0 where malformed.
        span: Span ids (N,).
        parent: Span ids of parents (N,), 0 for none.
        good_id: Where trace and span id are well-formed (N,).
        bad_parent: Where there is a parent id, but a malformed one (N,).
        id_text: From a row to its trace and span id as they were written.
        parent_text: From a row to its parent id as it was written.
        name: Names (N,), texts.
        kind, status: OTLP's enums (N,).
        start_ns, end_ns: Wall clock, ns (N,); 0 for none.
        extra: What else is to be in the spans' attributes.
        resource: Index of each span's resource (N,).
        attributes: Of the spans.
        resources: Attributes of the resources.
        links: Of the spans.
    """

    trace: Int
    span: Int
    parent: Int
    good_id: Mask
    bad_parent: Mask
    id_text: Callable[[int], tuple[str, str]]
    parent_text: Callable[[int], str]
    name: pa.Array
    kind: Int
    status: Int
    start_ns: Int
    end_ns: Int
    extra: Extra
    resource: Int
    attributes: Attributes
    resources: Attributes
    links: Linked


def to_chunk(found: Found, skipped: Skipped, origin: Origin) -> Chunk:
    """Returns the usable spans, and counts the others in ``skipped``."""

    def report(reason: str, bad: Mask, say: Callable[[int], str]) -> None:
        rows = np.flatnonzero(bad)
        if len(rows):
            row, line = int(rows[0]), int(origin.line[rows[0]])
            text = f"{origin.where(line)}: span {found.name[row].as_py()!r}: {say(row)}"
            skipped.add(reason, text, len(rows), (*origin.order, line))

    def id_text(row: int) -> str:
        trace, span = found.id_text(row)
        return f"trace id {trace!r}, span id {span!r}"

    used = usable(found.good_id, found.start_ns, found.end_ns, id_text, report)
    report("bad_parent_id", used & found.bad_parent, lambda row: f"parent id {found.parent_text(row)!r}")
    attributes = found.attributes
    cut = np.zeros(len(used), np.bool_)
    cut[attributes.cut()] = True
    report("attributes_cut", cut & used, lambda _: f"more than {MOST_ATTRIBUTES} attributes")
    columns: dict[str, pa.Array] = {
        "trace_hi": pa.array(found.trace[:, 0]),
        "trace_lo": pa.array(found.trace[:, 1]),
        "span_id": pa.array(found.span),
        "parent_id": pa.array(found.parent),
        "name": found.name.dictionary_encode(),
        "kind": _small(found.kind, 5),
        "status": _small(found.status, 2),
        "start_ns": pa.array(found.start_ns),
        "end_ns": pa.array(found.end_ns),
        **identity(found.resources, found.resource, attributes),
        "global_step": attributes.integers(semconv.GLOBAL_STEP).array(),
        "local_step": attributes.integers(semconv.LOCAL_STEP).array(),
        "seq": attributes.integers(semconv.SEQ).array(),
        "mono_ns": attributes.integers(semconv.MONOTONIC_NS).array(),
        "staleness": attributes.integers(semconv.STALENESS).array(),
        "staleness_source": attributes.texts(semconv.STALENESS_SOURCE).array(),
        "group_key": attributes.integers(semconv.COLLECTIVE_GROUP_KEY).array(),
        "instance_key": attributes.integers(semconv.COLLECTIVE_INSTANCE_KEY).array(),
        "attributes": attributes.json(_OWN_COLUMN, found.extra),
    }
    table = pa.table([columns[field.name] for field in READ], schema=READ)
    links = _links(found.links, used)
    return Chunk(table if used.all() else table.filter(pa.array(used)), links)


def identity(of: Attributes, resource: Int, spans: Attributes) -> dict[str, pa.Array]:
    """Returns who recorded each span or log record: service, run, process, clock domain, worker.

    Args:
        of: Attributes of the resources.
        resource: Index of each span's resource.
        spans: Attributes of the spans.
    """
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
        CREATED: of.texts(semconv.PROCESS_CREATION_TIME).take(resource).array(),
        PID: pid.take(resource).array(),
    }


def _links(links: Linked, used: Mask) -> pa.Table:
    keep = used[links.row]
    new_row = np.cumsum(used) - 1  # rows count in the spans that are left
    columns = [new_row[links.row[keep]], links.trace[keep, 0], links.trace[keep, 1], links.span[keep]]
    return pa.table([pa.array(column, pa.int64()) for column in columns], schema=LINKS)


def _small(values: Int, largest: int) -> pa.Array:
    """Returns an enum as int8; a number that the enum does not have counts as unset."""
    return pa.array(np.where((values < 0) | (values > largest), 0, values).astype(np.int8))
