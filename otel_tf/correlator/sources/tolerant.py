"""OTLP/JSON that is not quite OTLP/JSON: one document to a clean one, span by span.

The fast reader takes whole chunks of lines and gives up on a chunk at the first value that the format
does not allow. This reader then takes the chunk line by line. It is forgiving where the meaning is clear
(numbers written as numbers, enums written as names, absent fields, NaN), and counts the rest by reason.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

from otel_tf.correlator.sources import jaeger_json

__all__ = ["Document", "NotOtlp", "clean", "parse"]

#: Called with a reason of `Skipped` and a text.
Report = Callable[[str, str], None]

_KINDS = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
_CODES = ("UNSET", "OK", "ERROR")
_MOST_INT64 = 2**63 - 1
_OTHER_SIGNALS = ("resourceLogs", "resourceMetrics", "resourceProfiles")
_CLOCK_NUMBERS = ("mono_ns", "wall_ns")


class NotOtlp(ValueError):
    """The document is JSON, but of no kind that is read here."""


class Document:
    """One cleaned JSON document.

    Attributes:
        resource_spans: OTLP ``ResourceSpans`` that the fast reader takes.
        clocks: Snapshots of clocks.
    """

    def __init__(self) -> None:
        self.resource_spans: list[dict[str, Any]] = []
        self.clocks: list[dict[str, Any]] = []


def parse(line: bytes, report: Report) -> Any:
    """Returns the JSON value in ``line``.

    Raises:
        ValueError: It is not JSON.
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        text = line.decode("utf-8", "replace")
        report("not_utf8", f"byte {error.start}: {line[error.start : error.start + 8]!r}")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def clean(value: Any, report: Report) -> Document:
    """Returns what is usable in a JSON value: OTLP, a Jaeger answer, a clock snapshot, or a list of them.

    Raises:
        NotOtlp: It is none of these.
    """
    document = Document()
    _clean_into(document, value, report)
    return document


def _clean_into(document: Document, value: Any, report: Report) -> None:
    if isinstance(value, list) and value:
        for item in value:
            _clean_into(document, item, report)
        return
    if not isinstance(value, dict):
        raise NotOtlp("no JSON object")
    if "result" in value and isinstance(value["result"], dict):
        value = value["result"]
    traces = value.get("resourceSpans", value.get("resource_spans"))
    if traces is not None:
        document.resource_spans += [_resource_spans(item, report) for item in _dicts(traces)]
    elif "data" in value:
        found = jaeger_json.to_otlp(value["data"], report)
        document.resource_spans += [_resource_spans(item, report) for item in found]
    elif all(key in value for key in _CLOCK_NUMBERS):
        _clock(document, value, report)
    elif not any(key in value for key in _OTHER_SIGNALS):
        raise NotOtlp(f"no resourceSpans, but {', '.join(map(repr, list(value)[:4])) or 'nothing'}")


def _clock(document: Document, value: dict[str, Any], report: Report) -> None:
    try:
        row: dict[str, int | None] = {key: _int64(value[key]) for key in _CLOCK_NUMBERS}
        error = value.get("max_error_ns")
        row["max_error_ns"] = None if error is None else _int64(error)
    except (TypeError, ValueError, OverflowError) as problem:
        report("bad_clock_line", str(problem))
        return
    process = str(value.get("process") or "")
    domain = str(value.get("domain") or process)
    document.clocks.append({"domain": domain, "process": process or domain, **row})


def _dicts(value: Any) -> Iterator[dict[str, Any]]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())


def _resource_spans(value: dict[str, Any], report: Report) -> dict[str, Any]:
    resource = value.get("resource")
    resource = resource if isinstance(resource, dict) else {}
    spans = []
    for scope in _dicts(value.get("scopeSpans", value.get("scope_spans"))):
        items = scope.get("spans") or []
        if not isinstance(items, list):
            report("wrong_type", f"spans is {items!r}")
            continue
        for item in items:
            try:
                spans.append(_span(item))
            except (TypeError, ValueError, KeyError, OverflowError) as error:
                name = item.get("name") if isinstance(item, dict) else item
                report("wrong_type", f"span {name!r}: {error}")
    attributes = _attributes(resource.get("attributes"))
    return {"resource": {"attributes": attributes}, "scopeSpans": [{"spans": spans}]}


