"""Records as OpenTelemetry SDK spans.

Where the program has a tracer provider of its own, every record becomes a span of that provider, with
the ids and the resource we chose: its sampler, limits, processors and exporters all see it.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, Span, Tracer, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags

from otel_tf import __version__, semconv
from otel_tf.telemetry._values import clean, clean_text

if TYPE_CHECKING:
    from otel_tf.telemetry._records import Layout, Record
    from otel_tf.telemetry._resource import TaskResource

__all__ = ["SCOPE", "ProviderSpans", "encode", "encode_one", "readable"]

SCOPE = InstrumentationScope(semconv.SCOPE, __version__)

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class _GivenIds(IdGenerator):
    """Hands out the ids of the record in hand; each thread has its own."""

    def __init__(self) -> None:
        self._local = threading.local()

    def give(self, trace_id: int, span_id: int) -> None:
        self._local.ids = trace_id, span_id

    def generate_trace_id(self) -> int:
        trace_id: int = self._local.ids[0]
        return trace_id

    def generate_span_id(self) -> int:
        span_id: int = self._local.ids[1]
        return span_id

    def is_trace_id_random(self) -> bool:
        # A hash: its low 56 bits are as uniform as the flag promises.
        return True


def record_attributes(record: Record) -> dict[str, Any]:
    """Returns all attributes of a record, cleaned; what is None is left out."""
    layout = record.layout
    attributes = {key: clean(value) for key, value in layout.constants.items()}
    for key, value in zip(layout.fields, record.values, strict=True):
        if value is not None:
            attributes[key] = clean(value)
    if record.error is not None:
        attributes[semconv.ERROR_TYPE] = clean_text(record.error.type)
        attributes.update((key, clean(value)) for key, value in record.error.attributes.items())
    return attributes


def _exception_attributes(record: Record) -> dict[str, Any]:
    error = record.error
    assert error is not None
    found = {
        semconv.EXCEPTION_TYPE: clean_text(error.exception_type or ""),
        semconv.EXCEPTION_MESSAGE: clean_text(error.message),
    }
    if error.stacktrace is not None:
        found[semconv.EXCEPTION_STACKTRACE] = clean_text(error.stacktrace)
    return found


def _events(record: Record) -> list[tuple[str, dict[str, Any], int]]:
    """Returns name, attributes and time of each event, the exception last."""
    found = [
        (
            clean_text(event.name),
            {key: clean(value) for key, value in event.attributes.items()},
            event.time_ns or record.end_ns,
        )
        for event in (*record.events, *(record.error.events if record.error is not None else ()))
    ]
    if record.error is not None and record.error.exception_type is not None:
        found.append((semconv.EVENT_EXCEPTION, _exception_attributes(record), record.end_ns))
    return found


def _links(record: Record) -> list[Link]:
    return [
        Link(
            SpanContext(link.trace_id, link.span_id, is_remote=True, trace_flags=_SAMPLED),
            {key: clean(value) for key, value in link.attributes.items()},
        )
        for link in record.links
    ]


def _kind(layout: Layout) -> trace.SpanKind:
    return trace.SpanKind(int(layout.kind) - 1)  # OTLP counts from 1


def sdk_resource(resource: TaskResource) -> Resource:
    """Returns the SDK's form of a resource, made once."""
    found = resource.templates.get("sdk")
    if not isinstance(found, Resource):
        found = Resource(clean(resource.attributes), resource.schema_url)
        resource.templates["sdk"] = found
    return found


def readable(record: Record) -> ReadableSpan:
    """Returns a record as a finished span, without sampler, limits or processors."""
    layout = record.layout
    events = tuple(Event(name, attributes, time_ns) for name, attributes, time_ns in _events(record))
    status = Status(StatusCode.UNSET)
    if record.error is not None:
        status = Status(StatusCode.ERROR, clean_text(record.error.message))
    return ReadableSpan(
        name=layout.name,
        context=SpanContext(record.trace_id, record.span_id, is_remote=False, trace_flags=_SAMPLED),
        parent=_parent(record, _SAMPLED),
        resource=sdk_resource(layout.resource),
        attributes=record_attributes(record),
        events=events,
        links=_links(record),
        kind=_kind(layout),
        status=status,
        start_time=record.start_ns,
        end_time=record.end_ns,
        instrumentation_scope=SCOPE,
    )


