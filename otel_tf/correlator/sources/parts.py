"""Files in parts that can be read by themselves, each a few megabytes: one after another, or side by side."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from otel_tf.correlator.sources.chunks import Piece
from otel_tf.correlator.sources.files import Format, damage_of, decompress, is_compressed, open_binary
from otel_tf.correlator.sources.otlp_json import Lines, split_lines
from otel_tf.correlator.sources.otlp_proto import Messages, fields, frames, runs
from otel_tf.correlator.sources.skipped import Skipped
from otel_tf.errors import UserError

__all__ = ["Part", "parts_of"]

#: Large enough that what a part costs by itself vanishes, small enough for a processor's cache.
_PART_BYTES = 4 << 20
#: What is searched for line feeds at once: little enough to stay in a processor's cache.
_BLOCK_BYTES = 1 << 18


class Part(Protocol):
    """What can be read by itself, also in another process: it can be pickled."""

    @property
    def name(self) -> str:
        """The file, for messages."""

    @property
    def in_threads(self) -> bool:
        """Whether threads read several at once: it is not the interpreter that is busy."""

    def read(self, skipped: Skipped) -> Piece:
        """Returns what is in it; counts in ``skipped`` what is unusable."""


def parts_of(
    paths: Iterable[tuple[Path, Format]], source: int, skipped: Skipped, first: int = 0
) -> Iterator[Part]:
    """Yields the parts of some files.

    Args:
        paths: The files, and what is in them.
        source: Number of the source in the input, for the order of messages.
        skipped: Where it is counted that a file was cut off.
        first: Number of the first file in the source.

    Raises:
        UserError: A file cannot be read.
    """
    for number, (file, form) in enumerate(paths, first):
        place = source * 1_000_000 + number
        try:
            yield from _parts_of_file(file, form, place, skipped)
        except OSError as error:
            raise UserError(f"{file}: {error.strerror or error}") from None


def _parts_of_file(file: Path, form: Format, place: int, skipped: Skipped) -> Iterator[Part]:
    if form is Format.PARQUET:
        from otel_tf.correlator.sources.parquet import split_parquet

        yield from split_parquet(file, place)
        return
    if form is Format.JSON_LINES and not is_compressed(file):
        yield from _lines_of_file(file, place)
        return
    with open_binary(file) as stream:
        if form is Format.JSON_LINES:
            yield from split_lines(stream, file.name, place, _PART_BYTES)
        elif form is Format.JSON_DOCUMENT:
            # As one line: within a text, JSON allows no line feed.
            yield Lines(stream.read().replace(b"\n", b" "), file.name, place)
        else:
            data = stream.read()
            range_of = _ranges(file, data)
            split = _message if form is Format.PROTO else _frames
            yield from split(data, range_of, file.name, place, skipped)
        if damage := damage_of(stream):
            skipped.add("truncated", f"{file.name}: {damage}", order=(place,))


@dataclasses.dataclass(frozen=True)
class _FileRange:
    """Some bytes of a file, which another process reads from there."""

    path: Path
    begin: int
    end: int

    def load(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.begin)
            return file.read(self.end - self.begin)


@dataclasses.dataclass(frozen=True)
class _Held:
    """Some bytes that are nowhere else: they were compressed."""

    data: bytes

    def load(self) -> bytes:
        return self.data


_Bytes = _FileRange | _Held


def _ranges(path: Path, data: bytes) -> Callable[[int, int], _Bytes]:
    if is_compressed(path):
        return lambda begin, end: _Held(data[begin:end])
    return lambda begin, end: _FileRange(path, begin, end)


@dataclasses.dataclass(frozen=True)
class _FileLines:
    """Some whole lines of a file; see `Lines`."""

    data: _FileRange
    name: str
    file: int
    first_line: int
    last: bool
    in_threads = False

    def read(self, skipped: Skipped) -> Piece:
        lines = Lines(self.data.load(), self.name, self.file, self.first_line, self.last)
        return lines.read(skipped)


def _lines_of_file(path: Path, place: int) -> Iterator[_FileLines]:
    buffer = bytearray(_BLOCK_BYTES)
    begin = at = 0
    first, number = 1, 1
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer) or 0:
            feed = buffer.find(b"\n", 0, count)
            while feed >= 0:
                number += 1
                end = at + feed + 1
                if end - begin >= _PART_BYTES:
                    yield _FileLines(_FileRange(path, begin, end), path.name, place, first, last=False)
                    begin, first = end, number
                feed = buffer.find(b"\n", feed + 1, count)
            at += count
    if at > begin:
        yield _FileLines(_FileRange(path, begin, at), path.name, place, first, last=True)


def _message(
    data: bytes, range_of: Callable[[int, int], _Bytes], name: str, place: int, skipped: Skipped
) -> Iterator[_Message]:
    offsets, whole = fields(data)
    if not whole:
        skipped.add("truncated", f"{name}: {len(data)} bytes, the last message is not whole", order=(place,))
    for begin, end in runs(offsets, _PART_BYTES):
        yield _Message(range_of(begin, end), name, place)


@dataclasses.dataclass(frozen=True)
class _Message:
    """A part of one large message."""

    data: _Bytes
    name: str
    file: int
    in_threads = False

    def read(self, skipped: Skipped) -> Piece:
        return Messages([self.data.load()], self.name, self.file).read(skipped)


def _frames(
    data: bytes, range_of: Callable[[int, int], _Bytes], name: str, place: int, skipped: Skipped
) -> Iterator[_Frames]:
    found, whole = frames(memoryview(data))
    if not whole:
        said = f"{name}: the last of {len(found) + 1} messages is not whole"
        skipped.add("truncated", said, order=(place,))
    offsets = list(itertools.accumulate((4 + len(frame) for frame in found), initial=0))
    number = 1
    for begin, end in runs(offsets, _PART_BYTES):
        yield _Frames(range_of(begin, end), name, place, number)
        number += bisect.bisect_left(offsets, end) - bisect.bisect_left(offsets, begin)


@dataclasses.dataclass(frozen=True)
class _Frames:
    """Messages of the Collector's file exporter: each may be compressed by itself, and be JSON."""

    data: _Bytes
    name: str
    file: int
    first: int
    in_threads = False

    def read(self, skipped: Skipped) -> Piece:
        found, _ = frames(memoryview(self.data.load()))
        payloads = [bytes(decompress(frame)) for frame in found]
        if any(payload[:1] == b"{" for payload in payloads):
            # A message a line, so that the numbers of messages are those of lines.
            joined = b"\n".join(payload.replace(b"\n", b" ") for payload in payloads)
            return Lines(joined, self.name, self.file, self.first, last=False).read(skipped)
        return Messages(payloads, self.name, self.file, self.first).read(skipped)
