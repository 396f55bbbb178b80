"""Samples of OTLP for the tests of sources, and what they must read as."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_tf.correlator import sources
from otel_tf.correlator.tables import Ingested

T0 = 1_700_000_000_000_000_000


def value(of: Any) -> dict[str, Any]:
    if isinstance(of, bool):
        return {"boolValue": of}
    if isinstance(of, int):
        return {"intValue": str(of)}
    if isinstance(of, float):
        return {"doubleValue": of}
    if isinstance(of, list):
        return {"arrayValue": {"values": [value(item) for item in of]}}
    if isinstance(of, dict):
        return {"kvlistValue": {"values": pairs(of)}}
    return {"stringValue": of}


def pairs(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": value(of)} for key, of in attributes.items()]


def span(number: int = 1, attributes: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """Returns a span as OTLP/JSON has it; ``fields`` in OTLP/JSON's names replace the defaults."""
    return {
        "traceId": f"{0xABCDEF << 64 | number:032x}",
        "spanId": f"{number:016x}",
        "name": "train_step",
        "kind": 1,
        "startTimeUnixNano": str(T0 + number * 1000),
        "endTimeUnixNano": str(T0 + number * 1000 + 500),
        "attributes": pairs(attributes or {}),
        **fields,
    }


def traces(*spans: dict[str, Any], resource: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns one OTLP/JSON document with one resource."""
    resource = {"service.name": "train"} if resource is None else resource
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": pairs(resource)},
                "scopeSpans": [{"scope": {"name": "test"}, "spans": list(spans)}],
            }
        ]
    }


class Samples:
    """Makes documents, writes them, reads them."""

    t0 = T0
    span = staticmethod(span)
    traces = staticmethod(traces)
    pairs = staticmethod(pairs)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, *lines: dict[str, Any] | str | bytes, name: str = "run.jsonl") -> Path:
        """Writes a file of lines; objects as JSON."""
        path = self.folder / name
        encoded = [
            line
            if isinstance(line, bytes)
            else (line if isinstance(line, str) else json.dumps(line)).encode()
            for line in lines
        ]
        path.write_bytes(b"\n".join(encoded) + b"\n")
        return path

    def read(self, *lines: dict[str, Any] | str | bytes) -> Ingested:
        """Writes a file of lines and reads it."""
        return sources.read([str(self.write(*lines))])

    def row(self, *lines: dict[str, Any] | str | bytes) -> dict[str, Any]:
        """Reads lines that hold one span, and returns it."""
        rows = self.read(*lines).spans.to_pylist()
        assert len(rows) == 1
        found: dict[str, Any] = rows[0]
        return found


@pytest.fixture
def samples(tmp_path: Path) -> Samples:
    return Samples(tmp_path)


@pytest.fixture
def said() -> tuple[list[str], Callable[[str], None]]:
    lines: list[str] = []
    return lines, lines.append
