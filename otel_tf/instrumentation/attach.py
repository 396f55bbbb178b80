"""`instrument` and `uninstrument`: all seams of this process, attached once and undone as one."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, SupportsIndex

from otel_tf._guard import Guard
from otel_tf.diagnostics.summary import TensorSummary
from otel_tf.instrumentation.checkpoint import CheckpointSeam
from otel_tf.instrumentation.core import Core
from otel_tf.instrumentation.data_wait import DataWaitSeam
from otel_tf.instrumentation.declared import DeclaredStep
from otel_tf.instrumentation.function_call import FunctionCallSeam
from otel_tf.instrumentation.keras.seam import KerasSeam
from otel_tf.instrumentation.keras.unsupported import say_at_attach
from otel_tf.instrumentation.logs import LogSeam
from otel_tf.instrumentation.multi_worker.collectives import CollectiveSeam
from otel_tf.instrumentation.multi_worker.workers import WorkersSeam
from otel_tf.instrumentation.parameter_server.coordinator import CoordinatorSeam
from otel_tf.instrumentation.profiler.capture import CaptureSeam
from otel_tf.instrumentation.seams import Seam, Seams
from otel_tf.instrumentation.session.seam import SessionSeam
from otel_tf.instrumentation.summaries import SummarySeam
from otel_tf.instrumentation.tracing import TracingSeam

__all__ = ["Handle", "attached", "instrument", "recording", "step", "uninstrument", "watch", "watched"]

_ATTACHING = Guard("looking at the strategy")
_WATCHING = Guard("otel_tf.watch")
_lock = threading.Lock()
#: "handle" while attached.
_attached: dict[str, Handle] = {}


class Handle:
    """What `instrument` returns: the way to flush and to undo. A context manager that undoes on exit."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._pipeline = core.pipeline
        self._seams = Seams()
        self._seams_attached: Sequence[Seam] = ()
        self._forget_exit = core.pipeline.before_exit(self._settle)

    @property
    def run_id(self) -> str:
        """Name of the run.

        A worker that is to learn it from the chief says a name of its own until its first spans are flushed.
        """
        return self._pipeline.identity.run_id

    @property
    def run_dir(self) -> Path:
        """Folder of the run's spool."""
        return self._pipeline.run_dir

    def step(self, number: SupportsIndex | None = None) -> AbstractContextManager[None]:
        """Declares a step; see `otel_tf.step`."""
        return DeclaredStep(self.core.steps, number) if self._pipeline.enabled else contextlib.nullcontext()

    @property
    def sees_loops(self) -> bool:
        """Whether TensorFlow's and Keras's own functions are wrapped, so that nobody else has to tell."""
        return bool(self._seams_attached)

    def attach(self) -> None:
        """Wraps TensorFlow's functions; a second call does nothing.

        Raises:
            DidNotInstrument: The installed TensorFlow is not one we know; nothing is wrapped then.
        """
        if self._seams_attached or not self._pipeline.enabled:
            return
        seams = _seams(self.core)
        try:
            for seam in seams:
                seam.attach(self._seams)
        except BaseException:
            self._seams.undo()
            raise
        self._seams_attached = seams

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Fetches what workers still hold, writes the spool and offers the rest to the network.

        Args:
            timeout_s: Seconds to wait at most.

        Returns:
            Whether all of it was done in time.
        """
        until = time.monotonic() + timeout_s
        settled = self._settle(timeout_s)
        return self._pipeline.flush(max(until - time.monotonic(), 0.0)) and settled

    def uninstrument(self) -> None:
        """Puts every patched object back as it was and flushes. A second call does nothing."""
        with _lock:
            if _attached.pop("handle", None) is not self:
                return
            self._forget_exit()
            timeout_s = self._pipeline.settings.exit_timeout_ms / 1000
            self._settle(timeout_s)
            self._seams.undo()
            for seam in self._seams_attached:
                seam.detach()
            self._seams_attached = ()
            self._pipeline.shutdown(timeout_s)

    def _settle(self, timeout_s: float) -> bool:
        """Settles on the pipeline's thread: a worker that hangs must not hang its caller.

        (A thread of its own could not be started at exit, which Python forbids since 3.12.)
        """
        done = threading.Event()

        def once() -> None:
            if not done.is_set():
                try:
                    for seam in self._seams_attached:
                        seam.settle()
                finally:
                    done.set()

        if not self._seams_attached:
            return True
        cancel = self._pipeline.every(0.0, once)
        try:
            return done.wait(timeout_s)
        finally:
            cancel()

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.uninstrument()


def instrument(strategy: Any = None, *, tracer_provider: Any = None, **settings: Any) -> Handle:
    """Turns the training steps of this process, and of the workers it coordinates, into spans.

    Call it once, at any time before the first step; a second call returns the first one's handle.

    Args:
        strategy: The `tf.distribute.Strategy` that trains; named on the spans. Default: whatever runs.
        tracer_provider: An SDK ``TracerProvider`` to use; default: the global one if it is set, else one
            of our own, configured by the ``OTEL_*`` variables.
        **settings: Any field of `otel_tf.config.Settings`; wins over its variable.

    Raises:
        UserError: A setting that does not exist, or a run id that cannot name a folder.
        DidNotInstrument: The installed TensorFlow is not one we know.
    """
    with _ATTACHING:
        say_at_attach(strategy)
    with _lock:
        handle = _attached.get("handle")
        if handle is not None:
            handle.attach()
            return handle
        handle = Handle(Core.start(strategy, tracer_provider, settings, agrees=True))
        try:
            handle.attach()
        except BaseException:
            handle.core.pipeline.shutdown(0.0)
            raise
        _attached["handle"] = handle
        return handle


def recording(**settings: Any) -> Handle:
    """Returns the handle of this process; starts recording, with nothing wrapped, where there is none.

    For callbacks and hooks, which are told by the program what happens.

    Args:
        **settings: As for `instrument`; without effect where this process records already.

    Raises:
        UserError: A setting that does not exist, or a run id that cannot name a folder.
    """
    with _lock:
        handle = _attached.get("handle")
        if handle is None:
            handle = _attached["handle"] = Handle(Core.start(None, None, settings, agrees=False))
        return handle


def _seams(core: Core) -> list[Seam]:
    """Returns every seam, in the order of attaching."""
    pipeline, settings, identity = core.pipeline, core.settings, core.identity
    steps, run_spans = core.steps, core.run_spans
    checkpoints = CheckpointSeam(steps, run_spans)
    summaries = [SummarySeam(pipeline, identity, steps)] if settings.tf_summaries else []
    return [
        FunctionCallSeam(pipeline, steps),
        TracingSeam(pipeline, steps, run_spans),
        DataWaitSeam(pipeline, steps),
        checkpoints,
        KerasSeam(steps, run_spans, checkpoints),
        SessionSeam(pipeline, identity, steps, run_spans, checkpoints),
        CoordinatorSeam(pipeline, settings, identity, steps),
        CollectiveSeam(pipeline, settings, identity, steps.spans),
        WorkersSeam(pipeline, settings, identity),
        LogSeam(pipeline, settings, identity, steps),
        CaptureSeam(pipeline, settings, identity, steps, core.run_spans),
        *summaries,
    ]


def attached() -> Handle | None:
    """Returns the handle of this process, while it is instrumented."""
    return _attached.get("handle")


def step(number: SupportsIndex | None = None) -> AbstractContextManager[None]:
    """Declares a step; does nothing where `instrument` was not called."""
    handle = _attached.get("handle")
    return contextlib.nullcontext() if handle is None else handle.step(number)


def watch(name: str, tensor: Any, *, histogram: bool, keep: int) -> Any:
    """Watches a tensor; see `otel_tf.watch`."""
    handle = _attached.get("handle")
    if handle is not None and handle.core.pipeline.enabled:
        with _WATCHING:
            return handle.core.steps.watches.watch(name, tensor, histogram=histogram, keep=keep)
    return tensor


def watched(timeout_s: float) -> dict[str, list[TensorSummary]]:
    """Returns what is watched; see `otel_tf.watched`."""
    handle = _attached.get("handle")
    found: dict[str, list[TensorSummary]] = {}
    if handle is not None:
        with _WATCHING:
            steps = handle.core.steps
            everything = steps.watches.everywhere(timeout_s)
            steps.notices.measure(everything)
            for kept in everything:
                found.setdefault(kept.name, []).extend(kept.summaries)
    return found


def uninstrument() -> None:
    """Undoes `instrument`; does nothing where it was not called."""
    handle = _attached.get("handle")
    if handle is not None:
        handle.uninstrument()
