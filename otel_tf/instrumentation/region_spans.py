"""The spans of regions: `trace_region` where a graph is built, `region` around eager code."""

from __future__ import annotations

import contextlib
import time
from types import TracebackType
from typing import Any

from tensorflow.python.framework import ops

from otel_tf import ids, semconv
from otel_tf._guard import Guard
from otel_tf.instrumentation.core import Core
from otel_tf.instrumentation.errors import describe_error, status_only
from otel_tf.instrumentation.open_step import OpenStep, PartOfStep
from otel_tf.instrumentation.profiler import link
from otel_tf.instrumentation.run_spans import RunSpan

__all__ = ["enter", "enter_scope"]

_BEGINNING = Guard("beginning a region")
_ENDING = Guard("ending a region")

#: Regions of one step that are kept; a loop without end in it would gather them for ever.
_MOST_IN_STEP = 1_000


def enter_scope(stack: contextlib.ExitStack, core: Core, name: str, scope: str) -> None:
    """Records that a region is built into the graph that is the default one; until the stack is closed."""
    with _BEGINNING:
        attributes = {
            semconv.REGION_NAME: name,
            semconv.REGION_SCOPE: scope,
            semconv.FUNCTION_NAME: getattr(ops.get_default_graph(), "name", None),
        }
        span = core.run_spans.begin(semconv.SPAN_TRACE_REGION, attributes)
        stack.push(_OfRun(core, span, None).end)


def enter(stack: contextlib.ExitStack, core: Core, name: str) -> None:
    """Records a region of eager code; until the stack is closed."""
    with _BEGINNING:
        mark = link.begin_region(name) if link.enabled() else None
        opened = core.steps.around.open
        if opened is None:
            span = core.run_spans.begin(semconv.SPAN_REGION, {semconv.REGION_NAME: name})
            stack.push(_OfRun(core, span, mark).end)
        else:
            stack.push(_OfStep(core, opened, name, mark).end)


class _OfRun:
    """Ends a region outside of steps."""

    def __init__(self, core: Core, span: RunSpan, mark: Any) -> None:
        self._core = core
        self._span = span
        self._mark = mark

    def end(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it; called as ``__exit__`` is."""
        with _ENDING:
            if self._mark is not None:
                pipeline = self._core.pipeline
                trace_id = ids.trace_id(pipeline.identity.run_id, "run") if pipeline.named.is_set() else 0
                link.end_region(self._mark, trace_id, self._span.span_id)
            self._core.run_spans.end(self._span, error)


class _OfStep:
    """A region within a step that a loop has declared: it is written with the step, whose ids come last."""

    def __init__(self, core: Core, opened: OpenStep, name: str, mark: Any) -> None:
        self._opened = opened
        self._name = name
        self._mark = mark
        self._span_id = ids.random_span_id()
        #: The region around it, or 0.
        self._parent = opened.region
        opened.region = self._span_id
        self._begun = core.pipeline.now()

    def end(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it; called as ``__exit__`` is."""
        with _ENDING:
            opened = self._opened
            opened.region = self._parent
            if self._mark is not None:
                link.end_region(self._mark, 0, self._span_id)
            if len(opened.regions) < _MOST_IN_STEP:
                # The event is the step's: it sees the error too.
                problem = None if error is None else status_only(describe_error(error))
                opened.regions.append(
                    PartOfStep(
                        self._begun, time.monotonic_ns(), self._span_id, self._parent, self._name, problem
                    )
                )
