"""OTLP/JSON: lines of it, whole chunks at a time, straight into Arrow.

A line may be large: the Collector's file exporter writes a batch of 8,192 spans, 3.6 MB, as one line.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json

from otel_tf.correlator.sources import tolerant
from otel_tf.correlator.sources.attributes import parents
from otel_tf.correlator.sources.extract import Chunk, extract
from otel_tf.correlator.sources.shape import LINES, json_schema
from otel_tf.correlator.sources.skipped import Skipped

__all__ = ["Lines", "Piece", "parse_lines", "split_lines"]

#: Large enough that Arrow's start-up per chunk vanishes, small enough to keep two cores busy.
_CHUNK_BYTES = 8 << 20
_HEAD, _TAIL = f'{{"{LINES}":['.encode(), b"]}"


@dataclasses.dataclass(frozen=True)
class Piece:
    """What one piece of input holds."""

    chunk: Chunk
    clocks: list[dict[str, Any]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Lines:
    """Some whole lines of a file.

    Attributes:
        data: The lines.
        name: The file, for messages.
        file: Number of the file in the input, for the order of messages.
        first_line: Number of the first of these lines, from 1.
        last: Whether the file ends with them.
    """

    data: bytes
    name: str
    file: int = 0
    first_line: int = 1
    last: bool = True

    @functools.cached_property
    def newlines(self) -> list[int]:
        """Where the newlines are; a last one is left out."""
        # Lines are long: this is several times as fast as bytes.count or numpy.
        found, at, last = [], self.data.find(b"\n"), len(self.data) - 1
        while 0 <= at < last:
            found.append(at)
            at = self.data.find(b"\n", at + 1)
        return found


def split_lines(stream: BinaryIO, name: str, file: int = 0) -> Iterator[Lines]:
    """Yields the lines of ``stream`` in chunks of whole lines."""
    line = 1
    data = _whole_lines(stream)
    while data:
        following = _whole_lines(stream)
        lines = Lines(data, name, file, line, not following)
        line += len(lines.newlines) + 1
        yield lines
        data = following


def _whole_lines(stream: BinaryIO) -> bytes:
    data = stream.read(_CHUNK_BYTES)
    while data and not data.endswith(b"\n"):
        more = stream.readline()
        if not more:
            break
        data += more
    return data


def parse_lines(lines: Lines, skipped: Skipped) -> Piece:
    """Returns what the lines hold; counts in ``skipped`` what is unusable."""
    try:
        if not lines.data.isascii():
            lines.data.decode("utf-8")
        text = _as_array(lines)
        documents = _to_arrow(text, plain=True)
        if _lacks_values(documents):
            documents = _to_arrow(text)
        if len(documents) == len(lines.newlines) + 1 and not _unknown(documents).any():
            numbers = np.arange(len(documents), dtype=np.int64) + lines.first_line
            return Piece(_extract(documents, numbers, lines, skipped))
    except (UnicodeDecodeError, pa.ArrowInvalid):
        pass  # something in it is not as the format says: find out what, line by line
    return _parse_one_by_one(lines, skipped)


def _as_array(lines: Lines) -> pa.Buffer:
    """Returns the lines as one JSON object with an array of them.

    As lines, a ``null`` among them would crash Arrow's reader; two values in one line would pass.
    """
    text = np.empty(len(_HEAD) + len(lines.data) + len(_TAIL), np.uint8)
    text[: len(_HEAD)] = np.frombuffer(_HEAD, np.uint8)
    text[-len(_TAIL) :] = np.frombuffer(_TAIL, np.uint8)
    middle = text[len(_HEAD) : -len(_TAIL)]
    middle[:] = np.frombuffer(lines.data, np.uint8)
    middle[lines.newlines] = ord(",")
    return pa.py_buffer(text)


def _to_arrow(text: pa.Buffer, *, plain: bool = False) -> pa.StructArray:
    """Returns the documents in ``text`` (`_as_array`)."""
    table = pyarrow.json.read_json(
        pa.BufferReader(text),
        # One block: a text that is longer than a block is an error.
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=max(text.size + 1, 1 << 16)),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=json_schema(plain=plain), unexpected_field_behavior="ignore"
        ),
    )
    return table[LINES].combine_chunks().flatten()


def _lacks_values(documents: pa.StructArray) -> bool:
    """Returns whether an attribute of a span has a value that the plain schema does not take, or none."""
    for traces in (documents.field("resourceSpans"), documents.field("result").field("resourceSpans")):
        spans = traces.flatten().field("scopeSpans").flatten().field("spans").flatten()
        value = spans.field("attributes").flatten().field("value")
        leaves = [value.field(number) for number in range(value.type.num_fields)]
        if sum(len(leaf) - leaf.null_count for leaf in leaves) < len(value):
            return True
    return False


def _unknown(documents: pa.StructArray) -> npt.NDArray[np.bool_]:
    """Returns a mask of the documents that hold no traces."""
    own, wrapped = (
        documents.field(name).is_null().to_numpy(zero_copy_only=False) for name in ("resourceSpans", "result")
    )
    mask: npt.NDArray[np.bool_] = own & wrapped
    return mask


def _extract(documents: pa.StructArray, line_numbers: Any, lines: Lines, skipped: Skipped) -> Chunk:
    lists = documents.field("resourceSpans")
    wrapped = documents.field("result").field("resourceSpans")
    parts, rows = lists.flatten(), parents(lists)
    if wrapped.null_count < len(wrapped):
        parts = pa.concat_arrays([parts, wrapped.flatten()])
        rows = np.concatenate([rows, parents(wrapped)])
    return extract(
        parts,
        skipped,
        where=lambda line: f"{lines.name}:{line}",
        order=(lines.file,),
        line_of_resource=line_numbers[rows],
    )


def _parse_one_by_one(lines: Lines, skipped: Skipped) -> Piece:
    documents: list[str] = []
    numbers: list[int] = []
    clocks: list[dict[str, Any]] = []
    all_lines = lines.data.split(b"\n")
    for number, line in enumerate(all_lines, lines.first_line):
        if not line.strip():
            continue

        report = _reporter(skipped, lines, number)
        try:
            document = tolerant.clean(tolerant.parse(line.lstrip(b"\xef\xbb\xbf"), report), report)
        except tolerant.NotOtlp as error:
            report("not_otlp", str(error))
            continue
        except ValueError as error:
            # Only a last line without its newline was cut off: a writer was killed in the middle.
            cut_off = lines.last and number == lines.first_line + len(all_lines) - 1
            report("truncated" if cut_off else "not_json", f"{_snippet(line)} ({error})")
            continue
        clocks += document.clocks
        if document.resource_spans:
            documents.append(json.dumps({"resourceSpans": document.resource_spans}))
            numbers.append(number)
    text = pa.py_buffer(_HEAD + ",".join(documents).encode() + _TAIL)
    return Piece(_extract(_to_arrow(text), np.array(numbers, np.int64), lines, skipped), clocks)


def _reporter(skipped: Skipped, lines: Lines, number: int) -> Callable[[str, str], None]:
    def report(reason: str, text: str) -> None:
        skipped.add(reason, f"{lines.name}:{number}: {text}", order=(lines.file, number))

    return report


def _snippet(line: bytes) -> str:
    text = line[:60].decode("utf-8", "replace")
    return repr(text) + ("…" if len(line) > 60 else "")
