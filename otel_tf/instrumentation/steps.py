"""Numbering the training steps of this process and writing their spans: one core for every way in.

`FunctionCallSeam`, the Keras and session seams and `otel_tf.step` find out where a step begins and ends;
what it is called, which number and which trace it has is decided here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from otel_tf import ids, semconv
from otel_tf.identity import Identity
from otel_tf.instrumentation.errors import describe_error, status_only
from otel_tf.telemetry import AttributeValue, Pipeline, SpanKind

__all__ = ["Begun", "Steps"]


class Begun(NamedTuple):
    """The instant a step began: (seq, monotonic ns, wall ns) for the step and for the worker's part of it."""

    outer: tuple[int, int, int]
    inner: tuple[int, int, int]


@dataclasses.dataclass
class _Surroundings(threading.local):
    """What the loop around the steps of a thread told us."""

    epoch: int | None = None


class Steps:
    """The steps of a synchronous strategy, or of no strategy: `step`, and `train_step` under it.

    The chief writes the root `step`; every worker's `train_step` hangs under the root's id, which all of
    them compute from the run id and the number alone.
    """

    def __init__(self, pipeline: Pipeline, identity: Identity) -> None:
        self._pipeline = pipeline
        self._run_id = identity.run_id
        self._writes_roots = identity.is_chief
        self._incarnation = f"{identity.task}-{ids.random_span_id():016x}"
        self._lock = threading.Lock()
        self._number: int | None = None
        self._local = 0
        self._around = _Surroundings()
        common = (semconv.SEQ, semconv.MONOTONIC_NS, semconv.GLOBAL_STEP)
        self._root = pipeline.layout(
            semconv.SPAN_STEP, kind=SpanKind.INTERNAL, resource=pipeline.resource, fields=common
        )
        self._train_step = pipeline.layout(
            semconv.SPAN_TRAIN_STEP,
            kind=SpanKind.INTERNAL,
            resource=pipeline.resource,
            fields=(
                *common,
                semconv.LOCAL_STEP,
                semconv.FUNCTION_NAME,
                semconv.EPOCH,
                semconv.STEPS_PER_EXECUTION,
            ),
            constants={semconv.WORKER: identity.task},
            remote_parent=not self._writes_roots,
        )

    @property
    def knows_number(self) -> bool:
        """Whether the number of the last step is known, so that the next one's is."""
        return self._number is not None

    def start_from(self, number: int) -> None:
        """Sets the number of the last step applied: training may go on from a checkpoint."""
        with self._lock:
            self._number = number

    @contextlib.contextmanager
    def in_epoch(self, epoch: int) -> Iterator[None]:
        """Marks the steps of this thread as part of an epoch."""
        before, self._around.epoch = self._around.epoch, epoch
        try:
            yield
        finally:
            self._around.epoch = before

    def begin(self) -> Begun:
        """Returns the instant; called where a step may begin."""
        return Begun(self._pipeline.now(), self._pipeline.now())

    def finish(
        self,
        begun: Begun,
        *,
        function: str | None = None,
        count: int = 1,
        not_before_mono_ns: int = 0,
        number: int | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Writes the spans of a step that has ended.

        Args:
            begun: From `begin`.
            function: Name of the function that trained.
            count: Steps in one run of it (Keras's ``steps_per_execution``); the number is the last one's.
            not_before_mono_ns: Monotonic ns before which it did not begin, such as the end of a tracing.
            number: Its number where the loop says it; else it is counted.
            error: What it failed with. A failed step does not count: its number may be given again.
        """
        end_mono_ns = time.monotonic_ns()
        with self._lock:
            self._local += count
            local = self._local
            step = (self._number or 0) + count if number is None else number
            if error is None:
                self._number = step
        # The two readings are a microsecond apart; the second one is the step.
        seq, start_mono_ns, start_ns = begun.inner
        late_ns = not_before_mono_ns - start_mono_ns
        if late_ns > 0:
            start_mono_ns, start_ns = start_mono_ns + late_ns, start_ns + late_ns
        end_ns = start_ns + end_mono_ns - start_mono_ns
        trace_id = ids.trace_id(self._run_id, "step", step)
        # Only the try that counts has the root's own id.
        root_id = ids.span_id(self._run_id, "step", step, "root") if error is None else ids.random_span_id()
        problem = None if error is None else describe_error(error)
        values: tuple[AttributeValue | None, ...] = (
            seq,
            start_mono_ns,
            step,
            local,
            function,
            self._around.epoch,
            count if count != 1 else None,
        )
        self._pipeline.record(
            self._train_step,
            trace_id,
            ids.span_id(self._run_id, self._incarnation, "step", local),
            root_id,
            start_ns,
            end_ns,
            values,
            error=problem,
        )
        if self._writes_roots or error is not None:
            self._pipeline.record(
                self._root,
                trace_id,
                root_id,
                0,
                start_ns,
                end_ns,
                (begun.outer[0], start_mono_ns, step),
                error=problem and status_only(problem),
            )
