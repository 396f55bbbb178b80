"""The spool: this process's own files in the run directory, the first copy of everything.

``<task>.<pid>.traces.jsonl`` takes OTLP JSON lines, ``….logs.jsonl`` likewise, ``….clocks.jsonl``
snapshots of the clocks, and
``….sent`` says which lines of the first an OTLP endpoint has acknowledged. A line is written by
one ``write`` in append mode, so that a killed process leaves at most one truncated last line, and the
page cache keeps what was written whatever becomes of the process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import threading
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "CLOCKS_SUFFIX",
    "LOGS_SUFFIX",
    "SENT_SUFFIX",
    "TRACES_SUFFIX",
    "LineFile",
    "Place",
    "Spool",
    "acknowledgement",
]

_logger = logging.getLogger("otel_tf")

TRACES_SUFFIX = ".traces.jsonl"
CLOCKS_SUFFIX = ".clocks.jsonl"
LOGS_SUFFIX = ".logs.jsonl"
SENT_SUFFIX = ".sent"


class Place(NamedTuple):
    """Where a line lies: byte offset and length, its newline included."""

    offset: int
    length: int


def acknowledgement(place: Place, spans: int, rejected: int = 0, via: str = "otlp") -> bytes:
    """Returns a line of the ledger; see `Spool.acknowledge`."""
    entry: dict[str, int | str] = {"offset": place.offset, "length": place.length, "spans": spans}
    if rejected:
        entry["rejected"] = rejected
    if via != "otlp":
        entry["via"] = via
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


class LineFile:
    """A file of whole lines that only ever grows. Not thread-safe.

    Raises:
        OSError: From `__init__` and `append`; after a failed append the file is as it was before.
    """

    def __init__(self, path: Path, *, exclusive: bool = False) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if exclusive else 0)
        self.path = path
        self._fd = os.open(path, flags, 0o644)
        self.size = os.fstat(self._fd).st_size

    def append(self, line: bytes) -> Place:
        """Appends one line (its newline included) or nothing."""
        place = Place(self.size, len(line))
        written = 0
        try:
            while written < len(line):
                # A second round only happens where a disk ran full or a signal came.
                written += os.write(self._fd, line[written:] if written else line)
        except OSError:
            if written:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self.size)
            raise
        self.size += len(line)
        return place

    def close(self) -> None:
        """Closes the file; further calls do nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Spool:
    """The files of one process in one run directory.

    Args:
        directory: The run directory; made when the first line comes.
        task: This process's task, such as ``worker-1``.
    """

    def __init__(self, directory: Path, task: str) -> None:
        self.directory = directory
        self._task = re.sub(r"[^A-Za-z0-9_-]", "_", task)
        self._lock = threading.Lock()
        self._files: dict[str, LineFile] = {}
        self._stem: str | None = None
        self._failed = False

    @property
    def size(self) -> int:
        """Bytes of spans spooled by this process."""
        file = self._files.get(TRACES_SUFFIX)
        return file.size if file is not None else 0

    @property
    def failed(self) -> bool:
        """Whether the last write failed."""
        return self._failed

    def write(self, suffix: str, line: bytes) -> Place | None:
        """Appends a line to one of this process's files; None when that is not possible.

        The first failure is said once in the log; later writes try again, for a disk may be freed.
        """
        with self._lock:
            try:
                place = self._file(suffix).append(line)
            except OSError as error:
                if not self._failed:
                    self._failed = True
                    _logger.warning(
                        "cannot write spans to %s (%s); training goes on, and spans only go over the network "
                        "until the folder can be written again (OTEL_TF_RUN_DIR names it)",
                        self.directory,
                        error.strerror or error,
                    )
                return None
            if self._failed:
                self._failed = False
                _logger.info("spans are written to %s again", self.directory)
            return place

    def acknowledge(self, place: Place, spans: int, rejected: int = 0, via: str = "otlp") -> None:
        """Notes that an endpoint has taken a line of the traces file.

        Args:
            place: The line.
            spans: Spans in it.
            rejected: Spans of it that the endpoint refused for good.
            via: ``otlp``, or ``provider`` where the program's own tracer provider took them over.
        """
        self.write(SENT_SUFFIX, acknowledgement(place, spans, rejected, via))

    def close(self) -> None:
        """Closes the files; a later write opens them again."""
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()

    def abandon(self) -> None:
        """Forgets the parent's files; called in a fork's child, whose files are new ones."""
        self._lock = threading.Lock()
        for file in self._files.values():
            file.close()
        self._files = {}
        self._stem = None
        self._failed = False

    def _file(self, suffix: str) -> LineFile:
        file = self._files.get(suffix)
        if file is None:
            self.directory.mkdir(parents=True, exist_ok=True)
            if self._stem is None:
                self._stem = self._claim()
            file = self._files.setdefault(suffix, LineFile(self.directory / f"{self._stem}{suffix}"))
        return file

    def _claim(self) -> str:
        """Returns a file stem that no other process has.

        The process id alone is not enough: in containers it often is 1, of every incarnation.
        """
        stem = f"{self._task}.{os.getpid()}"
        for number in range(10_000):
            name = f"{stem}-{number}" if number else stem
            with contextlib.suppress(FileExistsError):
                self._files[TRACES_SUFFIX] = LineFile(
                    self.directory / f"{name}{TRACES_SUFFIX}", exclusive=True
                )
                return name
        raise FileExistsError(f"{stem}{TRACES_SUFFIX} and 10,000 more")
