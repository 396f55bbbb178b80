"""The spans of a step, made on the flusher's thread from the few numbers that the step left behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from otel_tf import ids, semconv
from otel_tf.identity import Identity
from otel_tf.instrumentation.around import Instant, Wait
from otel_tf.instrumentation.errors import status_only
from otel_tf.instrumentation.flight_recorder import FlightRecorder, Held
from otel_tf.instrumentation.open_step import PartOfStep
from otel_tf.instrumentation.profiler import link
from otel_tf.instrumentation.watching.notices import Notices
from otel_tf.telemetry import Pipeline, Record, SpanError, SpanKind

__all__ = ["StepFacts", "StepSpans"]


#: Takes a step's number, the instant it began, monotonic ns when it ended, its trace id and the span id of
#: its `train_step`.
Follower = Callable[[int, Instant, int, int, int], object]


class StepFacts(NamedTuple):
    """What a step left behind.

    Attributes:
        number: Its global step.
        local: Steps of this process so far.
        stream: Index of the stream of its number.
        steps: Steps in this run.
        function: Name of what ran.
        epoch: Its epoch.
        batch: Position of the run in the epoch.
        rewound_from: The number before the counter was set back.
        root: The instant the root began.
        root_end_mono_ns: When it ended.
        begun: The instant the worker's part began.
        end_mono_ns: When it ended.
        waits: Waits for data before it and in it.
        error: What it failed with.
        incarnation: The process.
        regions: Regions of eager code in it.
        counts: Whether it was taken; the number of one that was not may be given again.
    """

    number: int
    local: int
    stream: int
    steps: int
    function: str | None
    epoch: int | None
    batch: int | None
    rewound_from: int | None
    root: Instant
    root_end_mono_ns: int
    begun: Instant
    end_mono_ns: int
    waits: tuple[Wait, ...]
    error: SpanError | None
    incarnation: str
    regions: tuple[PartOfStep, ...] = ()
    counts: bool = True


def _time_taken_ns(facts: StepFacts) -> int:
    """Returns how long a step and its waits for data took."""
    before = [wait for wait in facts.waits if wait.begun[1] < facts.begun[1]]
    return facts.end_mono_ns - facts.begun[1] + sum(wait.end_mono_ns - wait.begun[1] for wait in before)


def _named(facts: StepFacts) -> tuple[str | int, ...]:
    """Returns what names the step within the run."""
    return (facts.number, "stream", facts.stream) if facts.stream else (facts.number,)


class StepSpans:
    """Makes `step`, `train_step` under it, and `data_wait` under either."""

    def __init__(self, pipeline: Pipeline, identity: Identity) -> None:
        self._pipeline = pipeline
        self._threshold_ns = pipeline.settings.data_wait_threshold_ms * 1_000_000
        self._writes_roots = identity.is_chief
        self._followers: list[Follower] = []
        self._recorder = FlightRecorder(pipeline.settings.flight_recorder)
        #: What is noticed of watched tensors while steps are written.
        self.notices: Notices | None = None
        self._run_id = ""
        self._name(identity.run_id)
        self._worker = {semconv.WORKER: identity.task}
        common = (semconv.SEQ, semconv.MONOTONIC_NS, semconv.GLOBAL_STEP)
        self._root = pipeline.layout(semconv.SPAN_STEP, fields=(*common, semconv.STEP_STREAM))
        self._train_step = pipeline.layout(
            semconv.SPAN_TRAIN_STEP,
            kind=SpanKind.INTERNAL,
            fields=(
                *common,
                semconv.LOCAL_STEP,
                semconv.FUNCTION_NAME,
                semconv.EPOCH,
                semconv.BATCH,
                semconv.STEPS_PER_EXECUTION,
                semconv.STEP_STREAM,
                semconv.STEP_REWOUND_FROM,
                semconv.STEP_SLOWDOWN,
            ),
            constants=self._worker,
            remote_parent=not self._writes_roots,
        )
        self._wait_before, self._wait_inside = (
            pipeline.layout(
                semconv.SPAN_DATA_WAIT, fields=common, constants=self._worker, remote_parent=remote
            )
            for remote in (not self._writes_roots, False)
        )

        self._region_before, self._region_inside = (
            pipeline.layout(
                semconv.SPAN_REGION,
                fields=(*common, semconv.REGION_NAME),
                constants=self._worker,
                remote_parent=remote,
            )
            for remote in (not self._writes_roots, False)
        )

    def own_id(self, incarnation: str, local: int) -> int:
        """Returns the span id of a `train_step` of this process; the run must have its name."""
        return self._own_id(incarnation, "step", local)

    def follow(self, follower: Follower) -> None:
        """Calls ``follower`` with each step, as its spans are made."""
        self._followers = [*self._followers, follower]

    def _name(self, run_id: str) -> None:
        if run_id != self._run_id:
            self._run_id = run_id
            self._trace_id = ids.trace_ids(run_id, "step")
            self._root_id = ids.span_ids(run_id, "step")
            self._own_id = ids.span_ids(run_id)

    def link(self, mark: Any, facts: StepFacts) -> None:
        """Ends the event of a step in the profile; in the step's own thread."""
        trace_id = span_id = 0
        if self._pipeline.named.is_set():
            run_id = self._pipeline.identity.run_id
            trace_id = ids.trace_id(run_id, "step", *_named(facts))
            span_id = ids.span_id(run_id, facts.incarnation, "step", facts.local)
        link.end_step(mark, facts.number, trace_id, span_id)

    def make(self, facts: StepFacts) -> list[Record]:
        """Returns the spans, the worker's part first."""
        # Only now is it sure to be the run's own: the workers may have had to agree on it.
        self._name(self._pipeline.identity.run_id)
        number, stream, error, waits = facts.number, facts.stream, facts.error, facts.waits
        named = _named(facts)
        trace_id = self._trace_id(*named)
        # Only the try that counts has the root's own id.
        root_id = self._root_id(*named, "root") if facts.counts else ids.random_span_id()
        own_id = self.own_id(facts.incarnation, facts.local)
        for follower in self._followers:
            follower(number, facts.begun, facts.end_mono_ns, trace_id, own_id)
        seq, mono_ns, start_ns = facts.begun
        end_ns = start_ns + facts.end_mono_ns - mono_ns
        self._pipeline.metrics.step_duration.record((facts.end_mono_ns - mono_ns) / 1e9, self._worker)
        slowdown = self._recorder.slowdown(_time_taken_ns(facts))
        values = (
            seq,
            mono_ns,
            number,
            facts.local,
            facts.function,
            facts.epoch,
            facts.batch,
            facts.steps if facts.steps != 1 else None,
            stream or None,
            facts.rewound_from,
            slowdown,
        )
        events = () if self.notices is None else self.notices.of_step(end_ns)
        if slowdown is not None and error is None and self.notices is not None:
            events = events or self.notices.of_all()
        records = [
            Record(self._train_step, trace_id, own_id, root_id, start_ns, end_ns, values, error, (), events)
        ]
        root_seq, root_mono_ns, _ = facts.root
        written, short = self._waits(waits) if waits else ((), ())
        held = Held(facts, short, trace_id, root_id, own_id)
        for step in self._recorder.hold(held, write=slowdown is not None or error is not None):
            for wait in step.waits:
                records.append(self._wait(wait, step.facts, *step[2:]))
        if waits:
            if written and written[0].begun[1] < root_mono_ns:
                root_seq, root_mono_ns = written[0].outer[0], written[0].begun[1]
            for wait in written:
                records.append(self._wait(wait, facts, trace_id, root_id, own_id))
        for region in facts.regions:
            records.append(self._region(region, facts, trace_id, root_id, own_id))
        if self._writes_roots or not facts.counts:
            # All times from one reading of the wall clock, so that what is inside stays inside.
            epoch_ns = start_ns - mono_ns
            root_start_ns, root_end_ns = epoch_ns + root_mono_ns, epoch_ns + facts.root_end_mono_ns
            root_values = (root_seq, root_mono_ns, number, stream or None)
            problem = error and status_only(error)
            records.append(
                Record(self._root, trace_id, root_id, 0, root_start_ns, root_end_ns, root_values, problem, ())
            )
        return records

    def _region(
        self, region: PartOfStep, facts: StepFacts, trace_id: int, root_id: int, own_id: int
    ) -> Record:
        seq, mono_ns, _ = region.begun
        start_ns = facts.begun[2] - facts.begun[1] + mono_ns
        # A step's own part is the time of the function that trains; a region may be around that.
        inside = mono_ns >= facts.begun[1] and region.end_mono_ns <= facts.end_mono_ns
        return Record(
            self._region_inside if inside or region.parent else self._region_before,
            trace_id,
            region.span_id,
            region.parent or (own_id if inside else root_id),
            start_ns,
            start_ns + region.end_mono_ns - mono_ns,
            (seq, mono_ns, facts.number, region.name),
            region.error,
            (),
        )

    def _waits(self, waits: tuple[Wait, ...]) -> tuple[tuple[Wait, ...], tuple[Wait, ...]]:
        """Measures all waits; returns those that are long enough for a span, and the others."""
        long, short = list[Wait](), list[Wait]()
        for wait in waits:
            waited_ns = wait.end_mono_ns - wait.begun[1]
            self._pipeline.metrics.data_wait_duration.record(waited_ns / 1e9, self._worker)
            (long if waited_ns >= self._threshold_ns else short).append(wait)
        return tuple(long), tuple(short)

    def _wait(self, wait: Wait, facts: StepFacts, trace_id: int, root_id: int, own_id: int) -> Record:
        seq, mono_ns, _ = wait.begun
        start_ns = facts.begun[2] - facts.begun[1] + mono_ns
        inside = mono_ns >= facts.begun[1]
        return Record(
            self._wait_inside if inside else self._wait_before,
            trace_id,
            ids.random_span_id(),
            own_id if inside else root_id,
            start_ns,
            start_ns + wait.end_mono_ns - mono_ns,
            (seq, mono_ns, facts.number),
            None,
            (),
        )
