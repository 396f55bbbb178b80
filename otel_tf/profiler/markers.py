"""TraceMes that carry the ids of spans: what was running, by the program's own account."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from otel_tf.profiler.executor import NONE
from otel_tf.profiler.nesting import Intervals, enclosing
from otel_tf.profiler.xspace import Space

__all__ = ["Markers", "linkage", "read_markers", "signed"]

Int = npt.NDArray[np.int64]

_TRACE, _SPAN = re.compile(r"t-([0-9a-f]{32})"), re.compile(r"s-([0-9a-f]{16})")
_WORKER = re.compile(r"([a-z]+)-(\d+)")


def linkage(trace_id: int, span_id: int) -> dict[str, str]:
    """Returns the stats that tie a TraceMe to a span: as texts that TensorFlow takes for nothing else."""
    return {"otel_trace": f"t-{trace_id:032x}", "otel_span": f"s-{span_id:016x}"}


def signed(number: int) -> int:
    """Returns an unsigned 64-bit number as int64 of the same bits."""
    return number - (1 << 64) if number >> 63 else number


@dataclasses.dataclass(frozen=True)
class Markers:
    """TraceMes with ids, in the order of their events (M,). Ids are int64, as in the correlator; 0 for none.

    Attributes:
        row: Event row.
        span: Their own span.
        step_span: The span of the step that they are, or that is around them.
        trace_hi, trace_lo: Of both.
        step_num: The step's number, `NONE` where it is not said.
        dispatch: Span of the dispatch, where they are a coordinator's.
        worker: Whose step it is, where they are a coordinator's: ``worker:1``; else "".
        start_ps, end_ps: Their times.
    """

    row: Int
    span: Int
    step_span: Int
    trace_hi: Int
    trace_lo: Int
    step_num: Int
    dispatch: Int
    worker: tuple[str, ...]
    start_ps: Int
    end_ps: Int


def read_markers(space: Space) -> Markers:
    """Returns the TraceMes of a profile that carry ids; those whose trace nothing says are left out."""
    row, _ = space.stat("otel_span").words()
    span = _ids(space, "otel_span", _SPAN, row)[:, 1]
    trace = _ids(space, "otel_trace", _TRACE, row)
    step_num = _numbers(space, "step_num", row)
    whole = (trace != 0).any(axis=1)
    around = _around(space, row, row[whole])
    outer = np.where(whole, np.arange(len(row)), around)
    keep = (span != 0) & (outer >= 0)
    step = outer[keep]
    return Markers(
        row=row[keep],
        span=span[keep],
        step_span=span[step],
        trace_hi=trace[step, 0],
        trace_lo=trace[step, 1],
        step_num=step_num[step],
        dispatch=_ids(space, "otel_dispatch", _SPAN, row)[keep, 1],
        worker=tuple(_workers(space, row[keep])),
        start_ps=space.start_ps[row[keep]],
        end_ps=space.end_ps[row[keep]],
    )


def _around(space: Space, row: Int, outer: Int) -> Int:
    """Returns the place in ``row`` of the event of ``outer`` around each, -1 for none."""
    mask = np.zeros(len(space), np.bool_)
    mask[outer] = True
    found = enclosing(Intervals(space.line, space.start_ps, space.end_ps), mask, row)
    return np.where(found >= 0, np.searchsorted(row, found), -1)


def _ids(space: Space, stat: str, form: re.Pattern[str], row: Int) -> Int:
    """Returns the ids of a stat for event rows (len(row), 2): both halves, 0 where there is none."""
    found = np.zeros((len(row), 2), np.int64)
    rows, words = space.stat(stat).words()
    at = np.searchsorted(row, rows)
    for place, event, word in _pairs(at, rows, words):
        match = form.fullmatch(space.texts[word])
        if match and place < len(row) and row[place] == event:
            number = int(match[1], 16)
            found[place] = signed(number >> 64), signed(number & (1 << 64) - 1)
    return found


def _numbers(space: Space, stat: str, row: Int) -> Int:
    column = np.full(len(space), NONE, np.int64)
    rows, values = space.stat(stat).numbers()
    column[rows] = values
    return column[row]


def _workers(space: Space, row: Int) -> Iterable[str]:
    names = dict(zip(*(column.tolist() for column in space.stat("otel_worker").words()), strict=True))
    for event in row.tolist():
        match = _WORKER.fullmatch(space.texts[names[event]]) if event in names else None
        yield f"{match[1]}:{match[2]}" if match else ""


def _pairs(*columns: Int) -> Iterable[tuple[int, ...]]:
    return zip(*(column.tolist() for column in columns), strict=True)
