"""Plain log files that nobody instrumented, one per process or already interleaved, into columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from otel_tf.correlator.log_tables import LOGS
from otel_tf.correlator.sources.files import open_binary
from otel_tf.errors import UserError
from otel_tf.logs.heads import Clock, Head, parse_head
from otel_tf.logs.hints import Patterns, Progress, own_task
from otel_tf.logs.joining import Joiner, Record
from otel_tf.logs.prefixes import Prefix, strip_prefix, task_in

__all__ = ["Plain", "read_plain"]

#: Layers of prefixes: a collector's around a launcher's around a process's.
_MOST_LAYERS = 3
#: Records that become columns at once.
_CHUNK = 1 << 16
#: The columns of a file while it is read.
_COLUMNS = {
    "began": pa.int64(),
    "time_ns": pa.int64(),
    "severity": pa.int8(),
    "body": pa.large_string(),
    **dict.fromkeys(("logger", "stream", "file"), pa.string()),
    "line": pa.int64(),
    **dict.fromkeys(("source", "worker", "pod"), pa.string()),
    "global_step": pa.int64(),
}
_NAMES, _TYPES = list(_COLUMNS), list(_COLUMNS.values())
#: Where a text names a step, it does so soon.
_LOOKED_AT = 500


@dataclasses.dataclass(frozen=True)
class Plain:
    """What was read.

    Attributes:
        logs: Rows of `LOGS`, in the order of the input.
        file: Of each row, the number of its file.
        lines: How many lines there were.
    """

    logs: pa.Table
    file: npt.NDArray[np.int64]
    lines: int


class _Source:
    """One process's output, as far as it can be told from others in the same file."""

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.joiner = Joiner()
        self.progress = Progress()
        self.began = 0
        self.prefix: Prefix | None = None


class _File:
    """Reads one file into rows."""

    def __init__(self, path: Path, worker: str | None, patterns: Patterns, clock: Clock) -> None:
        self._path = path
        self._worker = worker
        self._patterns = patterns
        self._clock = clock
        self._sources: dict[str | None, _Source] = {}
        self._own: set[str] = set()
        #: Of a server's thread that said which task it serves, its source file and the task.
        self._serves: dict[int, tuple[str | None, str]] = {}
        self._rows: list[tuple[Any, ...]] = []
        self._tables: list[pa.Table] = []
        self.lines = 0

    def read(self) -> None:
        """Reads all of it.

        Raises:
            OSError: It cannot be read.
        """
        with open_binary(self._path) as stream:
            for raw in stream:
                self.lines += 1
                text = raw.decode("utf-8", "replace").rstrip("\r\n")
                # Of a progress bar that wrote over itself, what it came to.
                self._add(text.rpartition("\r")[2] if "\r" in text else text)
        for source in self._sources.values():
            self._take(source, source.joiner.end())
        self._to_columns()

    def _add(self, text: str) -> None:
        prefix: Prefix | None = None
        for _ in range(_MOST_LAYERS):
            found = strip_prefix(text, self._clock)
            if found is None:
                break
            prefix = found if prefix is None else _inside(prefix, found)
            if found.rest == text:
                break
            text = found.rest
        key = None if prefix is None else prefix.source
        source = self._sources.get(key)
        if source is None:
            source = self._sources[key] = _Source(key)
        done = source.joiner.add(text, parse_head(text, self._clock))
        if done is not None:
            self._take(source, done)
        if source.joiner.open and source.began == 0:
            source.began, source.prefix = self.lines, prefix

    def _take(self, source: _Source, record: Record | None) -> None:
        if record is None:
            return
        began, prefix = source.began, source.prefix
        source.began, source.prefix = 0, None
        head: Head | None = record.head
        text = record.text[:_LOOKED_AT]
        time_ns = head.time_ns if head is not None else None
        severity = head.severity if head is not None else 0
        worker = self._patterns.worker(text)
        if source.name is None and (own := own_task(text)):
            self._own.add(own)
            if head is not None and head.thread is not None:
                self._serves[head.thread] = (head.file, own)
        elif worker is None and head is not None and head.thread is not None:
            file, serves = self._serves.get(head.thread, (None, None))
            worker = serves if file == head.file else None
        if prefix is not None:
            time_ns = time_ns if time_ns is not None else prefix.time_ns
            severity = severity or prefix.severity
            worker = worker or prefix.worker
        step = self._patterns.step(text)
        if step is None:
            step = source.progress.step(record.text)
        self._rows.append(
            (
                began,
                time_ns,
                severity,
                record.text,
                head.logger if head is not None else None,
                prefix.stream if prefix is not None else None,
                head.file if head is not None else None,
                head.line if head is not None else None,
                source.name,
                worker,
                prefix.pod if prefix is not None else None,
                step,
            )
        )

        if len(self._rows) >= _CHUNK:
            self._to_columns()

    def _to_columns(self) -> None:
        """Makes columns of the rows so far: a million of them would be gigabytes of objects."""
        if self._rows:
            columns = zip(*self._rows, strict=True)
            self._tables.append(
                pa.table([pa.array(*pair) for pair in zip(columns, _TYPES, strict=True)], _NAMES)
            )
            self._rows = []

    def table(self) -> pa.Table:
        """Returns the records in the order of the file, rows of `LOGS`."""
        if not self._tables:
            return LOGS.empty_table()
        table = pa.concat_tables(self._tables)
        if len(self._sources) > 1:
            # A record ends only when its source goes on, which may be after another one's has begun.
            table = table.sort_by("began")
        source, name = table["source"], self._path.name
        columns = {
            **{column: table[column] for column in _NAMES if column in LOGS.names},
            "process": pc.if_else(
                pc.is_valid(source),
                pc.binary_join_element_wise(pa.scalar(name), source, " "),
                pa.scalar(name),
            ),
            "worker": self._workers(source, table["worker"]),
        }
        count = table.num_rows
        return pa.table([_typed(columns.get(field.name), field.type, count) for field in LOGS], schema=LOGS)

    def _workers(self, source: pa.ChunkedArray, worker: pa.ChunkedArray) -> pa.ChunkedArray:
        """Returns each record's worker: as told, as it says, as its source says, as the file does."""
        if self._worker is not None:
            return pa.chunked_array([pa.repeat(pa.scalar(self._worker), len(worker))])
        # What all of a source's lines say that say anything.
        pairs = pa.table({"source": source, "worker": worker}).drop_null()
        by_source: dict[str, set[str]] = {}
        for pair in pairs.group_by(["source", "worker"]).aggregate([]).to_pylist():
            by_source.setdefault(pair["source"], set()).add(pair["worker"])
        known = {name: next(iter(tasks)) for name, tasks in by_source.items() if len(tasks) == 1}
        if known:
            index = pc.index_in(source, pa.array(list(known)))
            worker = pc.coalesce(worker, pc.take(pa.array(list(known.values())), index))
        if len(self._own) == 1 and len(self._sources) == 1:
            whole: str | None = next(iter(self._own))
        else:
            whole = task_in(self._path.name)
        return worker if whole is None else pc.fill_null(worker, whole)