def _parent(record: Record, flags: TraceFlags) -> SpanContext | None:
    if not record.parent_id:
        return None
    return SpanContext(record.trace_id, record.parent_id, record.layout.remote_parent, flags)


def encode(spans: Sequence[ReadableSpan]) -> bytes:
    """Returns spans as a serialized ``ExportTraceServiceRequest``, by OpenTelemetry's own encoder."""
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    return bytes(encode_spans(spans).SerializeToString())


def encode_one(span: ReadableSpan) -> bytes:
    """Returns one span as a serialized ``Span``, by OpenTelemetry's own encoder."""
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    return bytes(encode_spans([span]).resource_spans[0].scope_spans[0].spans[0].SerializeToString())


class ProviderSpans:
    """Turns records into ended spans of one SDK tracer provider.

    Uses public API only: our own tracer of the provider is copied, and a copy's ``id_generator`` and
    ``resource`` are set; the provider itself and its other tracers stay as they are.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self.provider = provider
        self._ids = _GivenIds()
        self._tracers: dict[int, tuple[TaskResource, Resource, Tracer]] = {}
        self._decided: dict[int, TraceFlags] = {}

    def _tracer(self, resource: TaskResource) -> Tracer:
        sdk = sdk_resource(resource)
        held = self._tracers.get(id(resource))
        if held is None or held[1] is not sdk:
            ours = self.provider.get_tracer(semconv.SCOPE, __version__)
            assert isinstance(ours, Tracer)
            tracer = copy.copy(ours)
            tracer.id_generator = self._ids
            tracer.resource = sdk
            self._tracers[id(resource)] = held = (resource, sdk, tracer)
        return held[2]

    def span(self, record: Record) -> Span | None:
        """Starts and ends a span; None when the sampler dropped it."""
        layout = record.layout
        tracer = self._tracer(layout.resource)
        attributes = record_attributes(record)
        links = _links(record)
        parent = _parent(record, self._flags(record, tracer, attributes)) or trace.INVALID_SPAN_CONTEXT
        # An empty context below it: this may run in a thread of the program's, with baggage of its own.
        context = trace.set_span_in_context(NonRecordingSpan(parent), Context())
        self._ids.give(record.trace_id, record.span_id)
        span = tracer.start_span(
            layout.name,
            context=context,
            kind=_kind(layout),
            attributes=attributes,
            links=links,
            start_time=record.start_ns,
            record_exception=False,
            set_status_on_exception=False,
        )
        if not isinstance(span, Span):
            return None
        for event in _events(record):
            span.add_event(*event)
        if record.error is not None:
            span.set_status(Status(StatusCode.ERROR, clean_text(record.error.message)))
        span.end(record.end_ns)
        return span

    def _flags(self, record: Record, tracer: Tracer, attributes: Mapping[str, Any]) -> TraceFlags:
        """Returns the trace flags of the record's parent.

        The parent may live in another process, which never tells; but ids are shared, so the sampler's
        answer for a root with this trace id is the answer that the root got there.
        """
        if not record.parent_id:
            return _SAMPLED
        flags = self._decided.get(record.trace_id)
        if flags is None:
            layout = record.layout
            decision = tracer.sampler.should_sample(
                Context(), record.trace_id, layout.name, _kind(layout), attributes
            ).decision
            flags = _SAMPLED if decision is Decision.RECORD_AND_SAMPLE else TraceFlags(TraceFlags.DEFAULT)
            if len(self._decided) >= 4096:
                self._decided.clear()
            self._decided[record.trace_id] = flags
        return flags
