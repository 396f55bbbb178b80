"""Replay: sends an endpoint what its copy of a run lacks.

What an endpoint has acknowledged stands in the ledger beside each spool file, line by line; backends
append what they get, so nothing that they have is sent again. A Jaeger can be asked instead.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from otel_tf.errors import UserError
from otel_tf.telemetry._spool import SENT_SUFFIX, TRACES_SUFFIX, LineFile, Place, acknowledgement

if TYPE_CHECKING:
    from otel_tf.telemetry._sinks import Outcome

__all__ = ["Count", "Known", "Replay", "spool_files"]

_MAX_SPANS = 2_000
_MAX_BYTES = 3 << 20
_ATTEMPTS = 5
_FIRST_DELAY_S = 0.5
_MAX_DELAY_S = 30.0
#: Refused requests in a row after which the rest would be refused as well.
_MAX_REFUSED = 3


class Known(Protocol):
    """Knows which spans a backend has."""

    def have(self, keys: list[tuple[str, str]]) -> set[tuple[str, str]]:
        """Returns those of the (trace id, span id) that the backend has."""


@dataclasses.dataclass
class Count:
    """What became of a run's spans.

    Attributes:
        sent: Accepted now.
        already_there: Accepted before, or found at the backend.
        failed: Not accepted.
        unreadable: Lines of the spool that are none: the end of a process that was killed.
        handed_over: Of those already there, how many the program's own tracer provider took over.
    """

    sent: int = 0
    already_there: int = 0
    failed: int = 0
    unreadable: int = 0
    handed_over: int = 0


@dataclasses.dataclass
class _Line:
    ledger: Path
    place: Place
    document: dict[str, Any]
    without: set[tuple[str, str]]
    count: int


def spool_files(run: Path) -> list[Path]:
    """Returns the spool files of a run directory, or the one file given.

    Raises:
        UserError: There are none.
    """
    if run.is_file() and run.name.endswith(TRACES_SUFFIX):
        return [run]
    if not run.is_dir():
        raise UserError(f"{run}: no run directory")
    files = sorted(run.glob(f"*{TRACES_SUFFIX}"))
    if not files:
        raise UserError(f"{run}: no spool in it (*{TRACES_SUFFIX})")
    return files


class Replay:
    """One replay.

    Args:
        send: Makes one attempt to send an encoded request.
        known: Asked for what the backend has; None: the ledger says.
        everything: Send also what is known to be there.
        say: Told what goes wrong, one line at a time.
    """

    def __init__(
        self,
        send: Callable[[bytes], Outcome],
        *,
        known: Known | None = None,
        everything: bool = False,
        say: Callable[[str], None],
    ) -> None:
        self._send = send
        self._known = known
        self._everything = everything
        self._say = say
        self._gave_up = False
        self._refused = 0
        self.count = Count()

    def run(self, files: list[Path]) -> Count:
        """Sends what lacks from the files, in their order.

        Raises:
            UserError: A file cannot be read.
        """
        waiting: list[_Line] = []
        spans = size = 0
        for path in files:
            for line in self._lines(path):
                if waiting and (spans + line.count > _MAX_SPANS or size + line.place.length > _MAX_BYTES):
                    self._deliver(waiting)
                    waiting, spans, size = [], 0, 0
                waiting.append(line)
                spans, size = spans + line.count, size + line.place.length
        if waiting:
            self._deliver(waiting)
        return self.count

    def _lines(self, path: Path) -> Iterator[_Line]:
        """Yields the lines of one spool file that hold something to send."""
        from otel_tf.telemetry._from_json import span_keys

        ledger = path.with_name(path.name.removesuffix(TRACES_SUFFIX) + SENT_SUFFIX)
        acknowledged = self._acknowledged(ledger)
        offset = 0
        try:
            with path.open("rb") as file:
                for content in file:
                    place = Place(offset, len(content))
                    offset += len(content)
                    entry = acknowledged.get(place.offset)
                    if entry is not None and self._known is None and not self._everything:
                        self.count.already_there += entry["spans"]
                        self.count.handed_over += entry["spans"] if entry.get("via") == "provider" else 0
                        continue
                    try:
                        document = json.loads(content)
                        keys = span_keys(document)
                    except (ValueError, KeyError, TypeError):
                        self.count.unreadable += 1
                        self._say(f"{path}: byte {place.offset}: no whole line of spans; left out")
                        continue
                    there: set[tuple[str, str]] = set()
                    if self._known is not None and not self._everything:
                        there = self._known.have(keys)
                        self.count.already_there += len(there)
                    if len(there) < len(keys):
                        yield _Line(ledger, place, document, there, len(keys) - len(there))
        except OSError as error:
            raise UserError(f"{path}: {error.strerror or error}") from error

    def _acknowledged(self, ledger: Path) -> dict[int, dict[str, Any]]:
        entries: dict[int, dict[str, Any]] = {}
        try:
            text = ledger.read_text(encoding="utf-8")
        except FileNotFoundError:
            return entries
        except (OSError, ValueError) as error:
            raise UserError(f"{ledger}: {error}") from error
        for number, line in enumerate(text.splitlines(), 1):
            try:
                entry = json.loads(line)
                entries[entry["offset"]] = {**entry, "spans": int(entry["spans"])}
            except (ValueError, KeyError, TypeError):
                self._say(f"{ledger}: line {number}: no entry of the ledger; left out")
        return entries

    def _deliver(self, lines: list[_Line]) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        from otel_tf.telemetry._from_json import add_line

        spans = sum(line.count for line in lines)
        if self._gave_up:
            self.count.failed += spans
            return
        request = ExportTraceServiceRequest()
        for line in lines:
            add_line(request, line.document, line.without)
        outcome = self._attempts(request.SerializeToString())
        if not outcome.accepted:
            self.count.failed += spans
            self._say(f"{spans} spans were not accepted ({outcome.reason})")
            self._refused += 1
            self._gave_up = outcome.retry or self._refused >= _MAX_REFUSED
            return
        self._refused = 0
        self.count.sent += spans - outcome.rejected
        self.count.failed += outcome.rejected
        if outcome.rejected:
            self._say(f"{outcome.rejected} of {spans} spans were rejected ({outcome.reason})")
        for number, line in enumerate(lines):
            self._note(line, outcome.rejected if number == 0 else 0)

    def _attempts(self, payload: bytes) -> Outcome:
        for number in range(_ATTEMPTS):
            outcome = self._send(payload)
            if outcome.accepted or not outcome.retry or number == _ATTEMPTS - 1:
                break
            delay = outcome.retry_after_s
            time.sleep(min(_FIRST_DELAY_S * 2**number if delay is None else delay, _MAX_DELAY_S))
        return outcome

    def _note(self, line: _Line, rejected: int) -> None:
        try:
            file = LineFile(line.ledger)
            try:
                file.append(acknowledgement(line.place, line.count + len(line.without), rejected))
            finally:
                file.close()
        except OSError as error:
            # The spans are there; only the next replay will not know.
            self._say(f"{line.ledger}: {error.strerror or error}; a second replay would send them again")