def _typed(values: Any, kind: pa.DataType, count: int) -> Any:
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    column = pa.chunked_array([pa.nulls(count, plain)]) if values is None else values.cast(plain)
    return column.dictionary_encode() if plain is not kind else column


def _inside(outer: Prefix, inner: Prefix) -> Prefix:
    """Returns two layers as one; who wrote it, the outer knows, and when, the inner."""
    return Prefix(
        inner.rest,
        outer.source or inner.source,
        outer.worker or inner.worker,
        outer.stream or inner.stream,
        inner.time_ns if inner.time_ns is not None else outer.time_ns,
        inner.severity or outer.severity,
        inner.file or outer.file,
        inner.line or outer.line,
        outer.pod or inner.pod,
    )


def read_plain(
    specs: Sequence[str], *, patterns: Patterns | None = None, clock: Clock | None = None
) -> Plain:
    """Returns the records of plain log files.

    Args:
        specs: Files, also compressed; directories, all files below them; each may have the task that wrote it
            before it, ``worker:0=FILE``.
        patterns: Finds worker and step.
        clock: Says what local times mean; default: UTC.

    Raises:
        UserError: A file cannot be read.
    """
    patterns, clock = patterns or Patterns(), clock or Clock(0)
    tables, numbers, lines = [LOGS.empty_table()], [np.empty(0, np.int64)], 0
    for number, (path, worker) in enumerate(_paths(specs)):
        file = _File(path, worker, patterns, clock)
        try:
            file.read()
        except OSError as error:
            raise UserError(f"{path}: {error.strerror or error}") from None
        tables.append(file.table())
        numbers.append(np.full(tables[-1].num_rows, number, np.int64))
        lines += file.lines
    table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    return Plain(table, np.concatenate(numbers), lines)


def _paths(specs: Sequence[str]) -> Iterator[tuple[Path, str | None]]:
    for spec in specs:
        task, equals, name = spec.partition("=")
        named = bool(equals) and not Path(spec).exists()
        path, worker = (Path(name), task) if named else (Path(spec), None)
        if path.is_dir():
            for file in sorted(path.rglob("*")):
                if file.is_file() and not file.name.startswith("."):
                    yield file, worker
        else:
            yield path, worker
