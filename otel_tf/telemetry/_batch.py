"""Batches: what one line of the spool and one request of the network hold, shaped from records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from otel_tf._guard import Guard
from otel_tf.telemetry import _json, _sdk

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

    from otel_tf.telemetry._records import Record
    from otel_tf.telemetry._resource import TaskResource
    from otel_tf.telemetry._spool import Place

__all__ = ["MAX_BYTES", "Batch", "ProviderShaper", "Shaper", "merged"]

#: Bytes of a line, and of the lines of a request: gRPC servers take 4 MiB unless told otherwise.
MAX_BYTES = 3 << 20


_guard = Guard("handing a span to the tracer provider")


class Batch:
    """Spans that travel together.

    Attributes:
        count: Number of spans in the spool's line.
        line: The OTLP JSON line; given up (``b""``) once it is spooled.
        place: Where the line lies in the spool, or None.
        sampled: Number of spans for the network.
        size: Bytes of the line; the request has fewer.
    """

    __slots__ = ("_make_payload", "_make_spans", "count", "line", "place", "sampled", "size")

    def __init__(
        self,
        count: int,
        sampled: int,
        line: bytes,
        make_payload: Callable[[], bytes],
        make_spans: Callable[[], Sequence[ReadableSpan]],
    ) -> None:
        self.count = count
        self.sampled = sampled
        self.line = line
        self.size = len(line)
        self.place: Place | None = None
        self._make_payload = make_payload
        self._make_spans = make_spans

    def payload(self) -> bytes:
        """Returns the batch as a serialized ``ExportTraceServiceRequest``."""
        return self._make_payload()

    def spans(self) -> Sequence[ReadableSpan]:
        """Returns the batch as SDK spans, for exporters that take nothing else."""
        return self._make_spans()


def merged(batches: Sequence[Batch]) -> Batch:
    """Returns several batches as one, for one request."""
    if len(batches) == 1:
        return batches[0]
    return Batch(
        sum(batch.count for batch in batches),
        sum(batch.sampled for batch in batches),
        b"",
        # A message whose one field repeats: the concatenation is the merged message.
        lambda: b"".join(batch.payload() for batch in batches),
        lambda: [span for batch in batches for span in batch.spans()],
    )


class Shaper(Protocol):
    """Makes batches from records."""

    def shape(self, records: Sequence[Record]) -> list[Batch]:
        """Returns batches of the records that the sampler keeps."""


class ProviderShaper:
    """Shapes records by way of an SDK tracer provider: the program's, or a private one for its rules."""

    def __init__(self, provider: TracerProvider) -> None:
        self.provider = provider
        self._spans = _sdk.ProviderSpans(provider)

    def shape(self, records: Sequence[Record]) -> list[Batch]:
        """Starts and ends the records' spans at the provider."""
        groups: dict[int, tuple[TaskResource, list[str]]] = {}
        sampled: list[ReadableSpan] = []
        count = 0
        for record in records:
            span = None
            # One by one: the spans before a broken record are the provider's already.
            with _guard:
                span = self._spans.span(record)
            if span is None:
                continue
            count += 1
            resource = record.layout.resource
            groups.setdefault(id(resource), (resource, []))[1].append(_json.span(span))
            if span.get_span_context().trace_flags.sampled:
                sampled.append(span)
        if not count:
            return []
        line = _json.line(
            (_json.resource_head(resource), resource.schema_url, spans) for resource, spans in groups.values()
        )
        return [Batch(count, len(sampled), line, lambda: _sdk.encode(sampled), lambda: sampled)]
