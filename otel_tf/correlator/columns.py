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
    "ROLE_EXECUTE",
    "ROLE_RECV",
    "ROLE_RUN",
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
ROLE_STEP, ROLE_TRAIN_STEP, ROLE_COLLECTIVE, ROLE_RECV, ROLE_EXECUTE, ROLE_RUN = 1, 2, 3, 4, 5, 6
_ROLES = {
    semconv.SPAN_STEP: ROLE_STEP,
    semconv.SPAN_TRAIN_STEP: ROLE_TRAIN_STEP,
    semconv.SPAN_COLLECTIVE: ROLE_COLLECTIVE,
    "_Recv": ROLE_RECV,
    "_HostRecv": ROLE_RECV,
    semconv.SPAN_EXECUTE: ROLE_EXECUTE,
    semconv.SPAN_FUNCTION_RUN: ROLE_RUN,
    semconv.SPAN_REGION: ROLE_RUN,
}


@dataclasses.dataclass(frozen=True)
class Columns:
    """Numeric columns of N spans. Those of ids and times are read from the table whenever asked for.

    Attributes:
        spans: Rows of `tables.SPANS`.
        role: What the span's name means here, 0 for nothing, int8 (N,).
        failed: Whether its status is ERROR (N,).
        timeline: Number of the span's (process, domain) pair (N,).
        timeline_process, timeline_domain: Per timeline, index into ``processes`` and ``domains`` (T,).
        processes, domains: Names, sorted, so that numbers do not depend on the rows' order.
    """

    spans: pa.Table
    role: npt.NDArray[np.int8]
    failed: npt.NDArray[np.bool_]
    timeline: Int32
    timeline_process: Int32
    timeline_domain: Int32
    processes: tuple[str, ...]
    domains: tuple[str, ...]

    @property
    def count(self) -> int:
        """Number of spans N."""
        return len(self.timeline)

    @property
    def kind(self) -> npt.NDArray[np.int8]:
        """OTLP span kind (N,)."""
        kind: npt.NDArray[np.int8] = self.spans["kind"].to_numpy()
        return kind

    @property
    def trace_hi(self) -> Int:
        """High half of the trace id (N,)."""
        return integers(self.spans["trace_hi"])

    @property
    def trace_lo(self) -> Int:
        """Low half of the trace id (N,)."""
        return integers(self.spans["trace_lo"])

    @property
    def span_id(self) -> Int:
        """Span id (N,)."""
        return integers(self.spans["span_id"])

    @property
    def parent_id(self) -> Int:
        """Span id of the parent, 0 for none (N,)."""
        return integers(self.spans["parent_id"], 0)

    @property
    def start_ns(self) -> Int:
        """Wall clock at the start, as read (N,)."""
        return integers(self.spans["start_ns"])

    @property
    def end_ns(self) -> Int:
        """Wall clock at the end, as read (N,)."""
        return integers(self.spans["end_ns"])

    @property
    def seq(self) -> Int:
        """Program-order number, −1 where unknown (N,)."""
        return integers(self.spans["seq"])

    @property
    def mono_ns(self) -> Int:
        """Monotonic clock at the start, −1 where unknown (N,)."""
        return integers(self.spans["mono_ns"])

    @property
    def group_key(self) -> Int:
        """Which group of processes a collective is of, −1 for none (N,)."""
        return integers(self.spans["group_key"])

    @property
    def instance_key(self) -> Int:
        """Which collective of its group it is, −1 for none (N,)."""
        return integers(self.spans["instance_key"])


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
    pair = process * np.int64(max(len(domains), 1)) + domain
    present = np.flatnonzero(np.bincount(pair, minlength=1))
    number = np.zeros(int(present[-1]) + 1 if len(present) else 1, dtype=np.int32)
    number[present] = np.arange(len(present), dtype=np.int32)
    return Columns(
        spans=spans,
        role=_roles(names, name),
        failed=spans["status"].to_numpy() == 2,
        timeline=number[pair] if len(pair) else np.zeros(0, np.int32),
        timeline_process=(present // max(len(domains), 1)).astype(np.int32),
        timeline_domain=(present % max(len(domains), 1)).astype(np.int32),
        processes=processes,
        domains=domains,
    )
