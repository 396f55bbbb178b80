"""Replay: sends an endpoint what its copy of a run lacks.

What an endpoint has acknowledged stands in the ledger beside each spool file, line by line; backends
append what they get, so nothing that they have is sent again. A Jaeger can be asked instead.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from otel_tf.errors import UserError
from otel_tf.telemetry._spool import SENT_SUFFIX, TRACES_SUFFIX, LineFile, Place, acknowledgement

if TYPE_CHECKING:
    from otel_tf.telemetry._sinks import Outcome

__all__ = ["Count", "Known", "Replay", "run_of", "spool_files", "wait_until_stored"]

_MAX_SPANS = 4_000
_MAX_BYTES = 3 << 20
_ATTEMPTS = 5
_FIRST_DELAY_S = 0.5
_MAX_DELAY_S = 30.0
_SAY_EVERY_S = 2.0
_BUFFER_BYTES = 1 << 20
#: Refused requests in a row after which the rest would be refused as well.
_MAX_REFUSED = 3
#: What a backend acknowledges it stores a moment later: batches are kept for 0.2 s, Elasticsearch shows
#: them after 1 s, and either may be busy.
_STORED_AFTER_S = 5.0


class Known(Protocol):
    """Knows which spans a backend has."""

    def have(self, keys: list[tuple[str, str]], line: bytes) -> set[tuple[str, str]]:
        """Returns those of the (trace id, span id), all of a line, that the backend has."""


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
    path: Path
    place: Place
    content: bytes
    without: set[tuple[str, str]]
    count: int

    @property
    def ledger(self) -> Path:
        return _ledger(self.path)


def _ledger(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(TRACES_SUFFIX) + SENT_SUFFIX)


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


def run_of(files: list[Path]) -> str | None:
    """Returns the run that the first lines of the files name; None if they do not agree on one."""
    from otel_tf import semconv

    runs: set[str | None] = set()
    for path in files:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError), path.open("rb") as file:
            for resource_spans in json.loads(file.readline())["resourceSpans"]:
                attributes = {each["key"]: each["value"] for each in resource_spans["resource"]["attributes"]}
                runs.add(attributes.get(semconv.RUN_ID, {}).get("stringValue"))
    return runs.pop() if len(runs) == 1 else None


def wait_until_stored(files: list[Path], say: Callable[[str], None]) -> None:
    """Waits until what was acknowledged last can be expected to be found at the backend, 5 s at most.

    Args:
        files: The spool files.
        say: Told why it takes a while.
    """
    newest = 0.0
    for path in files:
        with contextlib.suppress(OSError):
            newest = max(newest, _ledger(path).stat().st_mtime)
    rest_s = min(newest + _STORED_AFTER_S - time.time(), _STORED_AFTER_S)
    if rest_s > 0:
        say(f"spans were acknowledged a moment ago; waiting {rest_s:.0f} s for the backend to store them")
        time.sleep(rest_s)


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
        self._said = time.monotonic()
        self.count = Count()

    def run(self, files: list[Path]) -> Count:
        """Sends what lacks from the files, in their order.

        Raises:
            UserError: A file cannot be read.
        """
        # One request is on its way while the next is made.
        under_way: tuple[Future[Outcome], list[_Line]] | None = None
        with ThreadPoolExecutor(1, "otel-tf-replay") as pool:
            try:
                for batch in self._batches(files):
                    if self._gave_up:
                        self.count.failed += sum(line.count for line in batch)
                        continue
                    payload, lines = self._encoded(batch)
                    if under_way is not None:
                        finished, under_way = under_way, None
                        self._settle(*finished)
                    if self._gave_up:
                        self.count.failed += sum(line.count for line in lines)
                    elif lines:
                        under_way = pool.submit(self._attempts, payload), lines
            finally:
                # Also after Ctrl-C: what was accepted must stand in the ledger.
                if under_way is not None:
                    self._settle(*under_way)
        return self.count

    def _batches(self, files: list[Path]) -> Iterator[list[_Line]]:
        waiting: list[_Line] = []
        spans = size = 0
        for path in files:
            for line in self._lines(path):
                if waiting and (spans + line.count > _MAX_SPANS or size + line.place.length > _MAX_BYTES):
                    yield waiting
                    waiting, spans, size = [], 0, 0
                waiting.append(line)
                spans, size = spans + line.count, size + line.place.length
        if waiting:
            yield waiting

    def _lines(self, path: Path) -> Iterator[_Line]:
        """Yields the lines of one spool file that hold something to send."""
        from otel_tf.telemetry._from_json import span_keys

        acknowledged = self._acknowledged(_ledger(path))
        offset = 0
        try:
            # Lines are long: a small buffer would be filled a hundred times for each.
            with path.open("rb", buffering=_BUFFER_BYTES) as file:
                for content in file:
                    place = Place(offset, len(content))
                    offset += len(content)
                    entry = acknowledged.get(place.offset)
                    if entry is not None and self._known is None and not self._everything:
                        self.count.already_there += entry["spans"]
                        self.count.handed_over += entry["spans"] if entry.get("via") == "provider" else 0
                        continue
                    try:
                        keys = span_keys(content)
                    except ValueError:
                        self._unreadable(path, place)
                        continue
                    there: set[tuple[str, str]] = set()
                    if self._known is not None and not self._everything:
                        there = self._known.have(keys, content)
                        self.count.already_there += len(there)
                    if len(there) < len(keys):
                        yield _Line(path, place, content, there, len(keys) - len(there))
        except OSError as error:
            raise UserError(f"{path}: {error.strerror or error}") from error

    def _unreadable(self, path: Path, place: Place) -> None:
        self.count.unreadable += 1
        self._say(f"{path}: byte {place.offset}: no whole line of spans; left out")

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

    def _encoded(self, lines: list[_Line]) -> tuple[bytes, list[_Line]]:
        """Returns lines as one serialized request, and those that are in it."""
        from otel_tf.telemetry._from_json_columns import NotColumns, to_protobuf

        whole = [line for line in lines if not line.without]
        with contextlib.suppress(NotColumns):
            if len(whole) == len(lines):
                return to_protobuf([line.content for line in lines]), lines
        parts: list[bytes] = []
        good: list[_Line] = []
        for line in lines:
            try:
                parts.append(_encoded_alone(line))
            except (ValueError, KeyError, TypeError, AttributeError):
                self._unreadable(line.path, line.place)
            else:
                good.append(line)
        # Serialized messages one after another are one message that has all their spans.
        return b"".join(parts), good

    def _settle(self, sent: Future[Outcome], lines: list[_Line]) -> None:
        """Waits for the answer to a request, counts it and enters it in the ledger."""
        outcome = sent.result()
        spans = sum(line.count for line in lines)
        if not outcome.accepted:
            self.count.failed += spans
            self._say(f"{spans:,} spans were not accepted ({outcome.reason})")
            self._refused += 1
            self._gave_up = outcome.retry or self._refused >= _MAX_REFUSED
            return
        self._refused = 0
        self.count.sent += spans - outcome.rejected
        self.count.failed += outcome.rejected
        if outcome.rejected:
            self._say(f"{outcome.rejected:,} of {spans:,} spans were rejected ({outcome.reason})")
        self._note(lines, outcome.rejected)
        if time.monotonic() - self._said > _SAY_EVERY_S:
            self._said = time.monotonic()
            self._say(f"{self.count.sent:,} spans sent")

    def _attempts(self, payload: bytes) -> Outcome:
        for number in range(_ATTEMPTS):
            outcome = self._send(payload)
            if outcome.accepted or not outcome.retry or number == _ATTEMPTS - 1:
                break
            delay = outcome.retry_after_s
            time.sleep(min(_FIRST_DELAY_S * 2**number if delay is None else delay, _MAX_DELAY_S))
        return outcome

    def _note(self, lines: list[_Line], rejected: int) -> None:
        entries: dict[Path, bytes] = {}
        for number, line in enumerate(lines):
            spans = line.count + len(line.without)
            entry = acknowledgement(line.place, spans, rejected if number == 0 else 0)
            entries[line.ledger] = entries.get(line.ledger, b"") + entry
        for ledger, text in entries.items():
            try:
                file = LineFile(ledger)
                try:
                    file.append(text)
                finally:
                    file.close()
            except OSError as error:
                # The spans are there; only the next replay will not know.
                self._say(f"{ledger}: {error.strerror or error}; a second replay would send them again")


def _encoded_alone(line: _Line) -> bytes:
    """Returns one line as a serialized request.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: It is not of the spool's making.
    """
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    from otel_tf.telemetry._from_json import add_line
    from otel_tf.telemetry._from_json_columns import NotColumns, to_protobuf

    if not line.without:
        with contextlib.suppress(NotColumns):
            return to_protobuf([line.content])
    request = ExportTraceServiceRequest()
    add_line(request, json.loads(line.content), line.without)
    return bytes(request.SerializeToString())
