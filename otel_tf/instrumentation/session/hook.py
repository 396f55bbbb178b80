"""A `SessionRunHook` for those who would rather pass one than have sessions wrapped.

It tells the same core the same things as the seam, with one exception: TensorFlow calls no hook for a run
that fails, so the failing step has no span. Where sessions are wrapped as well, it does nothing.
"""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf
from tensorflow.python.training import training_util

from otel_tf import semconv
from otel_tf._guard import Guard
from otel_tf.instrumentation import attach
from otel_tf.instrumentation.around import Instant
from otel_tf.instrumentation.core import Core
from otel_tf.instrumentation.profiler import link
from otel_tf.instrumentation.run_spans import RunSpan
from otel_tf.instrumentation.session.async_steps import AsyncSteps
from otel_tf.instrumentation.session.train_op import FetchJudge

__all__ = ["StepHook"]

_HOOK = Guard("the session hook")


class StepHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Records the runs of a session's train op; fetches the global step with each, as all such hooks do."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._judge = FetchJudge()
        self._async_steps: AsyncSteps | None = None
        self._counter: Any = None
        self._local = True
        self._begun: tuple[Instant, Instant] | None = None
        self._mark: Any = None
        self._sessions = 0
        self._recreated: RunSpan | None = None

    @property
    def _core(self) -> Core | None:
        """What to tell; None where sessions are wrapped, and tell it themselves."""
        handle = attach.attached() or attach.recording(**self._settings)
        return None if handle.sees_loops else handle.core

    @_HOOK
    def begin(self) -> None:
        """Makes the read of the counter, while the graph can still be added to."""
        self._counter = training_util._get_or_create_global_step_read()

    @_HOOK
    def after_create_session(self, session: Any, coord: Any) -> None:
        """Notes a session that was made anew: the time since the run that was the last one's end."""
        self._local = not session._target
        self._sessions += 1
        core = self._core
        if core is None:
            return
        if self._sessions > 1:
            span = core.run_spans.begin(semconv.SPAN_SESSION_RECREATE)
            if self._begun is not None:
                span.begun = self._begun[1]
            core.run_spans.stop(span)
            self._recreated = span
        if self._local and self._counter is not None:
            core.steps.set(core.steps.stream_of(None), int(session.run(self._counter)))
        self._begun = None

    def before_run(self, run_context: Any) -> Any:
        """Begins a step where the run trains."""
        with _HOOK:
            core = self._core
            if core is None:
                return None
            self._begun = self._mark = None
            graph = run_context.session.graph
            if self._judge.judge(graph, run_context.original_args.fetches).train:
                self._begun = core.pipeline.now(), core.pipeline.now()
                if link.enabled():
                    self._mark = link.begin_step()
                if self._counter is not None:
                    return tf.compat.v1.train.SessionRunArgs(self._counter)
        return None

    @_HOOK
    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Ends it."""
        end_ns = time.monotonic_ns()
        core, begun, self._begun = self._core, self._begun, None
        mark, self._mark = self._mark, None
        if core is None or begun is None:
            return
        told = None if run_values.results is None else int(run_values.results)
        if self._local:
            core.steps.finish((begun[0][0], *begun[1][1:]), begun[1], end_ns, mark=mark)
            told = core.steps.at
        else:
            if self._async_steps is None:
                self._async_steps = AsyncSteps(core.pipeline, core.identity, core.steps)
            self._async_steps.finish(begun[1], end_ns, told, mark=mark)
        if self._recreated is not None:
            core.run_spans.end(self._recreated, attributes={semconv.STEP_AFTER: told})
            self._recreated = None
