"""Jaeger's legacy JSON (``/api/traces``, what its UI saves) as OTLP/JSON.

Times there are whole microseconds, and the high half of a trace id is left out where it is zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["to_otlp"]

_KINDS = {"internal": 1, "server": 2, "client": 3, "producer": 4, "consumer": 5}
_CODES = {"OK": 1, "ERROR": 2}


def to_otlp(data: Any, report: Callable[[str, str], None]) -> list[dict[str, Any]]:
    """Returns OTLP ``ResourceSpans``, one for each process of each trace.

    Args:
        data: The ``data`` of an answer: traces, or one trace.
        report: Called with ``wrong_type`` and a text for each span that is none.
    """
    found = []
    for trace in data if isinstance(data, list) else [data]:
        if not isinstance(trace, dict) or not isinstance(trace.get("spans"), list):
            continue
        processes = trace.get("processes")
        processes = processes if isinstance(processes, dict) else {}
        by_process: dict[str, list[dict[str, Any]]] = {}
        inline: dict[str, Any] = {}
        for span in trace["spans"]:
            try:
                # The UI's own state has the process in each span.
                name = str(span.get("processID") or "")
                inline.setdefault(name, span.get("process"))
                by_process.setdefault(name, []).append(_span(span))
            except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
                shown = span.get("operationName") if isinstance(span, dict) else span
                report("wrong_type", f"span {shown!r}: {type(error).__name__} {error}")
        for name, spans in by_process.items():
            resource = _resource(processes.get(name) or inline.get(name))
            found.append({"resource": resource, "scopeSpans": [{"spans": spans}]})
    return found


def _resource(process: Any) -> dict[str, Any]:
    process = process if isinstance(process, dict) else {}
    attributes = [_attribute(tag) for tag in process.get("tags") or []]
    service = {"key": "service.name", "value": {"stringValue": str(process.get("serviceName") or "")}}
    return {"attributes": [service, *attributes]}


def _attribute(tag: dict[str, Any]) -> dict[str, Any]:
    kind, value = tag.get("type"), tag.get("value")
    key = str(tag.get("key"))
    if isinstance(value, bool):
        return {"key": key, "value": {"boolValue": value}}
    if kind == "int64":
        return {"key": key, "value": {"intValue": value}}
    if kind == "float64" or isinstance(value, float):
        return {"key": key, "value": {"doubleValue": value}}
    if kind == "binary":
        return {"key": key, "value": {"bytesValue": value}}
    return {"key": key, "value": {"stringValue": str(value)}}


def _event(log: dict[str, Any]) -> dict[str, Any]:
    fields = [field for field in log.get("fields") or [] if isinstance(field, dict)]
    name = next((field.get("value") for field in fields if field.get("key") == "event"), "")
    return {
        "name": name,
        "attributes": [_attribute(field) for field in fields if field.get("key") != "event"],
    }


def _span(span: dict[str, Any]) -> dict[str, Any]:
    start_us, duration_us = int(span["startTime"]), int(span["duration"])
    trace_id = str(span["traceID"]).zfill(32)
    parent, links = str(span.get("parentSpanID") or ""), []
    for reference in span.get("references") or []:
        target = {
            "traceId": str(reference.get("traceID") or "").zfill(32),
            "spanId": str(reference.get("spanID") or "").zfill(16),
        }
        if not parent and reference.get("refType") == "CHILD_OF" and target["traceId"] == trace_id:
            parent = target["spanId"]
        else:
            links.append(target)
    tags = span.get("tags") or []
    named = {tag.get("key"): tag.get("value") for tag in tags}
    code = _CODES.get(str(named.get("otel.status_code")), 2 if named.get("error") in (True, "true") else 0)
    # These tags are how Jaeger writes fields that OTLP has.
    as_fields = ("span.kind", "otel.status_code", "otel.status_description", "error")
    return {
        "traceId": trace_id,
        "spanId": str(span["spanID"]).zfill(16),
        "parentSpanId": parent.zfill(16) if parent else "",
        "name": str(span.get("operationName") or ""),
        "kind": _KINDS.get(str(named.get("span.kind")), 0),
        "startTimeUnixNano": start_us * 1000,
        "endTimeUnixNano": (start_us + duration_us) * 1000,
        "attributes": [_attribute(tag) for tag in tags if tag.get("key") not in as_fields],
        "events": [_event(log) for log in span.get("logs") or [] if isinstance(log, dict)],
        "links": links,
        "status": {"code": code, "message": str(named.get("otel.status_description") or "")},
    }
