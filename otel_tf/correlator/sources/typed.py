"""OTLP/JSON as typed objects: what of it is read, decoded straight from the text.

Attributes stay JSON text here: one Python object for each of them would cost more than all the rest
(`json_attributes` makes columns of the text). 64-bit integers may be texts or numbers. What does not fit,
the tolerant reader looks at.
"""

from __future__ import annotations

import msgspec

__all__ = ["LINE", "Event", "Line", "Link", "Resource", "ResourceSpans", "ScopeSpans", "Span", "Status"]

_NO_ATTRIBUTES = msgspec.Raw(b"[]")


class Link(msgspec.Struct, gc=False):
    """A link to another span."""

    traceId: str | None = ""  # noqa: N815 - the format's names, here and below
    spanId: str | None = ""  # noqa: N815


class Event(msgspec.Struct, gc=False):
    """Something that happened within a span, such as an exception."""

    name: str | None = ""
    attributes: msgspec.Raw = _NO_ATTRIBUTES


class Status(msgspec.Struct, gc=False):
    """How a span ended."""

    code: int = 0
    message: str | None = ""


class Span(msgspec.Struct, gc=False):
    """A span; times in ns."""

    traceId: str | None = ""  # noqa: N815
    spanId: str | None = ""  # noqa: N815
    parentSpanId: str | None = ""  # noqa: N815
    name: str | None = ""
    kind: int = 0
    startTimeUnixNano: int = 0  # noqa: N815
    endTimeUnixNano: int = 0  # noqa: N815
    attributes: msgspec.Raw = _NO_ATTRIBUTES
    events: tuple[Event, ...] = ()
    links: tuple[Link, ...] = ()
    status: Status | None = None


class ScopeSpans(msgspec.Struct, gc=False):
    """The spans of one instrumentation scope."""

    spans: tuple[Span, ...] = ()


class Resource(msgspec.Struct, gc=False):
    """Who recorded spans."""

    attributes: msgspec.Raw = _NO_ATTRIBUTES


class ResourceSpans(msgspec.Struct, gc=False):
    """The spans of one resource."""

    resource: Resource | None = None
    scopeSpans: tuple[ScopeSpans, ...] = ()  # noqa: N815


class _Traces(msgspec.Struct, gc=False):
    resourceSpans: tuple[ResourceSpans, ...]  # noqa: N815


class Line(msgspec.Struct, gc=False):
    """One document; ``result`` is where Jaeger's v3 answers have the traces."""

    resourceSpans: tuple[ResourceSpans, ...] | None = None  # noqa: N815
    result: _Traces | None = None
    resourceLogs: msgspec.Raw | None = None  # noqa: N815
    resourceMetrics: msgspec.Raw | None = None  # noqa: N815

    def parts(self) -> tuple[ResourceSpans, ...] | None:
        """Returns the spans by resource; None if it is not OTLP, or another kind of traces."""
        if self.resourceSpans is not None:
            return self.resourceSpans
        if self.result is not None:
            return self.result.resourceSpans
        return None if self.resourceLogs is None and self.resourceMetrics is None else ()


#: Not strict: protobuf's JSON writes 64-bit integers as texts.
LINE = msgspec.json.Decoder(Line, strict=False)
