"""The table of log records: what every source of them delivers, times in ns, ids as in `tables`."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["LOGS", "PLACED"]

_TEXT = pa.dictionary(pa.int32(), pa.string())

#: One row a record, as read, in the order of the input.
LOGS = pa.schema(
    [
        pa.field("time_ns", pa.int64()),  # the record's own, by the wall clock of ``domain``
        pa.field("observed_ns", pa.int64()),  # when it was taken, by the same
        pa.field("mono_ns", pa.int64()),  # monotonic clock when it was taken
        pa.field("seq", pa.int64()),
        pa.field("severity", pa.int8(), nullable=False),  # OTLP's number, 0 unknown
        pa.field("body", pa.large_string(), nullable=False),
        pa.field("logger", _TEXT),
        pa.field("stream", _TEXT),  # stderr, where it came through that
        pa.field("file", _TEXT),
        pa.field("line", pa.int64()),
        pa.field("run", _TEXT),
        pa.field("process", _TEXT),
        pa.field("pid", _TEXT),
        pa.field("domain", _TEXT),
        pa.field("worker", _TEXT),
        pa.field("host", _TEXT),
        pa.field("pod", _TEXT),
        pa.field("global_step", pa.int64()),
        pa.field("trace_hi", pa.int64()),
        pa.field("trace_lo", pa.int64()),
        pa.field("span_id", pa.int64()),
        pa.field("exception_type", _TEXT),
        pa.field("exception_stacktrace", _TEXT),
    ]
)

#: What placing adds. ``evidence`` says by what a record was placed: ``program`` (between events of its own
#: process), ``clock`` (by its clock domain), ``time`` (its own time, uncorrected), ``step`` or ``position``.
PLACED = pa.schema(
    [
        *LOGS,
        pa.field("order", pa.int64(), nullable=False),
        pa.field("corrected_ns", pa.int64()),
        pa.field("error_ns", pa.int64()),  # half-width of the error bar, null where unknown
        pa.field("evidence", _TEXT, nullable=False),
    ]
)
