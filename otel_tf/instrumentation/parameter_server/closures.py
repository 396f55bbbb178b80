"""One scheduled closure, from schedule to done, and each of its attempts on a worker."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

from otel_tf import ids, semconv
from otel_tf.instrumentation.around import Around
from otel_tf.instrumentation.errors import status_only
from otel_tf.instrumentation.profiler import link
from otel_tf.instrumentation.stream import Stream
from otel_tf.telemetry import Pipeline, SpanError, SpanKind

__all__ = ["Attempt", "ClosureRecord", "ClosureSpans"]


@dataclasses.dataclass(slots=True)
class ClosureRecord:
    """A closure that the coordinator was asked to run."""

    number: int
    trace_id: int
    span_id: int
    function_name: str
    #: Where its step's number comes from; None where it trains nothing.
    stream: Stream | None
    stamped: bool
    seq: int
    start_mono_ns: int
    start_ns: int
    queued_mono_ns: int
    #: What the loop that scheduled it told: its epoch, its batch, the steps that it takes.
    epoch: int | None = None
    batch: int | None = None
    steps: int = 1
    attempts: int = 0
    queue_time_ns: int = 0
    last: Attempt | None = None
    ended: bool = False

    @property
    def training(self) -> bool:
        """Whether it takes steps."""
        return self.stream is not None


@dataclasses.dataclass(slots=True)
class Attempt:
    """One run of a closure on one worker; times are the coordinator's."""

    closure: ClosureRecord
    number: int
    worker: str
    dispatch_span_id: int
    step_span_id: int
    seq: int
    start_mono_ns: int
    start_ns: int
    version_read: int
    end_ns: int = 0
    global_step: int | None = None
    local_step: int | None = None
    staleness: int | None = None
    lag: int | None = None
    error: SpanError | None = None