def _span(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("no object")
    status = value.get("status")
    status = status if isinstance(status, dict) else {}
    return {
        "traceId": _text(value.get("traceId")),
        "spanId": _text(value.get("spanId")),
        "parentSpanId": _text(value.get("parentSpanId")),
        "name": _text(value.get("name")),
        "kind": _enum(value.get("kind"), "SPAN_KIND_", _KINDS),
        "startTimeUnixNano": _time(value.get("startTimeUnixNano"), "startTimeUnixNano"),
        "endTimeUnixNano": _time(value.get("endTimeUnixNano"), "endTimeUnixNano"),
        "attributes": _attributes(value.get("attributes")),
        "links": [
            {"traceId": _text(link.get("traceId")), "spanId": _text(link.get("spanId"))}
            for link in _dicts(value.get("links"))
        ],
        "status": {
            "message": _text(status.get("message")),
            "code": _enum(status.get("code"), "STATUS_CODE_", _CODES),
        },
    }


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    # A lone surrogate is valid in JSON's escapes and in no encoding.
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def _enum(value: Any, prefix: str, names: tuple[str, ...]) -> int:
    if value is None:
        return 0
    if isinstance(value, str) and not value.lstrip("-").isdigit():
        name = value.removeprefix(prefix)
        return names.index(name) if name in names else 0
    number = int(value)
    return number if 0 <= number < len(names) else 0


def _int64(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str, float)):
        raise TypeError(f"{value!r} is no integer")
    number = int(value)
    if number != float(value) and not isinstance(value, (int, str)):
        raise ValueError(f"{value!r} is no integer")
    if abs(number) > _MOST_INT64:
        raise ValueError(f"{value!r} is more than 64 bits")
    return number


def _time(value: Any, field: str) -> str:
    if value is None or value == "":
        return "0"
    if isinstance(value, bool) or not isinstance(value, (int, str, float)):
        raise TypeError(f"{field} is {value!r}")
    try:
        number = int(value)
    except (ValueError, OverflowError):
        raise ValueError(f"{field} is {value!r}") from None
    # The largest int64 is an absurd time, and is then counted as one.
    return str(max(0, min(number, _MOST_INT64)))


def _attributes(value: Any) -> list[dict[str, Any]]:
    return [
        {
            "key": _text(item.get("key")) if isinstance(item.get("key"), str) else "",
            "value": _value(item.get("value")),
        }
        for item in _dicts(value)
    ]


def _value(value: Any, depth: int = 0) -> dict[str, Any] | None:
    """Returns a clean ``AnyValue``; None where there is none or it is nested deeper than is read."""
    if not isinstance(value, dict):
        return None
    for kind, inner in value.items():
        if kind in ("stringValue", "bytesValue") and isinstance(inner, str):
            return {kind: _text(inner)}
        if kind == "boolValue" and isinstance(inner, bool):
            return {kind: inner}
        if kind == "intValue":
            try:
                return {kind: str(_int64(inner))}
            except (TypeError, ValueError, OverflowError):
                return {"stringValue": str(inner)}
        if kind == "doubleValue":
            return _double(inner)
        if kind in ("arrayValue", "kvlistValue") and isinstance(inner, dict) and depth == 0:
            return {kind: {"values": _nested(kind, inner)}}
    return None


def _nested(kind: str, value: dict[str, Any]) -> list[Any]:
    items = list(_dicts(value.get("values")))
    if kind == "arrayValue":
        return [_value(item, 1) for item in items]
    return [{"key": str(item.get("key") or ""), "value": _value(item.get("value"), 1)} for item in items]


def _double(value: Any) -> dict[str, Any] | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return {"stringValue": str(value)}
    return {"doubleValue": number} if math.isfinite(number) else {"stringValue": str(number)}
