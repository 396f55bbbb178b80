"""Processes that read parts of large input: within one process, Python reads on one core only.

They are started as ``python -c`` and not by `multiprocessing`, which would run the user's script again in
each. What they have read comes back as Arrow's own format, without a Python object a span.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import queue
import select
import signal
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import IO, Any

import pyarrow as pa

from otel_tf.correlator import pieces
from otel_tf.correlator.sources.chunks import Chunk, Piece
from otel_tf.correlator.sources.parts import Part
from otel_tf.correlator.sources.skipped import Skipped
from otel_tf.errors import OtelTfError, UserError

__all__ = ["answers", "read_parts", "serve"]

#: Less than that is read before a process has started.
_WORTH_IT_BYTES = 100 << 20
#: Ctrl-C is for the process that starts this one; when that ends, so do the pipes.
_START = """
import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)
import json, sys; sys.path[:] = json.loads(sys.argv[1])
from {} import serve; serve()
"""
_SIZE = struct.Struct("<Q")
_CLOSE_S = 10.0
_PIPE_BYTES = 1 << 20


def read_parts(parts: Iterable[Part], size: int, skipped: Skipped) -> Iterator[Piece]:
    """Yields what is in ``parts``, in order, with only a few waiting: a file may be larger than memory.

    Args:
        parts: What to read.
        size: About how many bytes that is; if it is much, all cores help.
        skipped: Where unusable spans are counted.

    Raises:
        UserError: A part cannot be read.
    """
    cores = pieces.cores()
    processes = cores if size >= _WORTH_IT_BYTES and cores > 1 else 0
    with _Readers(processes) as readers, ThreadPoolExecutor(cores, "otel-tf-read") as pool:
        waiting: deque[Future[Piece]] = deque()
        try:
            for part in parts:
                if part.in_threads:
                    waiting.append(pool.submit(part.read, skipped))
                elif readers.ready():
                    waiting.append(pool.submit(readers.read, part, skipped))
                else:
                    # Not in a thread: two that run Python only wait for each other.
                    while waiting:
                        yield waiting.popleft().result()
                    yield part.read(skipped)
                if len(waiting) > 2 * cores:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


@dataclasses.dataclass(frozen=True)
class _Process:
    popen: subprocess.Popen[bytes]
    parts: IO[bytes]
    answers: IO[bytes]

    @classmethod
    def start(cls) -> _Process | None:
        """Returns a process that has begun to start; None where there cannot be one."""
        path = json.dumps([os.path.abspath(entry) for entry in sys.path])  # noqa: PTH100 - "" is this folder
        # Isolated: neither variables nor a sitecustomize that instruments programs shall reach it.
        command = [sys.executable, "-I", "-c", _START.format(__name__), path]
        try:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pipesize=_PIPE_BYTES,
            )
        except (OSError, ValueError, TypeError):
            return None  # a Python inside of another program has no executable
        assert popen.stdin is not None
        assert popen.stdout is not None
        return cls(popen, popen.stdin, popen.stdout)

    def read(self, part: Part) -> tuple[dict[str, Any], list[pa.Table]]:
        """Returns what the process says about ``part``, and its tables.

        Raises:
            UserError: The process has ended.
        """
        try:
            _send(self.parts, pickle.dumps(part, protocol=5))
            header = json.loads(bytes(_receive(self.answers)))
            tables = [pa.ipc.open_stream(_receive(self.answers)).read_all() for _ in range(header["tables"])]
        except (OSError, EOFError):
            code = self.popen.wait()
            why = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise UserError(f"{part.name}: the process that read it ended with {why}") from None
        return header, tables

    def end(self, *, at_once: bool) -> None:
        with contextlib.suppress(OSError):
            self.parts.close()
        if at_once:
            self.popen.kill()
        try:
            self.popen.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        self.answers.close()


class _Readers:
    """Some processes, each with one part at a time."""

    def __init__(self, count: int) -> None:
        self._processes = [process for _ in range(count) if (process := _Process.start()) is not None]
        self._idle: queue.SimpleQueue[_Process] | None = None

    def __enter__(self) -> _Readers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.end(at_once=kind is not None)

    def ready(self) -> bool:
        """Returns whether there are processes, and all have started."""
        if self._idle is not None:
            return True
        pipes = [process.answers for process in self._processes]
        if not pipes or len(select.select(pipes, [], [], 0)[0]) < len(pipes):
            return False
        try:
            for pipe in pipes:
                _receive(pipe)
        except EOFError:
            # One could not even start: this process goes on by itself.
            for process in self._processes:
                process.end(at_once=True)
            self._processes = []
            return False
        self._idle = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)
        return True

    def read(self, part: Part, skipped: Skipped) -> Piece:
        """Returns what a process finds in ``part``; waits for one that has nothing to do.

        Raises:
            UserError: It cannot be read.
        """
        assert self._idle is not None
        process = self._idle.get()
        try:
            header, tables = process.read(part)
        finally:
            self._idle.put(process)
        if "refused" in header:
            raise UserError(header["refused"])
        if "failed" in header:
            raise OtelTfError(f"{part.name}: {header['failed']}")
        skipped.absorb(header["skipped"])
        return Piece(Chunk(*tables), header["clocks"])


def serve() -> None:
    """Reads parts from standard input and answers on standard output until the former ends."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # Whatever prints must not print into the answers.
    os.dup2(2, 1)
    try:
        _send(sink, b"hello")
        while True:
            for answer in answers(pickle.loads(_receive(source))):
                _send(sink, answer)
    except (EOFError, BrokenPipeError):
        os._exit(0)


def answers(part: Part) -> list[Any]:
    """Returns what is in a part as bytes: a JSON header, then spans and links as Arrow streams, if any."""
    skipped = Skipped()
    try:
        piece = part.read(skipped)
    except UserError as error:
        return [json.dumps({"tables": 0, "refused": str(error)}).encode()]
    except Exception as error:
        return [json.dumps({"tables": 0, "failed": f"{type(error).__name__}: {error}"}).encode()]
    header = {"tables": 2, "clocks": piece.clocks, "skipped": skipped.as_json()}
    return [json.dumps(header).encode(), *(_ipc(table) for table in (piece.chunk.spans, piece.chunk.links))]


def _ipc(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _send(pipe: IO[bytes], data: Any) -> None:
    pipe.write(_SIZE.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _receive(pipe: Any) -> pa.Buffer:
    """Raises EOFError if the other side has ended."""
    (size,) = _SIZE.unpack(_exactly(pipe, _SIZE.size))
    return pa.py_buffer(_exactly(pipe, size))


def _exactly(pipe: Any, size: int) -> bytearray:
    data = bytearray(size)
    view, have = memoryview(data), 0
    while have < size:
        count = pipe.readinto(view[have:])
        if not count:
            raise EOFError
        have += count
    return data
