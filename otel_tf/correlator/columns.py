"""The spans of a run as numeric columns, and the program order of their events.

An event is ``2·row + (0 start, 1 end)``. A timeline is one process on one clock: its events are totally
ordered by that clock. Everything after this module is integers.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from otel_tf import semconv

__all__ = [
    "ROLE_COLLECTIVE",
    "ROLE_RECV",
    "ROLE_STEP",
    "ROLE_TRAIN_STEP",
    "Columns",
    "Int",
    "codes",
    "from_spans",
    "integers",
    "median",
]

Int = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]

#: What a span's name means to the correlator; 0 for every other name.
ROLE_STEP, ROLE_TRAIN_STEP, ROLE_COLLECTIVE, ROLE_RECV = 1, 2, 3, 4
_ROLES = {
    semconv.SPAN_STEP: ROLE_STEP,
    semconv.SPAN_TRAIN_STEP: ROLE_TRAIN_STEP,
    semconv.SPAN_COLLECTIVE: ROLE_COLLECTIVE,
    "_Recv": ROLE_RECV,
}


@dataclasses.dataclass(frozen=True)
class Columns:
    """Numeric columns of N spans.

    Attributes:
        trace_hi, trace_lo, span_id, parent_id: Ids, int64 (N,).
        kind: OTLP span kind (N,); ``failed`` where the status is ERROR (N,); ``role`` by name (N,).
        start_ns, end_ns: Wall clock as read, ns (N,).
        timeline: Number of the span's (process, domain) pair (N,).
        timeline_process, timeline_domain: Per timeline, index into ``processes`` and ``domains``.
        processes, domains: Names, sorted, so that numbers do not depend on the rows' order.
        seq: Program-order number, -1 where unknown (N,).
        mono_ns: Monotonic clock at the start, -1 where unknown (N,).
        group_key, instance_key: A collective's names, -1 where unknown (N,).
    """

    trace_hi: Int
    trace_lo: Int
    span_id: Int
    parent_id: Int
    kind: npt.NDArray[np.int8]
    failed: npt.NDArray[np.bool_]
    role: npt.NDArray[np.int8]
    start_ns: Int
    end_ns: Int
    timeline: Int32
    timeline_process: Int32
    timeline_domain: Int32
    processes: tuple[str, ...]
    domains: tuple[str, ...]
    seq: Int
    mono_ns: Int
    group_key: Int
    instance_key: Int

    @property
    def count(self) -> int:
        """Number of spans N."""
        return len(self.span_id)


def codes(column: Any) -> tuple[Int32, tuple[str, ...]]:
    """Returns a text column as indices into its sorted distinct values; -1 where null."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    array = column.unify_dictionaries().combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # combine_chunks of an empty column
        array = pa.array([], type=column.type)
    indices = array.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32, copy=False)
    names = array.dictionary.to_pylist()
    used = np.zeros(len(names) + 1, dtype=bool)
    used[indices] = True
    present = sorted({name for name, flag in zip(names, used, strict=False) if flag})
    rank = {name: number for number, name in enumerate(present)}
    mapping = np.array([rank.get(name, -1) for name in names] + [-1], dtype=np.int32)
    return mapping[indices], tuple(present)


def integers(column: Any, missing: int = -1) -> Int:
    """Returns an integer column as int64, nulls replaced."""
    if column.null_count:
        column = column.fill_null(missing)
    array: Int = column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(False)
    return array


def median(values: Int) -> int:
    """Returns the upper median. numpy's own goes through floats, which are too coarse for times."""
    middle = len(values) // 2
    return int(np.partition(values, middle)[middle])


def _roles(names: tuple[str, ...], indices: Int32) -> npt.NDArray[np.int8]:
    table = np.array([_ROLES.get(name, 0) for name in names] + [0], dtype=np.int8)
    return table[indices]


def from_spans(spans: pa.Table) -> Columns:
    """Returns the numeric columns of a `tables.SPANS` table."""
    process, processes = codes(spans["process"])
    domain, domains = codes(spans["domain"])
    name, names = codes(spans["name"])
    pair = process.astype(np.int64) * max(len(domains), 1) + domain
    present = np.flatnonzero(np.bincount(pair, minlength=1))
    number = np.zeros(int(present[-1]) + 1 if len(present) else 1, dtype=np.int32)
    number[present] = np.arange(len(present), dtype=np.int32)
    return Columns(
        trace_hi=integers(spans["trace_hi"]),
        trace_lo=integers(spans["trace_lo"]),
        span_id=integers(spans["span_id"]),
        parent_id=integers(spans["parent_id"], 0),
        kind=spans["kind"].to_numpy(),
        failed=spans["status"].to_numpy() == 2,
        role=_roles(names, name),
        start_ns=integers(spans["start_ns"]),
        end_ns=integers(spans["end_ns"]),
        timeline=number[pair] if len(pair) else np.zeros(0, np.int32),
        timeline_process=(present // max(len(domains), 1)).astype(np.int32),
        timeline_domain=(present % max(len(domains), 1)).astype(np.int32),
        processes=processes,
        domains=domains,
        seq=integers(spans["seq"]),
        mono_ns=integers(spans["mono_ns"]),
        group_key=integers(spans["group_key"]),
        instance_key=integers(spans["instance_key"]),
    )
