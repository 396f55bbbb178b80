"""OTLP/JSON that is not quite OTLP/JSON: one document to typed spans, span by span.

It takes the lines that hold a value which the format does not allow. It is forgiving where the meaning is
clear (enums written as names, absent fields, NaN), and counts the rest by reason.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from otel_tf.correlator.sources import jaeger_json
from otel_tf.correlator.sources.any_value import clean_text, plain_attributes, written
from otel_tf.correlator.sources.skipped import Skipped
from otel_tf.correlator.sources.typed import Event, Link, Resource, ResourceSpans, ScopeSpans, Span, Status

__all__ = ["Document", "NotJson", "NotOtlp", "Reporter", "clean", "parse"]

#: Called with a reason of `Skipped` and a text.
Report = Callable[[str, str], None]

_KINDS = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
_CODES = ("UNSET", "OK", "ERROR")
_MOST_INT64 = 2**63 - 1
_OTHER_SIGNALS = ("resourceLogs", "resourceMetrics", "resourceProfiles")
_CLOCK_NUMBERS = ("mono_ns", "wall_ns")


class NotOtlp(ValueError):
    """The document is JSON, but of no kind that is read here."""


class NotJson(ValueError):
    """It is not JSON.

    Attributes:
        text: What was read, in UTF-8.
        position: How far in ``text`` it was JSON.
    """

    def __init__(self, why: str, text: bytes, position: int) -> None:
        super().__init__(why)
        self.text = text
        self.position = position


class Reporter:
    """Counts in a `Skipped` what is wrong with one line.

    Args:
        skipped: Where it is counted.
        name: The file.
        file: Its number.
        line: The line's number, from 1.
        last: Whether the file ends with the line, without a newline.
    """

    def __init__(self, skipped: Skipped, name: str, file: int, line: int, last: bool) -> None:
        self._skipped = skipped
        self._where = f"{name}:{line}"
        self._order = (file, line)
        self._last = last

    def __call__(self, reason: str, text: str) -> None:
        """Counts one more of ``reason``."""
        self._skipped.add(reason, f"{self._where}: {text}", order=self._order)

    def not_json(self, line: bytes, error: NotJson, kept: int, *, cut_off: bool) -> None:
        """Counts a line that is not JSON: cut off, or something else.

        Args:
            line: The line.
            error: What is wrong with it.
            kept: How many spans before that are used.
            cut_off: Whether it begins as OTLP does.
        """
        shown = repr(line[:60].decode("utf-8", "replace")) + ("…" if len(line) > 60 else "")
        used = f"; the {kept:,} whole spans before that are used" if kept else ""
        # A last line without its newline was cut off: its writer was killed in the middle.
        self("truncated" if cut_off or self._last else "not_json", f"{shown} ({error}){used}")


@dataclasses.dataclass
class Document:
    """What is usable in one JSON document.

    Attributes:
        resource_spans: Spans by resource.
        clocks: Snapshots of clocks.
    """

    resource_spans: list[ResourceSpans] = dataclasses.field(default_factory=list)
    clocks: list[dict[str, Any]] = dataclasses.field(default_factory=list)


def parse(line: bytes, report: Report) -> Any:
    """Returns the JSON value in ``line``.

    Raises:
        NotJson: It is none.
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        text = line.decode("utf-8", "replace")
        report("not_utf8", f"byte {error.start}: {line[error.start : error.start + 8]!r}")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        position = len(text[: error.pos].encode("utf-8", "replace"))
        raise NotJson(str(error), text.encode("utf-8", "replace"), position) from None
    except (RecursionError, ValueError) as error:
        # An integer of more digits than Python reads, for one.
        why = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise NotJson(why, line, 0) from None


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


def _resource_spans(value: dict[str, Any], report: Report) -> ResourceSpans:
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
    return ResourceSpans(Resource(_attributes(resource.get("attributes"))), (ScopeSpans(tuple(spans)),))


def _span(value: Any) -> Span:
    if not isinstance(value, dict):
        raise TypeError("no object")
    status = value.get("status")
    status = status if isinstance(status, dict) else {}
    return Span(
        traceId=_text(value.get("traceId")),
        spanId=_text(value.get("spanId")),
        parentSpanId=_text(value.get("parentSpanId")),
        name=_text(value.get("name")),
        kind=_enum(value.get("kind"), "SPAN_KIND_", _KINDS),
        startTimeUnixNano=_time(value.get("startTimeUnixNano"), "startTimeUnixNano"),
        endTimeUnixNano=_time(value.get("endTimeUnixNano"), "endTimeUnixNano"),
        attributes=_attributes(value.get("attributes")),
        events=tuple(
            Event(_text_or_none(event.get("name")), _attributes(event.get("attributes")))
            for event in _dicts(value.get("events"))
        ),
        links=tuple(
            Link(_text(link.get("traceId")), _text(link.get("spanId"))) for link in _dicts(value.get("links"))
        ),
        status=Status(_enum(status.get("code"), "STATUS_CODE_", _CODES), _text(status.get("message"))),
    )


def _attributes(value: Any) -> msgspec.Raw:
    return msgspec.Raw(written(plain_attributes(value)))


def _text_or_none(value: Any) -> str | None:
    return clean_text(value) if isinstance(value, str) else None


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return clean_text(value)


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


def _time(value: Any, field: str) -> int:
    if value is None or value == "":
        return 0
    if isinstance(value, bool) or not isinstance(value, (int, str, float)):
        raise TypeError(f"{field} is {value!r}")
    try:
        return int(value)
    except (ValueError, OverflowError):
        raise ValueError(f"{field} is {value!r}") from None
