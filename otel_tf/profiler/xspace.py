"""XSpace files (``*.xplane.pb``) to columns: bytes to Arrow, a piece of a plane at a time.

A file of any size is mapped, not loaded, and parsed in pieces of some megabytes; what is kept of an event
are 24 bytes and the few stats of `STATS`. A file that was cut off gives what is whole in it, and says how
much is not.
"""

from __future__ import annotations

import dataclasses
import mmap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from otel_tf.errors import UserError
from otel_tf.profiler import _shape
from otel_tf.profiler._metadata import Metadata, Numbers, mask, numpy, parents, signed
from otel_tf.profiler._wire import Damaged, Field, fields

__all__ = ["STATS", "Line", "Space", "Stat", "find", "read_file"]

Int = npt.NDArray[np.int64]

SUFFIX = ".xplane.pb"
#: The stats that are kept, by their names in the file.
STATS = (
    *("step_num", "_r", "otel_trace", "otel_span", "id", "step_id", "iter_num", "_pt", "_p", "_ct", "_c"),
    *("group_id", "correlation_id", "run_id", "context_id", "instance_key", "group_key", "from", "to", "key"),
    *("otel_dispatch", "otel_worker", "otel_closure"),
    *("kernel_type", "name", "eager_op", "is_func", "annotation", "tf_op", "hlo_op", "step_name"),
)
_START_TIME = "profile_start_time"
#: Serialized lines that are parsed at once, and what a line is cut into if it is longer than that by far.
_PIECE, _LONG_LINE = 1 << 20, 64 << 20
#: A line time later than this (2001) is no time since the start of the profile.
_WALL_NS = 10**18
#: Times beyond this (26 hours after the profile's start) are damage; sums of them stay within int64.
_LATEST_PS = 10**17
_REPLACED = b"\xef\xbf\xbd"


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a plane: mostly a thread, or a stream of a device."""

    plane: str
    id: int
    name: str


@dataclasses.dataclass(frozen=True)
class Stat:
    """One stat of the events that have it: rows, ascending, and values; texts as indices into ``texts``."""

    row: Int
    value: Int
    is_text: npt.NDArray[np.bool_]

    def numbers(self) -> tuple[Int, Int]:
        """Returns rows and values of those that are integers."""
        return self.row[~self.is_text], self.value[~self.is_text]

    def words(self) -> tuple[Int, Int]:
        """Returns rows of those that are texts, and indices into `Space.texts`."""
        return self.row[self.is_text], self.value[self.is_text]


@dataclasses.dataclass(frozen=True)
class Space:
    """The events of one file, ordered by line and start, of one start the longest first.

    Attributes:
        path: The file.
        hostname: What it says about its machine; the same for all processes of one.
        base_ns: What ``start_ps`` counts from: wall clock ns if ``absolute``, else ns of an unknown clock.
        absolute: Whether the file says when it began.
        lines: Its lines; ``line`` counts in them.
        names: Distinct names; ``name`` counts in them.
        types: TensorFlow's display name for each of ``names``: the op type, mostly "".
        line, name: Of each event (N,), int32.
        start_ps, duration_ps: Of each event (N,).
        stats: By name, those of `STATS` that occur.
        texts: Values of stats that are texts.
        events: How many events there are in the file, those left out included.
        lacking: Bytes of the file that could not be read.
        dropped: Events that were read but have no name or no possible time.
    """

    path: Path
    hostname: str
    base_ns: int
    absolute: bool
    lines: tuple[Line, ...]
    names: tuple[str, ...]
    types: tuple[str, ...]
    line: npt.NDArray[np.int32]
    name: npt.NDArray[np.int32]
    start_ps: Int
    duration_ps: Int
    stats: dict[str, Stat]
    texts: tuple[str, ...]
    events: int
    lacking: int
    dropped: int

    def __len__(self) -> int:
        return len(self.line)

    @property
    def end_ps(self) -> Int:
        """When each event ended (N,)."""
        return self.start_ps + self.duration_ps

    def stat(self, name: str) -> Stat:
        """Returns a stat, with no rows if no event has it."""
        none = np.zeros(0, np.int64)
        return self.stats.get(name) or Stat(none, none, np.zeros(0, np.bool_))

    def named(self, is_meant: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
        """Returns which events have a name that is meant (N,)."""
        table = np.fromiter(map(is_meant, self.names), np.bool_, len(self.names))
        found: npt.NDArray[np.bool_] = table[self.name]
        return found


def find(path: Path) -> list[Path]:
    """Returns the XSpace files that ``path`` means: itself, or all below it, by name.

    Raises:
        UserError: There is none.
    """
    try:
        if not path.is_dir():
            path.stat()
            return [path]
        found = sorted(file for file in path.rglob(f"*{SUFFIX}") if file.is_file())
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    if not found:
        raise UserError(f"{path}: no profile (*{SUFFIX}) in this directory")
    return found


def read_file(path: Path, *, without: frozenset[str] = frozenset(), stats: tuple[str, ...] = STATS) -> Space:
    """Returns the events of an XSpace file; of one that is damaged, those that are whole.

    Args:
        path: The file.
        without: Names of events to leave out; they count in ``events`` alone.
        stats: Those of `STATS` to keep.

    Raises:
        UserError: It cannot be read, is empty, or nothing in it is an event.
    """
    try:
        with path.open("rb") as file:
            if not path.stat().st_size:
                raise UserError(
                    f"{path}: 0 bytes: the profiler wrote nothing, as it does of more than 2 GB; "
                    "profile fewer steps"
                )
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as data:
                return _Reader(path, data, without, stats).read()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None


class _Reader:
    """Reads one file."""

    def __init__(
        self, path: Path, data: memoryview, without: frozenset[str], kept_stats: tuple[str, ...]
    ) -> None:
        self.path = path
        self.data = data
        self.without = without
        self.kept_stats = kept_stats
        self.hostname = ""
        self.started_ns: int | None = None
        self.lines: list[tuple[Line, int]] = []
        self.names = Numbers()
        self.types: list[str] = []
        self.texts = Numbers()
        self.columns: list[tuple[npt.NDArray[Any], ...]] = []  # line, name, offset, duration
        self.stats: dict[str, list[tuple[Int, Int, npt.NDArray[np.bool_]]]] = {}
        self.rows = 0
        self.events = 0
        self.lacking = 0
        self.dropped = 0
        self.problem = ""

    def read(self) -> Space:
        # Fields hold views of the map, which must be gone before it closes.
        for field in self._whole(0, len(self.data)):
            if field.number == _shape.SPACE_PLANES:
                self._plane(field)
            elif field.number == _shape.SPACE_HOSTNAMES and not self.hostname:
                self.hostname = bytes(self.data[field.content : field.end]).decode(errors="replace")
        space = self._space()
        if self.problem and not len(space):
            raise UserError(f"{self.path}: {self._what_is_wrong()}")
        return space

    def _what_is_wrong(self) -> str:
        head = bytes(self.data[: 1 << 16])
        if head.count(_REPLACED) > 3:
            return "damaged: it was copied as if it were text (bytes EF BF BD); copy it as a binary file"
        return f"not an XSpace, or nothing of it is whole: {self.problem}"

    def _whole(self, begin: int, end: int) -> Iterator[Field]:
        """Yields the fields that are whole; of a plane that was cut off, what there is of it."""
        try:
            yield from fields(self.data, begin, end)
        except Damaged as damage:
            how = "cut off" if damage.cut else "damaged"
            self.problem = self.problem or f"{how} at byte {damage.at:,} of {len(self.data):,}"
            rest = self._cut_plane(damage.at, end) if begin == 0 and damage.cut else None
            if rest is not None:
                yield rest
            else:
                self.lacking += end - damage.at

    def _cut_plane(self, at: int, end: int) -> Field | None:
        """Returns a plane whose end is not there as if it ended with the file."""
        if self.data[at] != _shape.SPACE_PLANES << 3 | 2:
            return None
        content = at + 1
        while content < end and self.data[content] >= 0x80:
            content += 1
        return Field(_shape.SPACE_PLANES, at, content + 1, end) if content + 1 < end else None

    def _plane(self, plane: Field) -> None:
        lines: list[Field] = []
        about: list[bytes] = []
        for field in self._whole(plane.content, plane.end):
            if field.number == _shape.PLANE_LINES:
                lines.append(field)
            else:
                about.append(bytes(self.data[field.begin : field.end]))
        known = self._parsed(_shape.METADATA, [b"".join(about)], sum(map(len, about)))
        if known is None:
            self.lacking += sum(line.end - line.begin for line in lines)
            return
        names = Metadata.of(known, self.kept_stats, self.names, self.types, self.texts)
        self._started(known, names)
        for pieces in self._pieces(lines):
            self._events(names, pieces)

    def _parsed(self, message: str, serialized: list[bytes], size: int) -> pa.RecordBatch | None:
        try:
            return _shape.handler(message).list_to_record_batch(serialized)
        except ValueError as error:
            self.problem = self.problem or str(error)
            self.lacking += size
            return None

    def _started(self, known: pa.RecordBatch, names: Metadata) -> None:
        own = known.column("own").flatten()
        ids = own.field("metadata_id").to_pylist()
        for number, metadata_id in enumerate(ids):
            if names.stat_names.get(metadata_id) == _START_TIME:
                value = own.field("uint64")[number].as_py() or own.field("int64")[number].as_py()
                self.started_ns = value if value and 0 < value < 1 << 62 else self.started_ns

    def _pieces(self, lines: Iterable[Field]) -> Iterator[list[bytes]]:
        """Yields serialized lines, a few megabytes at a time. Any run of a message's fields is a message."""
        pieces: list[bytes] = []
        size = 0
        for line in lines:
            for piece in self._cut(line) if line.end - line.content > _LONG_LINE else [self._bytes(line)]:
                pieces.append(piece)
                size += len(piece)
                if size >= _PIECE:
                    yield pieces
                    pieces, size = [], 0
        if pieces:
            yield pieces

    def _bytes(self, line: Field) -> bytes:
        return bytes(self.data[line.content : line.end])

    def _cut(self, line: Field) -> Iterator[bytes]:
        """Yields a long line as several, each with what the line says about itself."""
        head, begin, end = b"", -1, -1
        bounds: list[tuple[int, int]] = []
        for field in self._whole(line.content, line.end):
            if field.number != _shape.EVENT:
                head += bytes(self.data[field.begin : field.end])
            elif begin < 0 or field.begin != end or field.begin - begin > _PIECE:
                bounds.append((begin, end))
                begin, end = field.begin, field.end
            else:
                end = field.end
        bounds.append((begin, end))
        for begin, end in bounds[1:]:
            yield head + bytes(self.data[begin:end])

    def _events(self, names: Metadata, serialized: list[bytes]) -> None:
        batch = self._parsed(_shape.LINE, serialized, 0)
        if batch is None:
            for one in serialized if len(serialized) > 1 else []:
                self._events(names, [one])
            self.lacking += len(serialized[0]) if len(serialized) == 1 else 0
            return
        first = len(self.lines)
        labels = zip(
            *(batch.column(name).to_pylist() for name in ("id", "name", "display_name", "timestamp_ns")),
            strict=True,
        )
        for line_id, name, shown, timestamp_ns in labels:
            text = (shown or name).decode(errors="replace")
            self.lines.append((Line(names.plane, line_id, text), timestamp_ns))
        lists = batch.column("events")
        events = lists.flatten()
        line = (parents(lists) + first).astype(np.int32)
        name = names.name_of(numpy(events.field("metadata_id")))
        self.events += len(line)
        # The last place is that of events without a name.
        table = np.array([each not in self.without for each in self.names] + [True], np.bool_)
        wanted = table[name]
        self._stats(names, events.field("stats"), wanted)
        columns = (
            line,
            name.astype(np.int32),
            numpy(events.field("offset_ps")),
            numpy(events.field("duration_ps")),
        )
        self.columns.append(tuple(column[wanted] for column in columns))
        self.rows += len(self.columns[-1][0])

    def _stats(self, names: Metadata, lists: pa.ListArray, wanted: npt.NDArray[np.bool_]) -> None:
        stats = lists.flatten()
        kind = names.stat_of(numpy(stats.field("metadata_id")))
        row = parents(lists)
        kept = np.flatnonzero((kind >= 0) & wanted[row])
        if not len(kept):
            return
        row = (np.cumsum(wanted) - 1)[row[kept]] + self.rows
        kind = kind[kept]
        some = stats.take(pa.array(kept))
        value, is_text, there = self._values(names, some)
        order = np.argsort(kind, kind="stable")
        order = order[there[order]]
        bounds = np.searchsorted(kind[order], np.arange(len(self.kept_stats) + 1))
        for number, name in enumerate(self.kept_stats):
            at = order[bounds[number] : bounds[number + 1]]
            if len(at):
                self.stats.setdefault(name, []).append((row[at], value[at], is_text[at]))

    def _values(
        self, names: Metadata, stats: pa.StructArray
    ) -> tuple[Int, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Returns values, which of them are texts, and which there are."""
        number = pc.coalesce(stats.field("int64"), signed(stats.field("uint64")))
        value = numpy(number.fill_null(0)).copy()
        there = mask(number.is_valid())
        is_text = np.zeros(len(value), np.bool_)
        reference = stats.field("ref")
        rows = np.flatnonzero(mask(reference.is_valid()))
        if len(rows):
            value[rows] = names.text_of(numpy(signed(reference).take(pa.array(rows))))
            is_text[rows] = there[rows] = True
        text = stats.field("text")
        rows = np.flatnonzero(mask(text.is_valid()))
        if len(rows):
            encoded = text.take(pa.array(rows)).dictionary_encode()
            codes = [self.texts[word.decode(errors="replace")] for word in encoded.dictionary.to_pylist()]
            value[rows] = np.array(codes, np.int64)[numpy(encoded.indices)]
            is_text[rows] = there[rows] = True
        return value, is_text, there

    def _space(self) -> Space:
        none = np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.int64)
        line, name, start, duration = map(np.concatenate, zip(*(self.columns or [none]), strict=True))
        self.columns = []
        stamps = np.array([stamp for _, stamp in self.lines] or [0], np.int64)
        used = stamps[np.flatnonzero(np.bincount(line))]
        first_ns = int(used.min()) if len(used) else 0
        wall = first_ns > _WALL_NS
        # Lines of damaged files may be thousands of years apart.
        since_ns = np.clip(stamps.astype(np.float64) - first_ns, 0, _LATEST_PS / 1000).astype(np.int64)
        possible = (start >= 0) & (start < _LATEST_PS) & (duration >= 0) & (duration < _LATEST_PS)
        possible &= (since_ns < _LATEST_PS // 1000)[line] & (name >= 0)
        start[~possible] = duration[~possible] = 0
        start += (since_ns * 1000)[line]
        stats, place = self.stats, None
        if not possible.all() or not _is_ordered(line, start, duration):
            order = np.lexsort((-duration, start, line))
            order = order[possible[order]]
            place = np.full(len(line), -1, np.int64)
            place[order] = np.arange(len(order))
            line, name, start, duration = (column[order] for column in (line, name, start, duration))
        return Space(
            path=self.path,
            hostname=self.hostname,
            base_ns=first_ns + (0 if wall else self.started_ns or 0),
            absolute=wall or self.started_ns is not None,
            lines=tuple(about for about, _ in self.lines),
            names=tuple(self.names),
            types=tuple(self.types),
            line=line,
            name=name,
            start_ps=start,
            duration_ps=duration,
            stats={key: _joined(stats.pop(key), place) for key in list(stats)},
            texts=tuple(self.texts),
            events=self.events,
            lacking=self.lacking,
            dropped=self.rows - len(line),
        )


def _is_ordered(line: npt.NDArray[np.int32], start: Int, duration: Int) -> bool:
    """Returns whether events lie as profilers write them."""
    same = line[1:] == line[:-1]
    tied = start[1:] == start[:-1]
    later = (start[1:] > start[:-1]) | (tied & (duration[1:] <= duration[:-1]))
    return bool(((line[1:] > line[:-1]) | (same & later)).all())


def _joined(parts: list[tuple[Int, Int, npt.NDArray[np.bool_]]], place: Int | None) -> Stat:
    row, value, is_text = map(np.concatenate, zip(*parts, strict=True))
    good = ~is_text | (value >= 0)
    if place is None and good.all() and (row[1:] > row[:-1]).all():
        return Stat(row, value, is_text)
    row = row if place is None else place[row]
    order = np.argsort(row, kind="stable")
    order = order[row[order] >= 0]
    # A text that refers to nothing is no value.
    order = order[~(is_text[order] & (value[order] < 0))]
    # Of a stat that an event has twice, the last counts.
    last = np.append(np.diff(row[order]) != 0, True)[: len(order)]
    order = order[last]
    return Stat(row[order], value[order], is_text[order])
