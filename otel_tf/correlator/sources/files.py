"""Which files a source means, and what is in them: found by content, not by name."""

from __future__ import annotations

import enum
import io
import re
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from otel_tf.errors import UserError

__all__ = ["NOTES", "Format", "damage_of", "decompress", "find", "format_of", "is_compressed", "open_binary"]

_HEAD_BYTES = 1 << 16
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_BOM = b"\xef\xbb\xbf"
#: What a run notes beside its spans: for profiles, of failures, of what an endpoint has acknowledged.
NOTES = (".cluster.json", ".graph.json", ".failures.jsonl", ".sent")
_TRACES_LINE = re.compile(rb'^\{\s*"(resourceSpans|result|data)"\s*:', re.MULTILINE)
#: Tags that may stand first in a ``ResourceSpans`` (resource, scope_spans, schema_url) and in those.
_SCHEMA_URL = b"\x1a"
_IN_RESOURCE_SPANS = (b"\x0a", b"\x12", _SCHEMA_URL)
_IN_PART = (b"\x0a", b"\x10", b"\x12", b"\x1a")


class Format(enum.Enum):
    """What a file holds."""

    EMPTY = "empty"
    JSON_LINES = "JSON lines"
    JSON_DOCUMENT = "one JSON document over several lines"
    PROTO = "one OTLP protobuf message"
    PROTO_FRAMES = "OTLP protobuf messages with their lengths"
    PARQUET = "Parquet"
    UNKNOWN = "something else"


def find(path: Path) -> list[tuple[Path, Format]]:
    """Returns the files below ``path`` that may hold spans or clock snapshots, in the order of names.

    Of a directory, Parquet is taken only when there is no OTLP beside it: it is what an earlier
    ``--to parquet=`` wrote from the same spans.

    Raises:
        UserError: ``path`` does not exist, cannot be read, or holds nothing that is known here.
    """
    try:
        if not path.is_dir():
            return [(path, _known(path, format_of(path)))]
        found = [
            (file, format_of(file))
            for file in sorted(path.rglob("*"))
            if file.is_file()
            and not file.name.endswith(NOTES)
            and not any(part.startswith(".") for part in file.relative_to(path).parts)
        ]
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    otlp = [item for item in found if item[1] not in (Format.PARQUET, Format.UNKNOWN, Format.EMPTY)]
    parquet = [item for item in found if item[1] is Format.PARQUET and _may_hold_spans(path, item[0])]
    chosen = otlp or parquet
    if not chosen:
        raise UserError(f"{path}: no OTLP or Parquet files in this directory")
    return chosen


def _may_hold_spans(root: Path, file: Path) -> bool:
    names = (root.name, *file.relative_to(root).parts)
    # Written side by side by this program: only the spans are a source.
    return not any(name in ("edges.parquet", "truth.parquet") for name in names)


def _known(path: Path, found: Format) -> Format:
    if found is Format.UNKNOWN:
        raise UserError(f"{path}: not OTLP (JSON or protobuf), Jaeger JSON, or Parquet")
    return found


def open_binary(path: Path) -> BinaryIO:
    """Returns an open file, decompressed if it is gzip or zstd."""
    codec = _codec(path)
    return path.open("rb") if codec is None else io.BufferedReader(_Decompressed(path, codec))


def is_compressed(path: Path) -> bool:
    """Returns whether `open_binary` decompresses the file."""
    return _codec(path) is not None


def _codec(path: Path) -> str | None:
    with path.open("rb") as raw:
        head = raw.read(4)
    return "gzip" if head.startswith(_GZIP) else "zstd" if head == _ZSTD else None


class _Decompressed(io.RawIOBase):
    """A compressed file; one that is damaged or was cut off ends where it cannot be read any further."""

    damage: str | None = None

    def __init__(self, path: Path, codec: str) -> None:
        super().__init__()
        self._stream = pa.input_stream(str(path), compression=codec)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self.damage is not None:
            return 0
        try:
            # In small pieces: of the piece in which the damage shows, nothing is left.
            return int(self._stream.readinto(memoryview(buffer)[:_HEAD_BYTES]))
        except OSError as error:
            self.damage = str(error)
            return 0

    def close(self) -> None:
        self._stream.close()
        super().close()


def damage_of(stream: BinaryIO) -> str | None:
    """Returns why a stream of `open_binary` ended before the file did; None if it did not."""
    raw = getattr(stream, "raw", None)
    return raw.damage if isinstance(raw, _Decompressed) else None


def decompress(data: memoryview) -> bytes | memoryview:
    """Returns one message, decompressed if it is zstd."""
    if bytes(data[:4]) != _ZSTD:
        return data
    return bytes(pa.CompressedInputStream(pa.BufferReader(data), "zstd").read())


def format_of(path: Path) -> Format:
    """Returns what is in ``path``, from its first 64 KB.

    Raises:
        OSError: It cannot be read.
    """
    with open_binary(path) as stream:
        head = stream.read(_HEAD_BYTES)
    size = path.stat().st_size
    if not head.strip():
        return Format.EMPTY
    if head.startswith(b"PAR1"):
        return Format.PARQUET
    text = head.removeprefix(_BOM).lstrip()
    if text[:1] in (b"{", b"["):
        return _json_format(text)
    if _TRACES_LINE.search(text):
        return Format.JSON_LINES  # with something else before
    return _proto_format(head, size)


def _json_format(text: bytes) -> Format:
    import msgspec

    line, newline, _ = text.partition(b"\n")
    if not newline:
        return Format.JSON_LINES
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        # A line that ends too early either goes on in the next one, or its writer was killed.
        if "truncated" in str(error) and not _TRACES_LINE.search(text, len(line)):
            return Format.JSON_DOCUMENT
    return Format.JSON_LINES


def _proto_format(head: bytes, size: int) -> Format:
    if _begins_as_traces(head):
        return Format.PROTO
    length = int.from_bytes(head[:4], "big")
    payload = head[4:]
    if 0 < length <= size - 4 and (payload[:1] == b"{" or payload[:4] == _ZSTD or _begins_as_traces(payload)):
        return Format.PROTO_FRAMES
    return Format.UNKNOWN


def _begins_as_traces(head: bytes) -> bool:
    """Returns whether ``head`` begins as a ``TracesData`` does, looking two messages deep.

    Other protobufs, XSpace for one, have a first field like ours, but not the same inside.
    """
    if head[:1] != b"\x0a":
        return False
    length, at = _varint(head, 1)
    if length == 0:
        return True
    tag = head[at : at + 1]
    length, inside = _varint(head, at + 1)
    if tag not in _IN_RESOURCE_SPANS:
        return False
    return length == 0 or tag == _SCHEMA_URL or head[inside : inside + 1] in _IN_PART


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            break
    return value, at
