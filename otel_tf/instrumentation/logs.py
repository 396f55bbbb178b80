"""Log records with the step they belong to: the seam into Python's `logging`; captured stderr's run."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from otel_tf import ids
from otel_tf.config import Settings
from otel_tf.identity import Identity
from otel_tf.instrumentation.seams import Seam, Seams
from otel_tf.instrumentation.steps import Steps
from otel_tf.logs.capture import LogCapture, StepNow
from otel_tf.telemetry import Pipeline

__all__ = ["LogSeam", "step_now"]

_ASK_S = 0.2
_FORWARD_S = 1.0


class LogSeam(Seam):
    """Takes log records while attached."""

    def __init__(self, pipeline: Pipeline, settings: Settings, identity: Identity, steps: Steps) -> None:
        self._pipeline = pipeline
        self._identity = identity
        self._capture = LogCapture(
            pipeline.log,
            pipeline.now,
            identity.task,
            functools.partial(step_now, steps, pipeline),
            prefix=settings.log_prefix,
        )
        self._wanted = settings.capture_logs
        self._forward: Callable[[], None] | None = None
        self._undos: list[Callable[[], None]] = []

    def attach(self, seams: Seams) -> None:
        """Begins to take records; tells the reader of stderr, if there is one, where its lines belong."""
        if self._wanted and self._pipeline.logs.wanted:
            self._capture.attach()
        self._name_stderr()

    def detach(self) -> None:
        """Ends it. Stderr stays captured: C++ goes on writing there."""
        self._capture.detach()
        for undo in self._undos:
            undo()
        self._undos = []

    def settle(self) -> None:
        """Sends what is left of stderr."""
        if self._forward is not None:
            self._forward()

    def _name_stderr(self) -> None:
        from otel_tf.logs.native import captured

        if captured() is None:
            return
        if self._pipeline.named.is_set():
            self._tell()
            return

        def once_named() -> None:
            if self._pipeline.named.is_set():
                cancel()
                self._tell()

        cancel = self._pipeline.every(_ASK_S, once_named)

    def _tell(self) -> None:
        from otel_tf.logs.native import captured, stem_of

        capture = captured()
        if capture is None:
            return
        pipeline = self._pipeline
        folder, stem = pipeline.run_dir, stem_of(pipeline.identity)
        capture.name(folder, stem, pipeline.identity.task, pipeline.resource.as_json())
        if pipeline.logs.sends:
            from otel_tf.logs.forward import Forwarder

            forward = Forwarder(lambda: _newest(folder, stem), pipeline.logs.send)

            def synchronised() -> None:
                capture.sync()
                forward()

            self._forward = synchronised
            self._undos = [pipeline.every(_FORWARD_S, forward)]


def _newest(folder: Path, stem: str) -> Path | None:
    """Returns the reader's file; of several, an earlier process had the same number."""
    found = [*folder.glob(f"{stem}.stderr.logs.jsonl"), *folder.glob(f"{stem}-*.stderr.logs.jsonl")]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def step_now(steps: Steps, pipeline: Pipeline) -> StepNow:
    """Returns the step that the calling thread is in, else the only one that is in flight in this process.

    Its ids are those that its `train_step` will have. Between two steps it is the number of the last one,
    without ids; of a step whose number only its counter can tell, nothing. A thread that runs closures on a
    worker is in that `dispatch`, and still when it says why that has failed.
    """
    running, attempt = steps.running, steps.around.attempt
    if attempt is not None:
        return StepNow(attempt.global_step, lambda: (attempt.closure.trace_id, attempt.dispatch_span_id))
    current: Any = steps.around.open or running.get(threading.get_ident())
    if current is None:
        if len(running) != 1:
            return StepNow(steps.at)
        try:
            (current,) = running.values()
        except ValueError:  # it has ended meanwhile
            return StepNow(steps.at)
    stream, count = current.stream, current.count
    if stream is None:
        stream = steps.only_stream()
    given = getattr(current, "number", None)
    if stream is None or count is None:
        return StepNow(given)
    number = (stream.number or 0) + count if given is None else given
    return StepNow(
        number,
        functools.partial(_ids, pipeline, number, stream.index, steps.incarnation, steps.local + count),
    )


def _ids(pipeline: Pipeline, number: int, stream: int, incarnation: str, local: int) -> tuple[int, int]:
    """Returns a step's trace id and the span id of its `train_step`, as `StepSpans` makes them."""
    run_id = pipeline.identity.run_id
    named = (number,) if not stream else (number, "stream", stream)
    return ids.trace_id(run_id, "step", *named), ids.span_id(run_id, incarnation, "step", local)
