"""Spans of the run itself, beside its steps: `epoch`, `evaluate`, `trace_function`, checkpoints.

All processes of a run write them into one trace, H(run id, "run"). Span ids are random: nobody has to
know them but the span's own children, which are in the same thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from otel_tf import ids, semconv
from otel_tf._guard import Guard
from otel_tf.identity import Identity
from otel_tf.instrumentation.around import Instant
from otel_tf.instrumentation.errors import describe_error, status_only
from otel_tf.instrumentation.steps import Steps
from otel_tf.telemetry import AttributeValue, Layout, Pipeline, Record, SpanError, SpanEvent

__all__ = ["RunSpan", "RunSpans"]

Attributes: TypeAlias = "Mapping[str, AttributeValue | None]"

_NONE: Attributes = {}
_COMMON = (
    semconv.SEQ,
    semconv.MONOTONIC_NS,
    semconv.EPOCH,
    semconv.STEP_BEFORE,
    semconv.STEP_AFTER,
)
#: Further fields by name.
_FIELDS: dict[str, tuple[str, ...]] = {
    semconv.SPAN_TRACE_FUNCTION: (
        semconv.FUNCTION_NAME,
        semconv.FUNCTION_TRACING_COUNT,
        semconv.FUNCTION_SIGNATURE,
    ),
    semconv.SPAN_SESSION_RECREATE: (semconv.SESSION_CAUSE, semconv.ERROR_ORIGIN_WORKER),
    semconv.SPAN_REGION: (semconv.REGION_NAME,),
    semconv.SPAN_TRACE_REGION: (semconv.REGION_NAME, semconv.REGION_SCOPE, semconv.FUNCTION_NAME),
    semconv.SPAN_PROFILE_CAPTURE: (
        semconv.PROFILER_SESSION,
        semconv.PROFILE_REASON,
        semconv.PROFILE_TASKS,
        semconv.PROFILE_SIZE,
    ),
    semconv.SPAN_CHECKPOINT_SAVE: (semconv.CHECKPOINT_PATH,),
    semconv.SPAN_CHECKPOINT_RESTORE: (semconv.CHECKPOINT_PATH,),
}

_BEGINNING = Guard("beginning a span of the run")
_ENDING = Guard("ending a span of the run")


@dataclasses.dataclass(slots=True)
class RunSpan:
    """A span that has begun."""

    name: str
    span_id: int
    parent: int
    begun: Instant
    epoch: int | None
    before: int | None
    attributes: Attributes
    events: tuple[SpanEvent, ...] = ()
    end_mono_ns: int = 0
    ended: bool = False


class RunSpans:
    """Begins and ends them; what begins in a thread while another one is open there is its child."""

    def __init__(self, pipeline: Pipeline, identity: Identity, steps: Steps) -> None:
        self._pipeline = pipeline
        self._steps = steps
        self._around = steps.around
        self._worker = identity.task
        self._layouts: dict[str, Layout] = {}

    def begin(self, name: str, attributes: Attributes = _NONE, *, epoch: int | None = None) -> RunSpan:
        """Begins a span in this thread.

        Args:
            name: Its name.
            attributes: By the names in `semconv`; None leaves one out.
            epoch: Its epoch; default: the one that is going on in this thread.
        """
        around = self._around
        span = RunSpan(
            name,
            ids.random_span_id(),
            around.parent,
            self._pipeline.now(),
            around.epoch if epoch is None else epoch,
            self._steps.at,
            attributes,
        )
        around.parent = span.span_id
        around.told = 0
        return span

    def stop(self, span: RunSpan) -> None:
        """Ends a span whose attributes are not all known yet; `end` is to follow, from any thread."""
        if not span.end_mono_ns:
            span.end_mono_ns = time.monotonic_ns()
            self._around.parent = span.parent

    def end(self, span: RunSpan, error: BaseException | None = None, attributes: Attributes = _NONE) -> None:
        """Ends a span and writes it; once.

        Args:
            span: From `begin`.
            error: What it failed with.
            attributes: Further ones; ``tensorflow.step.before`` and ``.after`` are known without.
        """
        if span.ended:
            return
        span.ended = True
        self.stop(span)
        seq, mono_ns, start_ns = span.begun
        given = {
            semconv.STEP_BEFORE: span.before,
            semconv.STEP_AFTER: self._steps.at,
            **span.attributes,
            **attributes,
            semconv.SEQ: seq,
            semconv.MONOTONIC_NS: mono_ns,
            semconv.EPOCH: span.epoch,
        }
        layout = self._layout(span.name)
        problem = None if error is None else self._problem(error)
        record = Record(
            layout,
            0,
            span.span_id,
            span.parent,
            start_ns,
            start_ns + span.end_mono_ns - mono_ns,
            tuple(given.get(field) for field in layout.fields),
            problem,
            (),
            span.events,
        )
        self._pipeline.record_later(self._make, record)
        if error is not None:
            self._pipeline.hurry()

    def _make(self, record: Record) -> list[Record]:
        # Only now is the run's name sure to be its own: the workers may have had to agree on it.
        return [record._replace(trace_id=ids.trace_id(self._pipeline.identity.run_id, "run"))]

    @contextlib.contextmanager
    def span(
        self, name: str, attributes: Attributes = _NONE, *, epoch: int | None = None
    ) -> Iterator[dict[str, AttributeValue | None]]:
        """Surrounds the program's own code with a span, guarded; yields attributes to be set on it."""
        span = None
        later: dict[str, AttributeValue | None] = {}
        with _BEGINNING:
            span = self.begin(name, attributes, epoch=epoch)
        try:
            yield later
        except BaseException as error:
            with _ENDING:
                if span is not None:
                    self.end(span, error, later)
            raise
        with _ENDING:
            if span is not None:
                self.end(span, attributes=later)

    def _problem(self, error: BaseException) -> SpanError:
        if self._steps.is_told(error):
            return status_only(describe_error(error))
        return self._steps.problem(error)

    def _layout(self, name: str) -> Layout:
        found = self._layouts.get(name)
        if found is None:
            found = self._layouts[name] = self._pipeline.layout(
                name,
                fields=(*_COMMON, *_FIELDS.get(name, ())),
                constants={semconv.WORKER: self._worker},
            )
        return found
