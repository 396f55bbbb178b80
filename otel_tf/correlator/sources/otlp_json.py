"""OTLP/JSON: lines of it, whole chunks at a time, into the canonical tables.

A line may be large: the Collector's file exporter writes a batch of 8,192 spans, 3.6 MB, as one line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from otel_tf import semconv
from otel_tf.correlator.sources import ids, tolerant
from otel_tf.correlator.sources.any_value import plain_attributes
from otel_tf.correlator.sources.attributes import Attributes, Extra
from otel_tf.correlator.sources.chunks import STATUS_MESSAGE, Chunk, Found, Linked, Origin, Piece, to_chunk
from otel_tf.correlator.sources.json_attributes import from_json
from otel_tf.correlator.sources.salvage import complete_spans
from otel_tf.correlator.sources.skipped import Skipped
from otel_tf.correlator.sources.typed import LINE, Event, Link, Resource, ResourceSpans, Status

__all__ = ["Lines", "parse_lines", "split_lines"]

_BOM = b"\xef\xbb\xbf"
_BEGINNING = b'{"resourceSpans":'
#: What may be of use here among log records.
_LOGS_BEGIN, _SPANS, _CLOCKS = b'{"resourceLogs":', b'"resourceSpans"', b'"wall_ns"'
_MOST_WRITERS = 10

Int = npt.NDArray[np.int64]


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
    in_threads = False

    def read(self, skipped: Skipped) -> Piece:
        """Returns what the lines hold."""
        return parse_lines(self, skipped)

    @functools.cached_property
    def newlines(self) -> int:
        """How many newlines there are; a last one does not count."""
        # Lines are long: this is several times as fast as bytes.count.
        found, at, last = 0, self.data.find(b"\n"), len(self.data) - 1
        while 0 <= at < last:
            found += 1
            at = self.data.find(b"\n", at + 1)
        return found


def split_lines(stream: BinaryIO, name: str, file: int, size: int) -> Iterator[Lines]:
    """Yields the lines of ``stream`` in chunks of about ``size`` bytes, whole lines each."""
    line = 1
    data = _whole_lines(stream, size)
    while data:
        following = _whole_lines(stream, size)
        lines = Lines(data, name, file, line, not following)
        line += lines.newlines + 1
        yield lines
        data = following


def _whole_lines(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    while data and not data.endswith(b"\n"):
        more = stream.readline()
        if not more:
            break
        data += more
    return data


def parse_lines(lines: Lines, skipped: Skipped) -> Piece:
    """Returns what the lines hold; counts in ``skipped`` what is unusable."""
    clocks: list[dict[str, Any]] = []
    documents: _Documents | None
    if lines.data.startswith(_LOGS_BEGIN) and _SPANS not in lines.data and _CLOCKS not in lines.data:
        # Decoding log records only to pass over them would take longer than the spans of the run.
        documents = []
    else:
        documents = _all_at_once(lines)
    if documents is None:
        documents = _one_by_one(lines, skipped, clocks)
    return Piece(_chunk(documents, lines, skipped), clocks)


#: Of each document the number of its line, and what it holds.
_Documents = list[tuple[int, tuple[ResourceSpans, ...]]]


def _all_at_once(lines: Lines) -> _Documents | None:
    """Returns the documents; None if something in a line is not as the format says."""
    try:
        if not lines.data.isascii():
            lines.data.decode()
        documents = LINE.decode_lines(lines.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    # Two documents in one line would shift the lines' numbers.
    if len(documents) != lines.newlines + 1:
        return None
    found: _Documents = []
    for number, document in enumerate(documents, lines.first_line):
        parts = document.parts()
        if parts is None:
            return None
        found.append((number, parts))
    return found


def _one_by_one(lines: Lines, skipped: Skipped, clocks: list[dict[str, Any]]) -> _Documents:
    found: _Documents = []
    all_lines = lines.data.split(b"\n")
    last = lines.first_line + len(all_lines) - 1 if lines.last else -1
    for number, line in enumerate(all_lines, lines.first_line):
        report = tolerant.Reporter(skipped, lines.name, lines.file, number, number == last)
        text = line.strip().removeprefix(_BOM)
        # Writers that were killed and started again, one after another; but noise may look like many.
        for _ in range(_MOST_WRITERS):
            if not text:
                break
            document, text = _document(text, report)
            clocks += document.clocks
            if document.resource_spans:
                found.append((number, tuple(document.resource_spans)))
    return found


def _document(text: bytes, report: tolerant.Reporter) -> tuple[tolerant.Document, bytes]:
    """Returns what one line holds, and what is to be read as another line."""
    try:
        return _parsed(text, report), b""
    except tolerant.NotOtlp as error:
        report("not_otlp", str(error))
        return tolerant.Document(), b""
    except tolerant.NotJson as error:
        whole, end = complete_spans(error.text, error.position)
        # What a writer that was started again appended to a line that was cut off.
        again = error.text.find(_BEGINNING, max(end, 1))
        rest = error.text[again:] if again > 0 else b""
        kept = tolerant.Document()
        with contextlib.suppress(tolerant.NotJson, tolerant.NotOtlp):
            parts = _parsed(whole, report).resource_spans
            # Of spans whose resource would have come later, nobody knows whose they are.
            kept.resource_spans = [part for part in parts if part.resource is not None]
        count = sum(len(scope.spans) for part in kept.resource_spans for scope in part.scopeSpans)
        report.not_json(text, error, count, cut_off=bool(whole or rest))
        return kept, rest


def _parsed(text: bytes, report: tolerant.Reporter) -> tolerant.Document:
    """Returns what is in JSON, by the tolerant reader if need be, which also says what is wrong with it.

    Raises:
        NotJson: It is none.
        NotOtlp: It is of no kind that is read here.
    """
    try:
        text.decode()
        parts = LINE.decode(text).parts()
        if parts is not None:
            return tolerant.Document(list(parts))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    return tolerant.clean(tolerant.parse(text, report), report)


def _chunk(documents: _Documents, lines: Lines, skipped: Skipped) -> Chunk:
    parts = [part for _, parts in documents for part in parts]
    sizes = [sum(len(scope.spans) for scope in part.scopeSpans) for part in parts]
    spans = [span for part in parts for scope in part.scopeSpans for span in scope.spans]
    numbers = np.array([number for number, parts in documents for _ in parts], np.int64)
    resources, resource = _distinct([part.resource for part in parts])
    trace_ids, span_ids = [span.traceId for span in spans], [span.spanId for span in spans]
    parent_ids = [span.parentSpanId for span in spans]
    statuses = [span.status for span in spans]
    trace, good_trace, _ = ids.from_texts(trace_ids, 16)
    span_id, good_span, _ = ids.from_texts(span_ids, 8)
    parent, good_parent, no_parent = ids.from_texts(parent_ids, 8)
    attributes = from_json([span.attributes for span in spans])
    found = Found(
        trace=trace,
        span=span_id[:, 0],
        parent=parent[:, 0],
        good_id=good_trace & good_span,
        bad_parent=~good_parent & ~no_parent,
        id_text=lambda row: (trace_ids[row] or "", span_ids[row] or ""),
        parent_text=lambda row: parent_ids[row] or "",
        name=pa.array([span.name for span in spans], pa.string()).fill_null(""),
        kind=_numbers([span.kind for span in spans]),
        status=_numbers([0 if status is None else status.code for status in statuses]),
        start_ns=_numbers([span.startTimeUnixNano for span in spans]),
        end_ns=_numbers([span.endTimeUnixNano for span in spans]),
        extra=_extra(statuses, [span.events for span in spans], attributes),
        resource=np.repeat(resource, sizes),
        attributes=attributes,
        resources=resources,
        links=_links([span.links for span in spans]),
    )
    origin = Origin(lambda line: f"{lines.name}:{line}", (lines.file,), np.repeat(numbers, sizes))
    return to_chunk(found, skipped, origin)


def _distinct(resources: list[Resource | None]) -> tuple[Attributes, Int]:
    """Returns the attributes of the different resources, and the number of each resource."""
    texts = [b"[]" if resource is None else bytes(resource.attributes) for resource in resources]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return from_json(list(numbers)), np.array([numbers[text] for text in texts], np.int64)


def _numbers(values: Sequence[int]) -> Int:
    """Returns integers as int64; what that cannot hold becomes its largest or smallest value."""
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return np.array([max(-(2**63), min(value, 2**63 - 1)) for value in values], np.int64)


def _links(links: Sequence[tuple[Link, ...]]) -> Linked:
    pairs = [(row, link) for row, own in enumerate(links) if own for link in own]
    trace, good_trace, _ = ids.from_texts([link.traceId for _, link in pairs], 16)
    span, good_span, _ = ids.from_texts([link.spanId for _, link in pairs], 8)
    keep = good_trace & good_span
    return Linked(np.array([row for row, _ in pairs], np.int64)[keep], trace[keep], span[keep, 0])


def _extra(
    statuses: Sequence[Status | None], events: Sequence[tuple[Event, ...]], attributes: Attributes
) -> Extra:
    extra = Extra()
    for row, status in enumerate(statuses):
        if status is not None and status.message:
            extra.add(row, STATUS_MESSAGE, status.message)
    exceptions = [
        (row, dict(plain_attributes(msgspec.json.decode(event.attributes))))
        for row, own in enumerate(events)
        if own
        for event in own
        if event.name == semconv.EVENT_EXCEPTION
    ]
    for key in (semconv.EXCEPTION_TYPE, semconv.EXCEPTION_MESSAGE) if exceptions else ():
        texts = ((row, text) for row, said in exceptions if isinstance(text := said.get(key), str) and text)
        extra.add_last(attributes, key, texts)
    return extra
