"""OTLP protobuf: serialized messages into Arrow, without a Python object a span.

A file holds one message (``TracesData`` or ``ExportTraceServiceRequest``: the same on the wire), or
messages one after another, each behind its length in 4 big-endian bytes, as the Collector's file exporter
writes them; with its compression on, each message is compressed by itself, and may be JSON.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from otel_tf.correlator.sources.chunks import Chunk, Piece
from otel_tf.correlator.sources.extract import extract
from otel_tf.correlator.sources.leaf_values import parents
from otel_tf.correlator.sources.shape import proto_handler
from otel_tf.correlator.sources.skipped import Skipped

__all__ = ["Messages", "fields", "frames", "parse_messages", "runs"]

_RESOURCE_SPANS = 0x0A  # field 1, length-delimited


@dataclasses.dataclass(frozen=True)
class Messages:
    """Some messages of a file, or parts of one.

    Attributes:
        data: Serialized ``TracesData``.
        name: The file, for messages.
        file: Number of the file in the input, for the order of messages.
        first: Number of the first of them, from 1.
    """

    data: Sequence[bytes | memoryview]
    name: str
    file: int = 0
    first: int = 1
    in_threads = False

    def read(self, skipped: Skipped) -> Piece:
        """Returns what the messages hold."""
        return Piece(parse_messages(self, skipped))


def fields(data: bytes | memoryview) -> tuple[list[int], bool]:
    """Returns where the top-level fields of a ``TracesData`` begin and end, and whether that is all of it.

    Stops at the first thing that a ``TracesData`` does not have. The first offset is 0.
    """
    offsets, at, size = [0], 0, len(data)
    while at < size and data[at] == _RESOURCE_SPANS:
        at += 1
        length = shift = 0
        while at < size:
            byte = data[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80 or shift > 63:
                break
        at += length
        if at > size or shift > 63:
            return offsets, False
        offsets.append(at)
    return offsets, offsets[-1] == size


def frames(data: memoryview) -> tuple[list[memoryview], bool]:
    """Returns the messages of a length-prefixed file, and whether that is all of it."""
    found: list[memoryview] = []
    at = 0
    while at + 4 <= len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "big")
        if end > len(data):
            return found, False
        found.append(data[at + 4 : end])
        at = end
    return found, at == len(data)


def runs(offsets: list[int], size: int) -> Iterator[tuple[int, int]]:
    """Yields ranges of about ``size`` bytes that begin and end at ``offsets``.

    Any run of the top-level fields of a message is a message too.
    """
    begin = offsets[0]
    for offset in offsets[1:]:
        if offset - begin >= size:
            yield begin, offset
            begin = offset
    if offsets[-1] > begin:
        yield begin, offsets[-1]


def parse_messages(messages: Messages, skipped: Skipped) -> Chunk:
    """Returns what the messages hold; counts in ``skipped`` what is unusable."""
    handler = proto_handler()
    numbers = np.arange(len(messages.data), dtype=np.int64) + messages.first
    payloads = [bytes(message) for message in messages.data]
    try:
        batch = handler.list_to_record_batch(payloads)
    except ValueError:
        good = []
        for number, payload in zip(numbers, payloads, strict=True):
            try:
                handler.list_to_record_batch([payload])
                good.append(True)
            except ValueError as error:
                good.append(False)
                example = f"{messages.name}: message {number}: {error}"
                skipped.add("not_protobuf", example, order=(messages.file, int(number)))
        batch = handler.list_to_record_batch(
            [p for p, is_good in zip(payloads, good, strict=True) if is_good]
        )
        numbers = numbers[np.array(good, np.bool_)]
    lists: pa.Array = batch.column(0)
    return extract(
        lists.flatten(),
        skipped,
        where=lambda number: f"{messages.name}: message {number}",
        order=(messages.file,),
        line_of_resource=numbers[parents(lists)],
    )
