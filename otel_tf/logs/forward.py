"""Lines of captured stderr for the network: from the reader's file to the exporters of this process.

The reader has no exporter: it outlives this process, and must not need more than the standard library. What
it has written is sent from here. What a crash leaves unsent is in the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from otel_tf.telemetry import LogRecord

__all__ = ["Forwarder"]

#: Bytes of the file that are sent at once.
_MOST_BYTES = 1 << 20


class Forwarder:
    """Reads what was added to a file since the last call.

    Args:
        find: Returns the file; None as long as there is none.
        send: Takes records.
    """

    def __init__(
        self, find: Callable[[], Path | None], send: Callable[[Sequence[LogRecord]], object]
    ) -> None:
        self._find = find
        self._send = send
        self._path: Path | None = None
        self._offset = 0

    def __call__(self) -> None:
        """Sends what is new, whole lines only."""
        if self._path is None:
            self._path = self._find()
        if self._path is None:
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            while data := file.read(_MOST_BYTES):
                whole = data[: data.rfind(b"\n") + 1] if b"\n" in data else b""
                if not whole:
                    data += file.readline()
                    if not data.endswith(b"\n"):
                        return
                    whole = data
                self._offset += len(whole)
                file.seek(self._offset)
                records = [record for line in whole.splitlines() for record in _records(line)]
                if records:
                    self._send(records)


def _records(line: bytes) -> Iterator[LogRecord]:
    for of in json.loads(line)["resourceLogs"]:
        for scope in of["scopeLogs"]:
            for record in scope["logRecords"]:
                yield LogRecord(
                    int(record["timeUnixNano"]),
                    int(record["observedTimeUnixNano"]),
                    record["severityNumber"],
                    record.get("severityText", ""),
                    record["body"]["stringValue"],
                    "",
                    {pair["key"]: _value(pair["value"]) for pair in record["attributes"]},
                )


def _value(value: dict[str, Any]) -> str | int:
    return int(value["intValue"]) if "intValue" in value else str(value["stringValue"])
