"""Log records from OTLP JSON lines (ours, and those of a Collector's file exporter) into columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from otel_tf import semconv
from otel_tf.correlator.columns import Int, codes, integers
from otel_tf.correlator.log_tables import LOGS
from otel_tf.correlator.sources import ids
from otel_tf.correlator.sources.any_value import plain
from otel_tf.correlator.sources.chunks import identity
from otel_tf.correlator.sources.files import Format, find, open_binary
from otel_tf.correlator.sources.json_attributes import from_json
from otel_tf.correlator.sources.skipped import Skipped
from otel_tf.errors import UserError

__all__ = ["read_logs"]

Mask = npt.NDArray[np.bool_]

_PART_BYTES = 4 << 20
_MARK = b'"resourceLogs"'
_NO_ATTRIBUTES = msgspec.Raw(b"[]")
_K8S_POD = "k8s.pod.name"


class _Record(msgspec.Struct, gc=False):
    timeUnixNano: int = 0  # noqa: N815 - the format's names, here and below
    observedTimeUnixNano: int = 0  # noqa: N815
    severityNumber: int = 0  # noqa: N815
    body: msgspec.Raw = msgspec.Raw(b"null")
    attributes: msgspec.Raw = _NO_ATTRIBUTES
    traceId: str | None = ""  # noqa: N815
    spanId: str | None = ""  # noqa: N815


class _Scope(msgspec.Struct, gc=False):
    name: str | None = ""


class _ScopeLogs(msgspec.Struct, gc=False):
    scope: _Scope | None = None
    logRecords: tuple[_Record, ...] = ()  # noqa: N815


class _Resource(msgspec.Struct, gc=False):
    attributes: msgspec.Raw = _NO_ATTRIBUTES


class _ResourceLogs(msgspec.Struct, gc=False):
    resource: _Resource | None = None
    scopeLogs: tuple[_ScopeLogs, ...] = ()  # noqa: N815


class _Line(msgspec.Struct, gc=False):
    resourceLogs: tuple[_ResourceLogs, ...] = ()  # noqa: N815


#: Not strict: protobuf's JSON writes 64-bit integers as texts.
_LINE = msgspec.json.Decoder(_Line, strict=False)
_TEXT_BODY = msgspec.json.Decoder(dict[str, str])


def read_logs(specs: Sequence[str], skipped: Skipped, *, run: str | None = None) -> pa.Table:
    """Returns the log records of run directories and OTLP JSON files, rows of `LOGS`.

    Args:
        specs: Run directories and files; Jaeger has no logs, and is passed over.
        skipped: Where it is counted what could not be used.
        run: The run to take; default: the one that the last record is of.

    Raises:
        UserError: A source cannot be read, or there is no such run.
    """
    tables, sizes = [LOGS.empty_table()], [0]
    paths = [file for spec in specs if "://" not in spec for file in _files(Path(spec))]
    for file in paths:
        try:
            found = list(_read_file(file, skipped))
        except OSError as error:
            raise UserError(f"{file}: {error.strerror or error}") from None
        tables += found
        sizes.append(sum(table.num_rows for table in found))
    table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    table = _once(table, np.repeat(np.arange(len(sizes)), sizes), skipped)
    return _of_run(table, run)


def _once(table: pa.Table, file: Int, skipped: Skipped) -> pa.Table:
    """Returns records that several files have once: a run's spool, and what a Collector has kept of it.

    One file may have the same line several times, all read at one instant: the n-th of one file is the n-th
    of another.
    """
    writer = np.zeros(table.num_rows, np.int64)
    for name in ("process", "pid", "stream"):
        code, names = codes(table[name])
        writer = writer * (len(names) + 1) + code + 1
    pairs = np.unique(np.stack([writer, file]), axis=1)[0]
    several = pairs[1:][pairs[1:] == pairs[:-1]]
    rows = np.flatnonzero(np.isin(writer, several))
    if not len(rows):
        return table
    some = table.take(pa.array(rows))
    body = some["body"].dictionary_encode().combine_chunks().indices.to_numpy(zero_copy_only=False)
    keys = [writer[rows], *(integers(some[name]) for name in ("seq", "observed_ns", "time_ns")), body]
    order = np.lexsort([file[rows], *keys])
    again = _like_before([*keys, file[rows]], order)
    place = np.arange(len(rows))
    nth = np.empty(len(rows), np.int64)
    nth[order] = place - np.maximum.accumulate(np.where(again, 0, place))
    order = np.lexsort([file[rows], nth, *keys])
    duplicate = np.zeros(table.num_rows, np.bool_)
    duplicate[rows[order[_like_before([*keys, nth], order)]]] = True
    skipped.add("duplicate", "a log record that several files have", int(duplicate.sum()))
    return table.filter(pa.array(~duplicate)).combine_chunks()


def _like_before(keys: Sequence[Int], order: Int) -> Mask:
    """Returns where, in ``order``, all keys are those of the one before."""
    same = np.ones(len(order), np.bool_)
    same[:1] = False
    for key in keys:
        same[1:] &= key[order][1:] == key[order][:-1]
    return same


def _files(path: Path) -> list[Path]:
    """Returns the files below ``path`` that may hold OTLP JSON lines."""
    if path.is_dir():
        try:
            found = find(path)
        except UserError:
            return []
    else:
        found = find(path)
    return [file for file, form in found if form in (Format.JSON_LINES, Format.JSON_DOCUMENT)]


def _read_file(path: Path, skipped: Skipped) -> Iterator[pa.Table]:
    with open_binary(path) as stream:
        number = 1
        for data in _pieces(stream):
            if _MARK in data:
                lines, bad = _decoded(data)
                if bad:
                    skipped.add("not_json", f"{path.name}: after line {number}: {bad[0][:60]!r}", len(bad))
                table = _table(lines)
                if table.num_rows:
                    yield table
            number += data.count(b"\n")


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    while data := stream.read(_PART_BYTES):
        yield data if data.endswith(b"\n") else data + stream.readline()


def _decoded(data: bytes) -> tuple[list[_Line], list[bytes]]:
    try:
        return _LINE.decode_lines(data), []
    except (msgspec.MsgspecError, UnicodeDecodeError):
        lines, bad = [], []
        for line in data.split(b"\n"):
            if _MARK not in line:
                continue
            try:
                lines.append(_LINE.decode(line.decode("utf-8", "replace")))
            except msgspec.MsgspecError:
                bad.append(line)
        return lines, bad


def _table(lines: list[_Line]) -> pa.Table:
    parts = [part for line in lines for part in line.resourceLogs]
    resources = from_json([bytes(part.resource.attributes) if part.resource else b"[]" for part in parts])
    scopes = [(number, scope) for number, part in enumerate(parts) for scope in part.scopeLogs]
    sizes = [len(scope.logRecords) for _, scope in scopes]
    resource = np.repeat(np.array([number for number, _ in scopes], np.int64), sizes)
    names = [(scope.scope.name or "") if scope.scope else "" for _, scope in scopes]
    records = [record for _, scope in scopes for record in scope.logRecords]
    attributes = from_json([record.attributes for record in records])
    trace, good_trace, _ = ids.from_texts([record.traceId for record in records], 16)
    span, good_span, _ = ids.from_texts([record.spanId for record in records], 8)
    linked = good_trace & good_span
    who = identity(resources, resource, attributes)
    columns = {
        "time_ns": _times([record.timeUnixNano for record in records]),
        "observed_ns": _times([record.observedTimeUnixNano for record in records]),
        "mono_ns": attributes.integers(semconv.MONOTONIC_NS).array(),
        "seq": attributes.integers(semconv.SEQ).array(),
        "severity": pa.array([min(max(record.severityNumber, 0), 24) for record in records], pa.int8()),
        "body": pa.array([_body(record.body) for record in records], pa.large_string()),
        "logger": pa.array(
            np.repeat(np.array([*names, ""], object)[:-1], sizes), pa.string()
        ).dictionary_encode(),
        "stream": attributes.texts(semconv.LOG_IOSTREAM).array(),
        "file": attributes.texts(semconv.CODE_FILE_PATH).array(),
        "line": attributes.integers(semconv.CODE_LINE_NUMBER).array(),
        "run": who["run"],
        "process": who["process"],
        "pid": resources.texts(semconv.PROCESS_PID).take(resource).array(),
        "domain": who["domain"],
        "worker": who["worker"],
        "host": resources.texts(semconv.HOST_NAME).take(resource).array(),
        "pod": resources.texts(_K8S_POD).take(resource).array(),
        "global_step": attributes.integers(semconv.GLOBAL_STEP).array(),
        "trace_hi": pa.array(trace[:, 0], mask=~linked),
        "trace_lo": pa.array(trace[:, 1], mask=~linked),
        "span_id": pa.array(span[:, 0], mask=~linked),
        "exception_type": attributes.texts(semconv.EXCEPTION_TYPE).array(),
        "exception_stacktrace": attributes.texts(semconv.EXCEPTION_STACKTRACE).array(),
    }
    return pa.table([columns[field.name] for field in LOGS], schema=LOGS)


def _times(times: list[int]) -> pa.Array:
    """Returns times; null for 0, which means that there is none, and for what is no time."""
    numbers = np.array([time if 0 < time < 2**63 else 0 for time in times], np.int64)
    return pa.array(numbers, mask=numbers == 0)


def _body(raw: msgspec.Raw) -> str:
    """Returns a body as text, whatever it is."""
    try:
        return _TEXT_BODY.decode(raw)["stringValue"]
    except (msgspec.MsgspecError, KeyError):
        value = plain(msgspec.json.decode(raw))
        return (
            "" if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()
        )


def _of_run(table: pa.Table, run: str | None) -> pa.Table:
    """Returns the records of one run, and those of none."""
    column = table["run"].combine_chunks()
    names = [name for name in column.dictionary.to_pylist() if name is not None]
    if run is None and len(names) > 1:
        ends = table.group_by("run").aggregate([("time_ns", "max")])
        pairs = zip(ends["run"].to_pylist(), ends["time_ns_max"].to_pylist(), strict=True)
        run = max((time or 0, name) for name, time in pairs if name is not None)[1]
    if run is None or not table.num_rows:
        return table
    keep = pc.or_(pc.equal(column, run).fill_null(False), pc.is_null(column))
    return table.filter(keep).combine_chunks()
