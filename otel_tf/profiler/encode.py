"""Spans as OTLP from columns, protobuf or JSON, without a Python object a span.

Spans that differ only in their ids, times and a few integers are the same bytes but for some places. So spans
are put into groups of one layout and one length, a group is a table of bytes with a row a span, and what is
the same in all rows is written once, what differs a column at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["SPANS_A_REQUEST", "Batch", "Bytes", "Format", "Int", "Layout", "Piece", "requests"]

Int = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

#: Spans of a request: a few megabytes.
SPANS_A_REQUEST = 8192


@dataclasses.dataclass(frozen=True)
class Layout:
    """What spans of a kind have in common.

    Attributes:
        name, kind: The span's; ``kind`` is OTLP's SpanKind.
        fixed: Attributes with the same value in all: texts, integers, doubles, booleans or lists of these.
        integers: Keys of attributes whose values differ.
        linked: Whether each has a link.
    """

    name: str
    kind: int
    fixed: tuple[tuple[str, Any], ...] = ()
    integers: tuple[str, ...] = ()
    linked: bool = False


@dataclasses.dataclass
class Batch:
    """Spans of one resource (N,). Ids are int64 of the same bits; parent 0 is none.

    Attributes:
        layouts: The layouts.
        layout: Of each span, index into ``layouts``.
        trace_hi, trace_lo, span, parent: Ids.
        start_ns, end_ns: Times; not negative.
        integers: Values of the attributes that differ; any where the layout has none.
        link_hi, link_lo, link_span: What a link leads to.
    """

    layouts: list[Layout]
    layout: Int
    trace_hi: Int
    trace_lo: Int
    span: Int
    parent: Int
    start_ns: Int
    end_ns: Int
    integers: dict[str, Int]
    link_hi: Int
    link_lo: Int
    link_span: Int

    def __len__(self) -> int:
        return len(self.layout)


_TIMES = ("start_ns", "end_ns")
#: A place in a row: bytes that are the same in all, or what to put there and how long that is.
Piece = bytes | tuple[str, int]


class Format(Protocol):
    """How spans are written."""

    def width(self, values: Int) -> Int:
        """Returns a number below 64 for each integer; those of one number are written equally long."""

    def length(self, width: int) -> int:
        """Returns how many bytes integers of a `width` take."""

    def integer(self, values: Int, width: int) -> Bytes:
        """Returns integers of one `width`, a row each."""

    def identifier(self, values: Int) -> Bytes:
        """Returns 8-byte ids, a row each."""

    def time_width(self, values: Int) -> Int:
        """Returns how many bytes each time takes, below 64."""

    def time(self, values: Int, width: int) -> Bytes:
        """Returns times of one width, a row each."""

    def row(self, layout: Layout, widths: Mapping[str, int], *, child: bool) -> list[Piece]:
        """Returns what a row is made of."""

    def request(self, resource: Mapping[str, Any], rows: list[bytes]) -> bytes:
        """Returns one ``ExportTraceServiceRequest``."""


def requests(format_: Format, batch: Batch, resource: Mapping[str, Any]) -> Iterator[tuple[bytes, int]]:
    """Yields requests and how many spans are in each. The spans come in groups of like ones.

    Args:
        format_: `otlp.Proto` or `otlp.Json`.
        batch: The spans.
        resource: Attributes of their resource.
    """
    rows: list[bytes] = []
    count = 0
    scratch = np.empty(0, np.uint8)
    for some in _groups(format_, batch):
        pieces = format_.row(some.layout, some.widths, child=some.child)
        length = sum(len(piece) if isinstance(piece, bytes) else piece[1] for piece in pieces)
        if len(scratch) < len(some.rows) * length:
            # Kept for the next: fresh memory costs more than what is written into it.
            scratch = np.empty(len(some.rows) * length, np.uint8)
        table = scratch[: len(some.rows) * length].reshape(-1, length)
        _fill(table, format_, some, pieces)
        rows.append(table.tobytes())
        count += len(table)
        if count >= SPANS_A_REQUEST:
            yield format_.request(resource, rows), count
            rows, count = [], 0
    if count:
        yield format_.request(resource, rows), count


@dataclasses.dataclass
class _Group:
    """The spans at ``rows`` of a batch, which have one layout and one length."""

    layout: Layout
    widths: dict[str, int]
    batch: Batch
    rows: Int
    child: bool


def _groups(format_: Format, batch: Batch) -> Iterator[_Group]:
    key = batch.layout * 2 + (batch.parent != 0)
    widths = {name: format_.time_width(getattr(batch, name)) for name in _TIMES}
    for name, values in batch.integers.items():
        has = np.array([name in layout.integers for layout in batch.layouts], np.bool_)
        widths[name] = np.where(has[batch.layout], format_.width(values), 0)
    for width in widths.values():
        key = key * 64 + width
        if key.max(initial=0) >> 50:  # no room for another
            key = np.unique(key, return_inverse=True)[1].reshape(-1)
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(order) else order
    bounds = np.append(first, len(order)).tolist()
    for number, begin in enumerate(bounds[:-1]):
        some = order[begin]
        layout = batch.layouts[batch.layout[some]]
        mine = {name: int(widths[name][some]) for name in (*_TIMES, *layout.integers)}
        child = bool(batch.parent[some] != 0)
        for part in range(begin, bounds[number + 1], SPANS_A_REQUEST):
            rows = order[part : min(part + SPANS_A_REQUEST, bounds[number + 1])]
            yield _Group(layout, mine, batch, rows, child)


def _fill(table: Bytes, format_: Format, group: _Group, pieces: list[Piece]) -> None:
    at = 0
    for piece in pieces:
        if isinstance(piece, bytes):
            table[:, at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)
        else:
            table[:, at : at + piece[1]] = _column(format_, group, piece[0])
            at += piece[1]


def _column(format_: Format, group: _Group, what: str) -> Bytes:
    if what in group.batch.integers:
        return format_.integer(group.batch.integers[what][group.rows], group.widths[what])
    values = getattr(group.batch, what)[group.rows]
    return format_.time(values, group.widths[what]) if what in _TIMES else format_.identifier(values)
