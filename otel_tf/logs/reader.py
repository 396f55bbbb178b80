"""Reads what a training process writes to stderr, passes it on and spools it; a small process of its own.

It outlives the training process by the time it takes to read what that had written: a thread would die
with it, and the last lines before a SIGSEGV or a SIGKILL are the ones that matter. Standard input is the
pipe, standard error the real one. It ends when nobody holds the pipe's other end any more.

Run as a script by `native`; needs the standard library only.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["Reader", "main"]

_READ_BYTES = 1 << 16
#: How long a record may wait for its continuation lines.
_IDLE_S = 0.1
#: What is kept until the run has its name; then it is written under the one that it would have.
_MOST_UNNAMED = 10_000
#: What may wait to be made records of; beyond it, the program waits.
_MOST_PENDING_BYTES = 16 << 20
#: A line without an end is cut.
_LONGEST_LINE = 1 << 16
_PIPE, _TERMINAL = 0, 2


class Reader:
    """Passes bytes on, and makes records of their lines.

    Args:
        control: The training process's own side is the other end.
        unnamed: What a message that names the run says, to be used as long as none comes.
        named: Whether that is the run's name already.
    """

    def __init__(self, control: socket.socket, unnamed: dict[str, Any], *, named: bool) -> None:
        from otel_tf.logs.heads import Clock
        from otel_tf.logs.joining import Joiner

        self._control: socket.socket | None = control
        self._unnamed = unnamed
        self._named: dict[str, Any] | None = unnamed if named else None
        self._said = b""
        self._tees = True
        self._ended = False
        self._pending: collections.deque[tuple[bytes, tuple[int, int]]] = collections.deque()
        self._pending_bytes = 0
        self._clock = Clock(None)
        self._joiner = Joiner()
        self._rest = b""
        self._rest_at = (0, 0)  # when its first byte was read
        self._began = (0, 0)  # wall and monotonic ns when the open record's first line was read
        self._ready: list[str] = []
        self._file: int | None = None

    def run(self) -> None:
        """Reads until the pipe ends, and all of it is written."""
        while not self._ended or self._pending:
            sources: list[Any] = [] if self._ended else [_PIPE]
            if self._control is not None:
                sources.append(self._control)
            waits = self._joiner.open or bool(self._rest)
            readable, _, _ = select.select(
                sources, [], [], 0 if self._pending else _IDLE_S if waits else None
            )
            if self._control in readable:
                self._told()
            if _PIPE in readable:
                self._read()
                # Passing on comes first: the program must not wait for what is only written down.
                if self._pending_bytes < _MOST_PENDING_BYTES:
                    continue
            if self._pending:
                self._parse()
            elif not readable:
                self._settle()
        self._end()

    def _read(self) -> None:
        """Reads what there is and passes it on."""
        data = os.read(_PIPE, _READ_BYTES)
        if not data:
            self._ended = True
            return
        now = time.time_ns(), time.monotonic_ns()
        self._pass_on(data)
        self._pending.append((data, now))
        self._pending_bytes += len(data)

    def _parse(self) -> None:
        """Makes records of the oldest bytes that were read."""
        data, now = self._pending.popleft()
        self._pending_bytes -= len(data)
        begun = self._rest_at if self._rest else now
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for number, line in enumerate(lines):
            # Whatever is wrong with a line: what comes after it must be passed on.
            with contextlib.suppress(Exception):
                self._add(line, now if number else begun)
        self._rest_at = now if lines else begun
        if len(self._rest) > _LONGEST_LINE:
            rest, self._rest = self._rest, b""
            with contextlib.suppress(Exception):
                self._add(rest, self._rest_at)
        self._write()

    def _pass_on(self, data: bytes) -> None:
        view = memoryview(data)
        while view and self._tees:
            try:
                view = view[os.write(_TERMINAL, view) :]
            except BlockingIOError:
                # Somebody has made the terminal non-blocking.
                select.select([], [_TERMINAL], [])
            except OSError:
                # Nobody reads there any more; the spool still does.
                self._tees = False

    def _add(self, line: bytes, now: tuple[int, int]) -> None:
        from otel_tf.logs.heads import parse_head

        # A progress bar writes one line over and over: what it came to is what is kept.
        line = line.rstrip(b"\r").rpartition(b"\r")[2]
        text = line.decode("utf-8", "replace")
        done = self._joiner.add(text, parse_head(text, self._clock))
        if done is not None:
            self._take(done)
        if self._joiner.open and (done is not None or self._began == (0, 0)):
            self._began = now

    def _take(self, record: Any) -> None:
        from otel_tf import semconv
        from otel_tf.logs.encode import attribute_list, log_record
        from otel_tf.logs.heads import TIMED
        from otel_tf.logs.severity import name_of

        wall_ns, mono_ns = self._began
        self._began = (0, 0)
        head = record.head
        severity = 0 if head is None else head.severity
        # What Python's formats say is coarser than when it was read.
        own_ns = None if head is None or head.format == TIMED else head.time_ns
        attributes = attribute_list(
            {
                semconv.WORKER: (self._named or self._unnamed).get("worker"),
                semconv.MONOTONIC_NS: mono_ns,
                semconv.LOG_IOSTREAM: "stderr",
                semconv.CODE_FILE_PATH: head.file if head else None,
                semconv.CODE_LINE_NUMBER: head.line if head else None,
                "thread.id": head.thread if head else None,
            }
        )
        self._ready.append(
            log_record(own_ns or wall_ns, wall_ns, severity, name_of(severity), record.text, attributes)
        )

    def _settle(self) -> None:
        """Ends the open record: nothing has followed."""
        if self._rest:
            rest, self._rest = self._rest, b""
            with contextlib.suppress(Exception):
                self._add(rest, self._rest_at)
        done = self._joiner.end()
        if done is not None:
            self._take(done)
        self._write()

    def _write(self) -> None:
        from otel_tf.logs.encode import logs_line

        if self._named is None and len(self._ready) > _MOST_UNNAMED:
            self._named = self._unnamed
        if self._named is None or not self._ready:
            return
        line = logs_line(self._named["attributes"], {"": self._ready})
        self._ready = []
        with contextlib.suppress(OSError):
            if self._file is None:
                self._file = _claim(Path(self._named["folder"]), self._named["stem"])
            view = memoryview(line)
            while view:
                view = view[os.write(self._file, view) :]

    def _told(self) -> None:
        """Does what the training process says: ``name``, or ``sync``."""
        assert self._control is not None
        try:
            data = self._control.recv(_READ_BYTES)
        except OSError:
            data = b""
        if not data:
            self._control = None
            return
        *messages, self._said = (self._said + data).split(b"\n")
        for message in messages:
            said = json.loads(message)
            if "folder" in said:
                if self._file is not None and self._named is not None:
                    self._write()
                    if said["folder"] != self._named["folder"] or said["stem"] != self._named["stem"]:
                        os.close(self._file)
                        self._file = None
                self._named = said
                self._write()
            else:
                while not self._ended and select.select([_PIPE], [], [], 0)[0]:
                    self._read()
                while self._pending:
                    self._parse()
                self._settle()
                with contextlib.suppress(OSError):
                    self._control.send(b"\n")

    def _end(self) -> None:
        if self._named is None:
            self._named = self._unnamed
        self._settle()


def _claim(folder: Path, stem: str) -> int:
    """Opens a file that no other process has."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(10_000):
        name = f"{stem}-{number}" if number else stem
        with contextlib.suppress(FileExistsError):
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            return os.open(folder / f"{name}.stderr.logs.jsonl", flags, 0o644)
    raise FileExistsError(stem)


def main(arguments: list[str]) -> None:
    """Becomes the reader, in a process that is nobody's child.

    Args:
        arguments: The control socket's descriptor; whether the run is named; in JSON what names it.
    """
    # The program may wait for its children, whoever they are: the parent of this one has ended.
    if os.fork():
        os._exit(0)
    # What ends the training process must not end this: it ends by itself.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=int(arguments[0]))
    reader = Reader(control, json.loads(arguments[2]), named=arguments[1] == "named")
    control.send(b"\n")
    reader.run()


if __name__ == "__main__":
    # Isolated (-I -S): only the package itself and, before it, the standard library.
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    main(sys.argv[1:])
    os._exit(0)
