"""What reading from a Jaeger asks of it, whichever of its two v3 APIs answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Protocol

from otel_tf.correlator.sources.extract import Chunk
from otel_tf.errors import OtelTfError

__all__ = ["Api", "Found", "Search", "TooDeep", "Unanswered"]


class Unanswered(OtelTfError):
    """Nobody answers at an address, or not as Jaeger's query service would."""


class TooDeep(OtelTfError):
    """More traces were asked for than this storage gives in one answer."""


@dataclasses.dataclass(frozen=True)
class Search:
    """A search for traces with at least one span that fits.

    Attributes:
        service: Name of the span's service; empty for any, which only memory storage takes.
        begin_ns, end_ns: When the span started.
        most: How many traces to return. Jaeger does not say whether there were more.
        attributes: What the span or its resource has. Over HTTP version 3 cannot ask for any.
    """

    service: str
    begin_ns: int
    end_ns: int
    most: int
    attributes: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Found:
    """A part of an answer.

    Attributes:
        chunk: Its usable spans, whole traces.
        traces: How many traces it was, or more where a trace came in several messages.
    """

    chunk: Chunk
    traces: int


class Api(Protocol):
    """Jaeger's query service. Every method raises `UserError` where it answers with an error."""

    #: Its address, for people.
    name: str
    #: Whether `Search.attributes` is heeded.
    filters: bool
    #: Whether an answer comes as a stream, which may be of any length where the storage is in memory.
    streams: bool
    #: The most traces to ask for at once.
    most: int

    def services(self) -> list[str]:
        """Returns the names of all services, sorted.

        Raises:
            Unanswered: There is no Jaeger there.
        """

    def find(self, search: Search) -> Iterator[Found]:
        """Yields raw traces, as they are stored.

        Raises:
            TooDeep: ``search.most`` is too many for this storage.
        """

    def trace(self, trace_id: int) -> Iterator[Found]:
        """Yields one raw trace, or nothing if it is not there."""
