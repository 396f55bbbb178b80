"""Where spans come from. `read` takes any mix of run directories, files and Jaeger addresses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from otel_tf.correlator.sources import object_storage, select
from otel_tf.correlator.sources.chunks import Piece
from otel_tf.correlator.sources.files import find
from otel_tf.correlator.sources.lives import apart
from otel_tf.correlator.sources.missing import missing
from otel_tf.correlator.sources.parts import parts_of
from otel_tf.correlator.sources.readers import read_parts
from otel_tf.correlator.sources.skipped import Skipped
from otel_tf.correlator.tables import CLOCKS, Ingested
from otel_tf.errors import UserError

__all__ = ["read"]

_SAY_EVERY_S = 2.0


def read(
    specs: Sequence[str],
    *,
    run: str | None = None,
    steps: tuple[int | None, int | None] | None = None,
    engine: str = "duckdb",
    say: Callable[[str], None] = lambda _: None,
) -> Ingested:
    """Returns the spans, links and clock snapshots of one run.

    Args:
        specs: Run directories, files (OTLP JSON or protobuf, Jaeger JSON, Parquet; gzip and zstd are
            undone), the same in object storage (``s3://bucket/path``, `object_storage`), or
            ``jaeger+http://host:port[?run=ID]``. What they share is taken once.
        run: The run to take; default: the one that ended last.
        steps: First and last global step to take, either may be None.
        engine: ``spark``: what is in object storage is read by Spark's executors.
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
        elif object_storage.is_address(spec):
            pieces += _told(_in_storage(spec, number, skipped, engine, say), spec, say)
        elif "://" in spec:
            known = ", ".join(f"{scheme}://" for scheme in object_storage.SCHEMES)
            raise UserError(f"{spec}: addresses known here are jaeger+http://…, jaeger+https://…, {known}")
        else:
            pieces += _told(_in_files(Path(spec), number, skipped), spec, say)
        if not sum(piece.chunk.spans.num_rows for piece in pieces[before:]):
            raise UserError(f"{spec}: no usable spans{_why(skipped)}")
    chunk = select.together([piece.chunk for piece in pieces])
    chunk = select.choose_run(chunk, run, say)
    chunk = apart(chunk)
    lost = missing(chunk.spans) if any(map(_is_jaeger, specs)) else {}
    if steps is not None:
        chunk = select.keep_steps(chunk, steps)
        if not chunk.spans.num_rows:
            raise UserError(f"no spans of the steps {_range(steps)}")
    chunk = select.once(chunk, skipped)
    clocks = _clocks(pieces, chunk.spans)
    return Ingested(chunk.spans, chunk.links, clocks, skipped.counts, skipped.first, lost)


def _in_files(path: Path, number: int, skipped: Skipped) -> Iterator[Piece]:
    files = find(path)
    size = sum(file.stat().st_size for file, _ in files)
    return read_parts(parts_of(files, number, skipped), size, skipped)


def _in_storage(
    spec: str, number: int, skipped: Skipped, engine: str, say: Callable[[str], None]
) -> Iterator[Piece]:
    if engine == "spark":
        from otel_tf.correlator.engines.spark import active_session

        yield from object_storage.read_by_spark(active_session(), spec, number, skipped)
        return
    with object_storage.local_copy(spec, say) as folder:
        yield from _in_files(folder, number, skipped)


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
