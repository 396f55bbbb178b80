"""The merged log, for people and for programs: a line a record."""

from __future__ import annotations

import datetime
import os
from typing import TYPE_CHECKING, Any, TextIO

from otel_tf.cli._figures import duration
from otel_tf.logs.severity import name_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Printer", "as_object", "unseen"]

_BATCH = 8192
#: Colours that are read on dark and on light ground.
_COLOURS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)
_RED, _DIM = "31", "2"
_WANTED = (
    *("order", "time_ns", "observed_ns", "corrected_ns", "error_ns", "worker", "global_step", "severity"),
    *("body", "trace_hi", "trace_lo", "span_id", "file", "line", "logger", "stream", "process", "pod"),
    "evidence",
)


class Printer:
    """Writes records.

    Args:
        out: Where to.
        as_json: One object a line; else text, in colours where ``out`` is a terminal and NO_COLOR is not set.
    """

    def __init__(self, out: TextIO, *, as_json: bool) -> None:
        self._out = out
        self._json = as_json
        self._colours = out.isatty() and not os.environ.get("NO_COLOR") and not as_json
        self._colour_of: dict[str, int] = {}

    def write(self, logs: pa.Table) -> None:
        """Writes records, rows of `PLACED`, in their order."""
        if not logs.num_rows:
            return
        if self._json:
            import msgspec

            encode = msgspec.json.encode
            for batch in logs.select(_WANTED).to_batches(max_chunksize=_BATCH):
                lines = [encode(as_object(row)).decode() for row in batch.to_pylist()]
                self._out.write("\n".join(lines) + "\n")
            return
        workers = logs["worker"].combine_chunks().dictionary.to_pylist()
        width = min(max((len(name) for name in workers if name), default=1), 24)
        for batch in logs.select(_WANTED).to_batches(max_chunksize=_BATCH):
            self._out.write("".join(self._line(row, width) for row in batch.to_pylist()))

    def _line(self, row: dict[str, Any], width: int) -> str:
        worker = row["worker"] or "-"
        step = "-" if row["global_step"] is None else str(row["global_step"])
        level = name_of(row["severity"])
        at = row["corrected_ns"] if row["corrected_ns"] is not None else row["time_ns"]
        error = "" if row["error_ns"] is None else f"±{duration(row['error_ns'])}"
        body = row["body"].replace("\n", "\n    ")
        place = f" ({row['file'].rpartition('/')[2]}:{row['line']})" if row["file"] and row["line"] else ""
        front = f"{_clock(at)} {error:>9} {worker:<{width}} {step:>7} {level:<5}"
        if not self._colours:
            return f"{front} {body}{place}\n"
        colour = self._colour_of.setdefault(worker, _COLOURS[len(self._colour_of) % len(_COLOURS)])
        body = f"\x1b[{_RED}m{body}\x1b[0m" if row["severity"] >= 17 else body
        return f"\x1b[{colour}m{front}\x1b[0m {body}\x1b[{_DIM}m{place}\x1b[0m\n"


def as_object(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a record as ``--format json`` shows it."""
    linked = row["span_id"] is not None
    return {
        "order": row["order"],
        "time_ns": row["time_ns"] if row["time_ns"] is not None else row["observed_ns"],
        "corrected_ns": row["corrected_ns"],
        "error_ns": row["error_ns"],
        "worker": row["worker"],
        "step": row["global_step"],
        "severity": name_of(row["severity"]) or None,
        "body": row["body"],
        "trace_id": f"{_unsigned(row['trace_hi']):016x}{_unsigned(row['trace_lo']):016x}" if linked else None,
        "span_id": f"{_unsigned(row['span_id']):016x}" if linked else None,
        "file": row["file"],
        "line": row["line"],
        "logger": row["logger"],
        "stream": row["stream"],
        "process": row["process"],
        "pod": row["pod"],
        "evidence": row["evidence"],
    }


def unseen(logs: pa.Table, seen: set[int]) -> pa.Table:
    """Returns the records that are not in ``seen``, and adds them."""
    import pyarrow as pa

    keys = zip(
        *(logs[name].to_pylist() for name in ("process", "seq", "observed_ns", "mono_ns", "body")),
        strict=True,
    )
    new = []
    for key in keys:
        value = hash(key)
        new.append(value not in seen)
        seen.add(value)
    return logs.filter(pa.array(new, pa.bool_()))


def _unsigned(number: int) -> int:
    return number & 0xFFFF_FFFF_FFFF_FFFF


def _clock(time_ns: int | None) -> str:
    if time_ns is None or time_ns < 0:
        return " " * 19 + "-"
    seconds, rest = divmod(time_ns, 1_000_000_000)
    moment = datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)
    return f"{moment:%m-%d %H:%M:%S}.{rest // 1000:06d}"
