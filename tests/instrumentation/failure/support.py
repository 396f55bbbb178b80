"""Reading what was kept of a failure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.spool import SpooledSpan


def plain(value: dict[str, Any]) -> Any:
    ((kind, content),) = value.items()
    if kind == "arrayValue":
        return [plain(each) for each in content.get("values", [])]
    return int(content) if kind == "intValue" else content


def events(span: SpooledSpan, name: str) -> list[dict[str, Any]]:
    """The attributes of the events of one name, their prefix left out."""
    return [
        {pair["key"].removeprefix("tensorflow."): plain(pair["value"]) for pair in event["attributes"]}
        for event in span.events
        if event["name"] == name
    ]


def failures(span: SpooledSpan) -> dict[str, Any]:
    """The failure in the file that a span names."""
    lines = Path(span.attributes["tensorflow.failure.file"]).read_text().splitlines()
    found: dict[str, Any] = json.loads(lines[span.attributes["tensorflow.failure.line"] - 1])
    assert found["error_type"] == span.attributes["error.type"]
    return found


def tensors(span: SpooledSpan, group: str | None = None) -> dict[str, dict[str, Any]]:
    """Its summaries by name."""
    return {one["name"]: one for one in failures(span)["tensors"] if group in (None, one["group"])}