class ClosureSpans:
    """Numbers closures, counts the steps they apply, and writes their spans.

    The order in which training closures come back is the always-known estimate of the order in which the
    parameter servers applied them: ``global_step`` is the count after a step came back, its staleness the
    number of steps that came back while it ran.

    Trace ids are the same in every run of this name. Span ids are not: nobody else has to know them, and a
    restarted coordinator's must not be taken for those of the one before.
    """

    def __init__(self, pipeline: Pipeline, run_id: str) -> None:
        self._pipeline = pipeline
        self._run_id = run_id
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._closure = pipeline.layout(
            semconv.SPAN_CLOSURE,
            kind=SpanKind.PRODUCER,
            resource=pipeline.resource,
            fields=(
                semconv.SEQ,
                semconv.MONOTONIC_NS,
                semconv.CLOSURE_ID,
                semconv.FUNCTION_NAME,
                semconv.CLOSURE_ATTEMPTS,
                semconv.CLOSURE_QUEUE_TIME,
                semconv.WORKER,
                semconv.GLOBAL_STEP,
                semconv.STALENESS,
                semconv.STALENESS_SOURCE,
                semconv.EPOCH,
                semconv.BATCH,
                semconv.STEPS_PER_EXECUTION,
                semconv.STEP_STREAM,
            ),
        )
        self._dispatch = pipeline.layout(
            semconv.SPAN_DISPATCH,
            kind=SpanKind.CLIENT,
            resource=pipeline.resource,
            fields=(
                semconv.SEQ,
                semconv.MONOTONIC_NS,
                semconv.CLOSURE_ID,
                semconv.CLOSURE_ATTEMPT,
                semconv.CLOSURE_DUPLICATE,
                semconv.WORKER,
                semconv.GLOBAL_STEP,
            ),
        )

    def scheduled(
        self, function_name: str, *, stream: Stream | None, stamped: bool, around: Around
    ) -> ClosureRecord:
        """Starts a closure's span, in the thread that scheduled it."""
        seq, mono_ns, wall_ns = self._pipeline.now()
        number = next(self._numbers)
        return ClosureRecord(
            number=number,
            trace_id=ids.trace_id(self._run_id, "closure", number),
            span_id=ids.random_span_id(),
            function_name=function_name,
            stream=stream,
            stamped=stamped,
            seq=seq,
            start_mono_ns=mono_ns,
            start_ns=wall_ns,
            queued_mono_ns=mono_ns,
            epoch=None if stream is None else around.epoch,
            batch=None if stream is None else around.batch,
            steps=1 if stream is None else around.count,
        )

    def started(self, closure: ClosureRecord, worker: str) -> Attempt:
        """Starts an attempt, in that worker's coordinator thread."""
        stream = closure.stream
        # Time and count in one: who had come back by the time of this span is who had been counted.
        with self._lock:
            seq, mono_ns, wall_ns = self._pipeline.now()
            version_read = 0 if stream is None else stream.number or 0
        closure.attempts += 1
        closure.queue_time_ns += mono_ns - closure.queued_mono_ns
        attempt = Attempt(
            closure=closure,
            number=closure.attempts,
            worker=worker,
            dispatch_span_id=ids.random_span_id(),
            step_span_id=ids.random_span_id(),
            seq=seq,
            start_mono_ns=mono_ns,
            start_ns=wall_ns,
            version_read=version_read,
        )
        closure.last = attempt
        return attempt

    def succeeded(self, attempt: Attempt) -> None:
        """Counts the step that an attempt applied; called as soon as the worker answered."""
        stream = attempt.closure.stream
        with self._lock:
            attempt.end_ns = attempt.start_ns + time.monotonic_ns() - attempt.start_mono_ns
            if stream is not None:
                before = stream.number or 0
                stream.number = attempt.global_step = before + attempt.closure.steps
                attempt.staleness = before - attempt.version_read

    def failed(self, attempt: Attempt, describe: Callable[[], SpanError]) -> None:
        """Ends an attempt whose worker answered with an error, or not at all.

        Args:
            attempt: The attempt.
            describe: Returns the error, when the attempt's time is taken.
        """
        attempt.end_ns = attempt.start_ns + time.monotonic_ns() - attempt.start_mono_ns
        attempt.error = describe()

    @staticmethod
    def link(mark: Any, attempt: Attempt) -> None:
        """Ends an attempt's event in the coordinator's profile, where one is taken.

        What runs on the coordinator is the dispatch's; the ids are those of the step on the worker, whose
        parent it is.
        """
        if mark is not None:
            link.end_step(
                mark,
                attempt.global_step,
                attempt.closure.trace_id,
                attempt.step_span_id,
                otel_dispatch=f"s-{attempt.dispatch_span_id:016x}",
                otel_worker=attempt.worker.replace(":", "-"),
                otel_closure=attempt.closure.number,
            )

    def write_dispatch(self, attempt: Attempt) -> None:
        """Writes the span of an ended attempt."""
        closure = attempt.closure
        self._pipeline.record(
            self._dispatch,
            closure.trace_id,
            attempt.dispatch_span_id,
            closure.span_id,
            attempt.start_ns,
            attempt.end_ns,
            (
                attempt.seq,
                attempt.start_mono_ns,
                closure.number,
                attempt.number,
                # Closures run at least once: an earlier attempt may have reached the parameter servers.
                attempt.number > 1 or None,
                attempt.worker,
                attempt.global_step,
            ),
            error=attempt.error and status_only(attempt.error),
        )

    def requeued(self, closure: ClosureRecord) -> None:
        """Notes that a closure waits for another attempt."""
        closure.queued_mono_ns = time.monotonic_ns()

    def ended(self, closure: ClosureRecord, error: SpanError | None) -> None:
        """Writes the span of a closure that is done, failed or cancelled; once."""
        if closure.ended:
            return
        closure.ended = True
        last = closure.last
        end_ns = closure.start_ns + time.monotonic_ns() - closure.start_mono_ns
        staleness = last.staleness if last else None
        self._pipeline.record(
            self._closure,
            closure.trace_id,
            closure.span_id,
            0,
            closure.start_ns,
            end_ns,
            (
                closure.seq,
                closure.start_mono_ns,
                closure.number,
                closure.function_name,
                closure.attempts,
                closure.queue_time_ns / 1e9,
                last.worker if last else None,
                last.global_step if last else None,
                staleness,
                None if staleness is None else semconv.SOURCE_COORDINATOR,
                closure.epoch,
                closure.batch,
                closure.steps if closure.steps != 1 else None,
                (closure.stream.index or None) if closure.stream else None,
            ),
            error=error and status_only(error),
        )
