"""Where spans come from. `read` takes any mix of run directories, files and Jaeger addresses."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from otel_tf.correlator.sources import select
from otel_tf.correlator.sources.files import Format, damage_of, decompress, find, open_binary
from otel_tf.correlator.sources.missing import missing
from otel_tf.correlator.sources.otlp_json import Lines, Piece, parse_lines, split_lines
from otel_tf.correlator.sources.otlp_proto import Messages, fields, frames, parse_messages, split_message
from otel_tf.correlator.sources.skipped import Skipped
from otel_tf.correlator.tables import CLOCKS, Ingested
from otel_tf.errors import UserError

__all__ = ["read"]

_Job = Callable[[], Piece]

_SAY_EVERY_S = 2.0


def read(
    specs: Sequence[str],
    *,
    run: str | None = None,
    steps: tuple[int | None, int | None] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Ingested:
    """Returns the spans, links and clock snapshots of one run.

    Args:
        specs: Run directories, files (OTLP JSON or protobuf, Jaeger JSON, Parquet; gzip and zstd are
            undone), or ``jaeger+http://host:port[?run=ID]``. What they share is taken once.
        run: The run to take; default: the one that ended last.
        steps: First and last global step to take, either may be None.
        say: Told what is going on, one line at a time.

    Raises:
        UserError: A source cannot be read, holds nothing usable, or has no such run.
    """
    skipped = Skipped()
    pieces: list[Piece] = []
    for number, spec in enumerate(specs):
        before = len(pieces)
        if _is_jaeger(spec):
            from otel_tf.correlator.sources.jaeger import read_jaeger

            chunks, run_in_spec = read_jaeger(spec, skipped, number, run=run, say=say)
            pieces += [Piece(chunk) for chunk in chunks]
            run = run or run_in_spec
        elif "://" in spec:
            raise UserError(f"{spec}: the only addresses known here are jaeger+http://… and jaeger+https://…")
        else:
            pieces += _told(_run_jobs(_jobs(Path(spec), number, skipped)), spec, say)
        if not sum(piece.chunk.spans.num_rows for piece in pieces[before:]):
            raise UserError(f"{spec}: no usable spans{_why(skipped)}")
    chunk = select.together([piece.chunk for piece in pieces])
    chunk = select.choose_run(chunk, run, say)
    lost = missing(chunk.spans) if any(map(_is_jaeger, specs)) else {}
    if steps is not None:
        chunk = select.keep_steps(chunk, steps)
        if not chunk.spans.num_rows:
            raise UserError(f"no spans of the steps {_range(steps)}")
    chunk = select.once(chunk, skipped)
    clocks = _clocks(pieces, chunk.spans)
    return Ingested(chunk.spans, chunk.links, clocks, skipped.counts, skipped.first, lost)


def _is_jaeger(spec: str) -> bool:
    return spec.startswith(("jaeger+http://", "jaeger+https://"))


def _why(skipped: Skipped) -> str:
    reasons = sorted(skipped.counts, key=lambda reason: -skipped.counts[reason])
    return (
        f"; {skipped.counts[reasons[0]]} × {reasons[0]}, first {skipped.first[reasons[0]]}" if reasons else ""
    )


def _range(steps: tuple[int | None, int | None]) -> str:
    first, last = ("" if step is None else step for step in steps)
    return f"{first}:{last}"


def _jobs(path: Path, source: int, skipped: Skipped) -> Iterator[_Job]:
    for number, (file, form) in enumerate(find(path)):
        place = source * 1_000_000 + number
        try:
            yield from _jobs_of_file(file, form, place, skipped)
        except OSError as error:
            raise UserError(f"{file}: {error.strerror or error}") from None


def _jobs_of_file(file: Path, form: Format, place: int, skipped: Skipped) -> Iterator[_Job]:
    name = file.name
    if form is Format.PARQUET:
        from otel_tf.correlator.sources.parquet import parse_parquet, split_parquet

        for part in split_parquet(file, place):
            yield lambda part=part: Piece(parse_parquet(part, skipped))  # type: ignore[misc]
        return
    with open_binary(file) as stream:
        if form is Format.JSON_LINES:
            for lines in split_lines(stream, name, place):
                yield lambda lines=lines: parse_lines(lines, skipped)  # type: ignore[misc]
        data = stream.read()
        if damage := damage_of(stream):
            skipped.add("truncated", f"{name}: {damage}", order=(place,))
    if form is Format.JSON_DOCUMENT:
        yield lambda: _document(data, name, place, skipped)
    elif form is Format.PROTO:
        view = memoryview(data)
        offsets, whole = fields(view)
        if not whole:
            skipped.add(
                "truncated", f"{name}: {len(data)} bytes, the last message is not whole", order=(place,)
            )
        for piece in split_message(view, offsets):
            messages = Messages([piece], name, place)
            yield lambda messages=messages: Piece(parse_messages(messages, skipped))  # type: ignore[misc]
    elif form is Format.PROTO_FRAMES:
        yield from _framed(memoryview(data), name, place, skipped)


def _document(data: bytes, name: str, place: int, skipped: Skipped) -> Piece:
    """Parses one JSON document that goes over several lines, as one line."""
    # Within a text, JSON allows no line feed.
    return parse_lines(Lines(data.replace(b"\n", b" "), name, place), skipped)


def _framed(data: memoryview, name: str, place: int, skipped: Skipped) -> Iterator[_Job]:
    found, whole = frames(data)
    if not whole:
        skipped.add(
            "truncated", f"{name}: the last of {len(found) + 1} messages is not whole", order=(place,)
        )
    payloads = [decompress(frame) for frame in found]
    texts = [bytes(payload) for payload in payloads if bytes(payload[:1]) == b"{"]
    if texts:
        # A message a line, so that the numbers of messages are those of lines.
        joined = b"\n".join(text.replace(b"\n", b" ") for text in texts)
        lines = Lines(joined, name, place)
        yield lambda: parse_lines(lines, skipped)
    others = [payload for payload in payloads if bytes(payload[:1]) != b"{"]
    batch: list[bytes | memoryview] = []
    size, first = 0, 1
    for number, payload in enumerate(others, 1):
        batch.append(payload)
        size += len(payload)
        if size >= 8 << 20 or number == len(others):
            messages = Messages(batch, name, place, first)
            yield lambda messages=messages: Piece(parse_messages(messages, skipped))  # type: ignore[misc]
            batch, size, first = [], 0, number + 1


def _run_jobs(jobs: Iterable[_Job]) -> Iterator[Piece]:
    """Runs jobs on all cores, in order, with only a few waiting: a file may be larger than memory."""
    workers = os.cpu_count() or 1
    with ThreadPoolExecutor(workers, "otel-tf-read") as pool:
        waiting: deque[Future[Piece]] = deque()
        for job in jobs:
            waiting.append(pool.submit(job))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _told(pieces: Iterable[Piece], spec: str, say: Callable[[str], None]) -> Iterator[Piece]:
    """Passes pieces on, and tells every few seconds how far it is."""
    count, said = 0, time.monotonic()
    for piece in pieces:
        yield piece
        count += piece.chunk.spans.num_rows
        if time.monotonic() - said > _SAY_EVERY_S:
            said = time.monotonic()
            say(f"{count:,} spans read from {spec}")


def _clocks(pieces: Sequence[Piece], spans: pa.Table) -> pa.Table:
    rows = [row for piece in pieces for row in piece.clocks]
    if not rows:
        return CLOCKS.empty_table()
    table = pa.Table.from_pylist(rows, schema=CLOCKS).combine_chunks()
    # Snapshots of processes that left no span would only add clocks that nothing refers to.
    domains = pa.array(spans["domain"].combine_chunks().unique().to_pylist(), pa.string())
    return table.filter(pc.is_in(table["domain"].cast(pa.string()), value_set=domains))
