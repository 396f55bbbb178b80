"""The correlator's canonical tables: what every source delivers and every stage works on.

All times are int64 nanoseconds, all ids int64 (the big-endian bytes of the OTLP id, read as two's
complement, so that joins are integer joins). Texts that repeat are dictionary-encoded, so that frames
stay numeric. Nothing here depends on TensorFlow or on OpenTelemetry's SDK.
"""

from __future__ import annotations

import dataclasses

import pyarrow as pa

__all__ = ["CLOCKS", "EDGES", "EVENTS", "LINKS", "SPANS", "Ingested"]

_TEXT = pa.dictionary(pa.int32(), pa.string())

#: One row a span, as read. ``parent_id`` 0 means none. ``process`` and ``domain`` by the rules of the
#: command-line contract; a process whose spans carry two clock domains is two timelines.
SPANS = pa.schema(
    [
        pa.field("trace_hi", pa.int64(), nullable=False),
        pa.field("trace_lo", pa.int64(), nullable=False),
        pa.field("span_id", pa.int64(), nullable=False),
        pa.field("parent_id", pa.int64(), nullable=False),
        pa.field("name", _TEXT, nullable=False),
        pa.field("kind", pa.int8(), nullable=False),  # OTLP SpanKind: 1 internal … 5 consumer
        pa.field("status", pa.int8(), nullable=False),  # OTLP StatusCode: 2 error
        pa.field("start_ns", pa.int64(), nullable=False),  # wall clock of ``domain``
        pa.field("end_ns", pa.int64(), nullable=False),
        pa.field("service", _TEXT, nullable=False),
        pa.field("run", _TEXT),
        pa.field("process", _TEXT, nullable=False),
        pa.field("domain", _TEXT, nullable=False),
        pa.field("worker", _TEXT),
        pa.field("global_step", pa.int64()),
        pa.field("local_step", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("mono_ns", pa.int64()),  # monotonic clock at the start
        pa.field("staleness", pa.int64()),
        pa.field("staleness_source", _TEXT),
        pa.field("group_key", pa.int64()),  # a collective's (group, instance) names its barrier
        pa.field("instance_key", pa.int64()),
        pa.field("attributes", pa.large_string()),  # JSON object of the remaining attributes, for sinks
    ]
)

#: Span links: row of the linking span in SPANS, and the linked span's ids.
LINKS = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),
        pa.field("trace_hi", pa.int64(), nullable=False),
        pa.field("trace_lo", pa.int64(), nullable=False),
        pa.field("span_id", pa.int64(), nullable=False),
    ]
)

#: Snapshots of one process's clocks, for wall-clock steps.
CLOCKS = pa.schema(
    [
        pa.field("domain", _TEXT, nullable=False),
        pa.field("process", _TEXT, nullable=False),
        pa.field("mono_ns", pa.int64(), nullable=False),
        pa.field("wall_ns", pa.int64(), nullable=False),
        pa.field("max_error_ns", pa.int64()),
    ]
)

#: Two rows a span. ``event`` = 2·row + (0 start, 1 end) of SPANS; ``timeline`` numbers the
#: (process, domain) pairs; ``local_ns`` is the time that orders the timeline.
EVENTS = pa.schema(
    [
        pa.field("event", pa.int64(), nullable=False),
        pa.field("timeline", pa.int32(), nullable=False),
        pa.field("domain", pa.int32(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("local_ns", pa.int64(), nullable=False),
        pa.field("wall_ns", pa.int64(), nullable=False),
    ]
)

#: Happened-before between events: corrected(dst) − corrected(src) ≥ min_ns ≥ 1.
EDGES = pa.schema(
    [
        pa.field("src", pa.int64(), nullable=False),
        pa.field("dst", pa.int64(), nullable=False),
        pa.field("min_ns", pa.int64(), nullable=False),
        pa.field("kind", _TEXT, nullable=False),
    ]
)


@dataclasses.dataclass(frozen=True)
class Ingested:
    """What the sources delivered: one run, without duplicates, in no particular order.

    Attributes:
        spans: Rows of `SPANS`.
        links: Rows of `LINKS`; ``row`` counts in ``spans``.
        clocks: Rows of `CLOCKS`.
        skipped: How many spans, lines or files were left out, by reason.
        first_skipped: The first example of each reason, as ``file:line: text``.
        missing: What a Jaeger no longer has of the run, by what it is; see `sources.missing`.
    """

    spans: pa.Table
    links: pa.Table
    clocks: pa.Table
    skipped: dict[str, int] = dataclasses.field(default_factory=dict)
    first_skipped: dict[str, str] = dataclasses.field(default_factory=dict)
    missing: dict[str, int] = dataclasses.field(default_factory=dict)
