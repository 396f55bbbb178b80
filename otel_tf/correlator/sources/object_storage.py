"""Files in object storage, where Collectors leave them: copied to local files one by one, and read there.

What the addresses mean is Arrow's business (`pyarrow.fs`): credentials come from the environment, options
follow a question mark. By Spark, the copying and the reading happen where its executors are.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs

from otel_tf.correlator import pieces
from otel_tf.correlator.sources.chunks import Chunk, Piece
from otel_tf.correlator.sources.files import NOTES, Format, format_of
from otel_tf.correlator.sources.parts import parts_of
from otel_tf.correlator.sources.readers import answers
from otel_tf.correlator.sources.skipped import Skipped
from otel_tf.errors import UserError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SCHEMES", "is_address", "local_copy", "read_by_spark"]

#: By Hadoop's names too, which people on a cluster are used to.
SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "abfs": "abfs",
    "abfss": "abfss",
    "hdfs": "hdfs",
    "file": "file",
}
_NOT_SPANS = ("edges.parquet", "truth.parquet")
_COPY_BYTES = 4 << 20
_ROWS = "file int, part int, header binary, spans binary, links binary"


def is_address(spec: str) -> bool:
    """Returns whether ``spec`` is an address in object storage, such as ``s3://bucket/run``."""
    scheme, separator, _ = spec.partition("://")
    return bool(separator) and scheme in SCHEMES


@contextlib.contextmanager
def local_copy(spec: str, say: Callable[[str], None]) -> Iterator[Path]:
    """Copies what is at an address into a folder that is removed afterwards.

    Raises:
        UserError: There is nothing, or it cannot be read; also what is raised about the copy is told of
            the address.
    """
    paths = _paths(spec)
    say(f"copying {len(paths)} files from {spec}")
    with tempfile.TemporaryDirectory(prefix="otel-tf-") as folder:
        pieces.mapped(functools.partial(_copy, spec, Path(folder)), list(enumerate(paths)))
        try:
            yield Path(folder)
        except UserError as error:
            raise UserError(str(error).replace(folder, spec)) from None


def read_by_spark(session: SparkSession, spec: str, source: int, skipped: Skipped) -> Iterator[Piece]:
    """Yields what is at an address, read by Spark's executors, in the order of the files' names.

    Args:
        session: Its executors need otel-tf in their Python, and access to the address.
        spec: The address.
        source: Number of the source in the input, for the order of messages.
        skipped: Where unusable spans are counted.

    Raises:
        UserError: There is nothing, or it cannot be read.
    """
    from pyspark.errors import PySparkException

    paths = _paths(spec)
    files = session.createDataFrame(list(enumerate(paths)), "file int, path string")
    try:
        rows = (
            files.repartition(len(paths), "file")
            .mapInArrow(functools.partial(_read_files, spec, source), _ROWS)
            .toArrow()
        )
    except PySparkException as error:
        raise UserError(f"{spec}: Spark could not read it: {_last_line(error)}") from None
    for row in rows.sort_by([("file", "ascending"), ("part", "ascending")]).to_pylist():
        header = json.loads(row["header"])
        if "refused" in header or "failed" in header:
            raise UserError(f"{spec}: {header.get('refused') or header['failed']}")
        skipped.absorb(header["skipped"])
        if header["tables"]:
            tables = (pa.ipc.open_stream(row[name]).read_all() for name in ("spans", "links"))
            yield Piece(Chunk(*tables), header["clocks"])


def _paths(spec: str) -> list[str]:
    """Returns the paths of the files at an address, sorted.

    Raises:
        UserError: There are none.
    """
    try:
        system, path = _system(spec)
        info = system.get_file_info(path)
        if info.type is pa.fs.FileType.File:
            return [path]
        selector = pa.fs.FileSelector(path, recursive=True, allow_not_found=True)
        found = [item.path for item in system.get_file_info(selector) if item.type is pa.fs.FileType.File]
    except (OSError, ValueError) as error:
        raise UserError(f"{spec}: {_last_line(error)}") from None
    parts = {file: PurePosixPath(file).relative_to(path).parts for file in found}
    found = [
        file
        for file, names in sorted(parts.items())
        if not file.endswith(NOTES) and not any(name.startswith(".") or name in _NOT_SPANS for name in names)
    ]
    # As of a local folder: Parquet beside OTLP was written from the same spans.
    otlp = [file for file in found if not file.endswith(".parquet")]
    if not found:
        raise UserError(f"{spec}: no files there")
    return otlp or found


def _system(spec: str) -> tuple[pa.fs.FileSystem, str]:
    scheme, _, rest = spec.partition("://")
    system, path = pa.fs.FileSystem.from_uri(f"{SCHEMES[scheme]}://{rest}")
    return system, path


def _copy(spec: str, folder: Path, numbered: tuple[int, str]) -> Path:
    """Returns the local copy of a file; its name begins with its number, so that names stay in order."""
    number, path = numbered
    target = folder / f"{number:06d}" / PurePosixPath(path).name
    target.parent.mkdir()
    try:
        # Not decompressed by its name: what is in it says how.
        with _system(spec)[0].open_input_stream(path, compression=None) as stream, target.open("wb") as file:
            shutil.copyfileobj(stream, file, _COPY_BYTES)
    except (OSError, ValueError) as error:
        raise UserError(f"{spec}: {path}: {_last_line(error)}") from None
    return target


def _read_files(spec: str, source: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Reads files where an executor is; yields rows of `_ROWS`."""
    for batch in batches:
        for row in batch.to_pylist():
            with tempfile.TemporaryDirectory(prefix="otel-tf-") as folder:
                for part, answer in enumerate(_answers(spec, source, row, Path(folder))):
                    columns = [[row["file"]], [part], *([bytes(value)] for value in answer)]
                    arrays = [
                        pa.array(column, kind)
                        for column, kind in zip(columns, [pa.int32()] * 2 + [pa.binary()] * 3, strict=True)
                    ]
                    yield pa.RecordBatch.from_arrays(
                        arrays, names=["file", "part", "header", "spans", "links"]
                    )


def _answers(spec: str, source: int, row: dict[str, Any], folder: Path) -> Iterator[list[Any]]:
    skipped = Skipped()
    try:
        file = _copy(spec, folder, (row["file"], row["path"]))
        form = format_of(file)
        known = [(file, form)] if form not in (Format.UNKNOWN, Format.EMPTY) else []
        for part in parts_of(known, source, skipped, first=row["file"]):
            header, *tables = answers(part)
            yield [header, *(tables or (b"", b""))]
    except UserError as error:
        yield [json.dumps({"tables": 0, "refused": str(error)}).encode(), b"", b""]
    else:
        yield [json.dumps({"tables": 0, "skipped": skipped.as_json()}).encode(), b"", b""]


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
