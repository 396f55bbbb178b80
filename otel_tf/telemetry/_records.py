"""What the seams hand over: layouts, errors, links. No OpenTelemetry import, so seams stay cheap."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from otel_tf.telemetry._resource import TaskResource

__all__ = ["AttributeValue", "Layout", "Record", "SpanError", "SpanEvent", "SpanKind", "SpanLink"]

AttributeValue: TypeAlias = "str | bool | int | float | Sequence[str] | Sequence[int] | Sequence[float]"


class SpanKind(enum.IntEnum):
    """OTLP's span kinds (OTLP counts from 1 where the SDK's enumeration counts from 0)."""

    INTERNAL = 1
    SERVER = 2
    CLIENT = 3
    PRODUCER = 4
    CONSUMER = 5


class SpanLink(NamedTuple):
    """A link to another span, with OpenTelemetry's integer ids."""

    trace_id: int
    span_id: int
    attributes: Mapping[str, AttributeValue] = {}


class SpanEvent(NamedTuple):
    """Something that happened within a span; the exception that ended it is its `SpanError`.

    Attributes:
        name: Its name, of low cardinality.
        time_ns: When, ns since the epoch on the layout's clock domain.
        attributes: What is to be said of it.
    """

    name: str
    time_ns: int
    attributes: Mapping[str, AttributeValue] = {}


@dataclasses.dataclass(frozen=True)
class SpanError:
    """The failure that ended a span: status ERROR, ``error.type`` and at most one exception event.

    Attributes:
        type: ``error.type``, of low cardinality: TensorFlow's code, such as ``RESOURCE_EXHAUSTED``.
        message: The message, for the status and the event.
        exception_type: Qualified name of the exception class; None leaves the event out, for a span that
            encloses the one on which the exception is recorded.
        stacktrace: The formatted traceback, or None.
        attributes: Further attributes of the span, such as the error's origin.
        events: Further events of the span; time 0 is the span's end.
    """

    type: str
    message: str
    exception_type: str | None
    stacktrace: str | None = None
    attributes: Mapping[str, AttributeValue] = dataclasses.field(default_factory=dict)
    events: tuple[SpanEvent, ...] = ()


class Layout:
    """One kind of span from one place, described once so that a record is only its values.

    Made by `Pipeline.layout`, compared by identity.
    """

    __slots__ = ("constants", "fields", "kind", "name", "remote_parent", "resource", "templates")

    def __init__(
        self,
        name: str,
        kind: SpanKind,
        resource: TaskResource,
        fields: tuple[str, ...],
        constants: Mapping[str, AttributeValue],
        remote_parent: bool,
    ) -> None:
        self.name = name
        self.kind = kind
        self.resource = resource
        self.fields = fields
        self.constants = dict(constants)
        self.remote_parent = remote_parent
        #: What the encoders prepared for this layout, by encoder.
        self.templates: dict[str, object] = {}


class Record(NamedTuple):
    """One finished span. Times are ns since the epoch on the layout's clock domain."""

    layout: Layout
    trace_id: int
    span_id: int
    parent_id: int
    start_ns: int
    end_ns: int
    values: tuple[AttributeValue | None, ...]
    error: SpanError | None
    links: Sequence[SpanLink]
    events: Sequence[SpanEvent] = ()
