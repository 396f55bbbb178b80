"""``perfetto=FILE``: the corrected run as a Chrome trace, for ui.perfetto.dev; one process track a worker.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from otel_tf.correlator.sinks.draft import draft
from otel_tf.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

    from otel_tf.correlator.result import Result

__all__ = ["write"]

_SHOWN = ("global_step", "order", "shift_ns", "error_ns", "staleness", "worker", "trace_id", "span_id")


def write(result: Result, target: str, say: Callable[[str], None]) -> None:
    """Writes the file ``target``.

    Raises:
        UserError: It cannot be written.
    """
    path = Path(target)
    encode = msgspec.json.Encoder().encode
    try:
        with draft(path) as part, part.open("wb") as file:
            file.write(b'{"displayTimeUnit":"ns","traceEvents":[\n')
            for number, event in enumerate(_events(result.spans)):
                file.write((b",\n" if number else b"") + encode(event))
            file.write(b"\n]}\n")
    except OSError as error:
        raise UserError(f"perfetto={target}: {error.strerror or error}") from None
    say(f"{result.spans.num_rows:,} spans written to {path}")


def _events(spans: pa.Table) -> Iterator[dict[str, Any]]:
    start, end = (spans[name].to_numpy() for name in ("corrected_start_ns", "corrected_end_ns"))
    base = int(start.min(initial=np.iinfo(np.int64).max))
    process = spans["process"].to_pylist()
    pids = {name: number for number, name in enumerate(sorted(set(process)), 1)}
    for name, pid in pids.items():
        shown = name.rpartition("/")[2]
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": shown}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    lanes = _lanes(process, start.tolist(), end.tolist())
    names = spans["name"].to_pylist()
    failed = (spans["status"].to_numpy() == 2).tolist()
    shown_columns = {name: spans[name].to_pylist() for name in _SHOWN}
    for row, name in enumerate(names):
        arguments = {key: column[row] for key, column in shown_columns.items() if column[row] is not None}
        event: dict[str, Any] = {
            **{"ph": "X", "name": name, "cat": "span", "pid": pids[process[row]], "tid": lanes[row]},
            # µs with the ns as decimals; from the first span, since a double has no room for both.
            **{"ts": (int(start[row]) - base) / 1000, "dur": int(end[row] - start[row]) / 1000},
            "args": arguments,
        }
        if failed[row]:
            event["cname"] = "terrible"
        yield event


def _lanes(process: list[str], start: list[int], end: list[int]) -> list[int]:
    """Returns the lane of each span in its process: in a lane, spans lie inside each other or apart."""
    lane_of = [0] * len(start)
    lanes: dict[str, list[list[int]]] = {}
    for row in sorted(range(len(start)), key=lambda row: (start[row], -end[row])):
        lane_of[row] = _lane(lanes.setdefault(process[row], []), start[row], end[row])
    return lane_of


def _lane(lanes: list[list[int]], start: int, end: int) -> int:
    """Puts a span into the first lane that has room, and returns its number from 1.

    A lane is the ends of its open spans, the outermost first.
    """
    for number, ends in enumerate(lanes, 1):
        while ends and ends[-1] <= start:
            ends.pop()
        if not ends or end <= ends[-1]:
            ends.append(end)
            return number
    lanes.append([end])
    return len(lanes)
