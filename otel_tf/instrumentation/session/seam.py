"""The seams in TensorFlow 1: each run of a train op is a step; a session made anew is a span.

A session that talks to a cluster is one worker of many (`AsyncSteps`); one in this process alone counts
its own steps (`Steps`).
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.client import session
from tensorflow.python.training import monitored_session, training_util

from otel_tf import semconv
from otel_tf._guard import Guard
from otel_tf.identity import Identity
from otel_tf.instrumentation.around import Instant
from otel_tf.instrumentation.checkpoint import CheckpointSeam
from otel_tf.instrumentation.errors import describe_error
from otel_tf.instrumentation.failure.session import failed_run
from otel_tf.instrumentation.profiler import link
from otel_tf.instrumentation.run_spans import RunSpan, RunSpans
from otel_tf.instrumentation.seams import Seam, Seams
from otel_tf.instrumentation.session.async_steps import AsyncSteps
from otel_tf.instrumentation.session.train_op import Fetches, FetchJudge, find
from otel_tf.instrumentation.steps import Steps
from otel_tf.instrumentation.stream import Stream
from otel_tf.telemetry import AttributeValue, Pipeline

__all__ = ["SessionSeam"]

Call = Callable[..., Any]

_JUDGING = Guard("looking at the fetches of a session")
_RECORDING = Guard("recording the run of a session")
_RECREATING = Guard("recording a session that is made anew")


#: What makes TensorFlow give a session up and make another.
_LOST = monitored_session._PREEMPTION_ERRORS


class _Thread(threading.local):
    #: What the session of this thread was lost by.
    lost: BaseException | None = None


class SessionSeam(Seam):
    """Finds the steps among the runs of this process's sessions."""

    def __init__(
        self,
        pipeline: Pipeline,
        identity: Identity,
        steps: Steps,
        run_spans: RunSpans,
        checkpoints: CheckpointSeam,
    ) -> None:
        self._now = pipeline.now
        self._steps = steps
        self._around = steps.around
        self._async_steps = AsyncSteps(pipeline, identity, steps)
        self._run_spans = run_spans
        self._judge = FetchJudge()
        self._thread = _Thread()
        #: Local sessions whose stream was asked where it stands.
        self._asked: weakref.WeakSet[Any] = weakref.WeakSet()
        #: Sessions that were made anew and have not told yet where training goes on.
        self._recreated: list[RunSpan] = []
        checkpoints.on_restore(self._asked.clear)

    def attach(self, seams: Seams) -> None:
        """Wraps the run of a session, and what makes a monitored session anew.

        Raises:
            DidNotInstrument: This TensorFlow's sessions are not what we know.
        """
        seams.wrap(session.BaseSession, "run", self._run)
        seams.wrap(monitored_session._RecoverableSession, "_create_session", self._create)

    def settle(self) -> None:
        """Writes sessions that never told where training went on."""
        with _RECREATING:
            self._tell(None)

    # -- runs --------------------------------------------------------------------------------------------

    def _run(self, wrapped: Call, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        around = self._around
        fetches = args[0] if args else kwargs.get("fetches")
        judged: Fetches | None = None
        if not around.busy:
            with _JUDGING:
                judged = self._judge.judge(instance.graph, fetches)
        if judged is None or not judged.train:
            try:
                return wrapped(*args, **kwargs)
            except _LOST as error:
                # A run of a hook or a saver: no step, and yet the end of the session.
                self._thread.lost = error
                raise
        stream: Stream | None = None
        if not instance._target:
            with _JUDGING:
                stream = self._stream_of(wrapped, instance)
        outer, begun = self._now(), self._now()
        mark = link.begin_step() if link.enabled() and around.open is None else None
        around.busy = True
        try:
            results = wrapped(*args, **kwargs)
        except BaseException as error:
            end_ns = time.monotonic_ns()
            if isinstance(error, _LOST):
                self._thread.lost = error
            # The way in which TensorFlow 1 says that the data is at its end.
            if not isinstance(error, tf.errors.OutOfRangeError):
                with _RECORDING:
                    if not isinstance(error, _LOST):
                        around.failed = failed_run(error, wrapped, instance.graph, args, kwargs)
                    self._finish(stream, outer, begun, end_ns, None, error, mark)
            elif mark is not None:
                link.drop(mark)
            raise
        finally:
            around.busy = False
        end_ns = time.monotonic_ns()
        with _RECORDING:
            told = judged.global_step
            number = None if told is None else find(told, fetches, results)
            self._finish(stream, outer, begun, end_ns, None if number is None else int(number), None, mark)
        return results

    def _finish(
        self,
        stream: Stream | None,
        outer: Instant,
        begun: Instant,
        end_ns: int,
        global_step: int | None,
        error: BaseException | None,
        mark: Any,
    ) -> None:
        if stream is None:
            self._async_steps.finish(begun, end_ns, global_step, error, mark)
            if self._recreated and global_step is not None:
                self._tell(global_step)
            return
        opened = self._around.open
        if opened is not None:
            opened.ran(begun, end_ns, None, stream)
        else:
            self._steps.finish((outer[0], *begun[1:]), begun, end_ns, stream=stream, error=error, mark=mark)
        if self._recreated and error is None:
            self._tell(stream.number)

    def _stream_of(self, run: Call, instance: Any) -> Stream:
        """Returns where a local session's numbers come from; reads the counter once a session."""
        counter = training_util.get_global_step(instance.graph)
        stream = self._steps.stream_of(counter)
        if counter is not None and instance not in self._asked:
            self._asked.add(instance)
            self._steps.set(stream, int(run(counter)))
        return stream

    # -- sessions made anew ------------------------------------------------------------------------------

    def _create(self, wrapped: Call, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if "_sess" not in vars(instance):
            return wrapped(*args, **kwargs)  # the first one, from its own __init__
        span: RunSpan | None = None
        with _RECREATING:
            self._tell(None)
            span = self._run_spans.begin(semconv.SPAN_SESSION_RECREATE, self._cause())
        try:
            made = wrapped(*args, **kwargs)
        except BaseException as error:
            with _RECREATING:
                if span is not None:
                    self._run_spans.end(span, error)
            raise
        with _RECREATING:
            if span is not None:
                self._run_spans.stop(span)
                self._recreated.append(span)
        return made

    def _cause(self) -> dict[str, AttributeValue | None]:
        lost, self._thread.lost = self._thread.lost, None
        if lost is None:
            return {}
        error = describe_error(lost)
        return {
            semconv.SESSION_CAUSE: error.type,
            semconv.ERROR_ORIGIN_WORKER: error.attributes.get(semconv.ERROR_ORIGIN_WORKER),
        }

    def _tell(self, number: int | None) -> None:
        """Writes the sessions that were made anew, now that it is known where training goes on."""
        spans, self._recreated = self._recreated, []
        for span in spans:
            self._run_spans.end(span, attributes={semconv.STEP_AFTER: number})
