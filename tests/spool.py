"""Reading a run's spool as a test wants it: one flat object a span."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class SpooledSpan:
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    status: dict[str, Any]
    attributes: dict[str, Any]
    resource: dict[str, Any]
    events: list[dict[str, Any]]

    @property
    def mono_ns(self) -> tuple[int, int]:
        """Begin and end by the process's monotonic clock: its wall clock may be corrected meanwhile."""
        start_ns: int = self.attributes["tensorflow.monotonic_ns"]
        return start_ns, start_ns + self.end_ns - self.start_ns


def _value(value: dict[str, Any]) -> Any:
    ((kind, content),) = value.items()
    return int(content) if kind == "intValue" else content


def attributes(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    return {pair["key"]: _value(pair["value"]) for pair in pairs}


def spans(run_dir: Path, name: str | None = None) -> list[SpooledSpan]:
    """Every span in the spool, in the order it was written; those called ``name`` if given."""
    found = []
    for file in sorted(run_dir.glob("*.traces.jsonl")):
        for line in file.read_text().splitlines():
            for resource_spans in json.loads(line)["resourceSpans"]:
                resource = attributes(resource_spans["resource"]["attributes"])
                for scope_spans in resource_spans["scopeSpans"]:
                    found += [_span(span, resource) for span in scope_spans["spans"]]
    return [span for span in found if name in (None, span.name)]


def _span(span: dict[str, Any], resource: dict[str, Any]) -> SpooledSpan:
    return SpooledSpan(
        name=span["name"],
        kind=span["kind"],
        trace_id=span["traceId"],
        span_id=span["spanId"],
        parent_id=span.get("parentSpanId", ""),
        start_ns=int(span["startTimeUnixNano"]),
        end_ns=int(span["endTimeUnixNano"]),
        status=span.get("status", {}),
        attributes=attributes(span.get("attributes", [])),
        resource=resource,
        events=span.get("events", []),
    )
