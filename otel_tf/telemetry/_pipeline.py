"""The pipeline: from a step's record to the spool and the network."""

from __future__ import annotations

import atexit
import collections
import functools
import json
import logging
import multiprocessing.util
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from otel_tf._guard import Guard
from otel_tf.telemetry import _clock
from otel_tf.telemetry._drain import Drain
from otel_tf.telemetry._environment import positive
from otel_tf.telemetry._log_records import LogRecord
from otel_tf.telemetry._logs import Logs
from otel_tf.telemetry._meters import Meters
from otel_tf.telemetry._metrics import Instruments, instruments
from otel_tf.telemetry._network import Limits, Network
from otel_tf.telemetry._records import AttributeValue, Layout, Record, SpanError, SpanKind, SpanLink
from otel_tf.telemetry._resource import TaskResource, own_attributes, task_attributes
from otel_tf.telemetry._spool import CLOCKS_SUFFIX, Spool
from otel_tf.telemetry._ticker import Ticker

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from otel_tf.config import Settings
    from otel_tf.identity import Identity

__all__ = ["Pipeline", "start"]

_logger = logging.getLogger("otel_tf")

#: Records that may wait for the flusher (some 100 MB); beyond it the newest are dropped and counted.
_MAX_WAITING = 200_000
#: Spans of one spool line and one request; about 1 MB, a quarter of what gRPC servers take.
_MAX_BATCH = 2_000
_CLOCKS_INTERVAL_S = 10.0
#: Clock snapshots that wait for the run's name; an hour and more.
_MAX_SNAPSHOTS = 500

#: Makes another task's attributes from this process's own.
_OfOwn: TypeAlias = Callable[[Mapping[str, object]], Mapping[str, object]]

#: What `Pipeline.record_later` is given.
Facts = TypeVar("Facts")

_drain_guard = Guard("the telemetry pipeline")
_exit_guard = Guard("the telemetry pipeline at exit")


class Pipeline:
    """Takes finished spans from the seams; made by `start`.

    Attributes:
        enabled: False where ``OTEL_SDK_DISABLED=true``: everything may be called and does nothing.
        identity: Who this process is.
        resource: This process's own resource, for `layout`.
        run_dir: The run directory.
        logs: Takes log records.
        named: Set once the run's name is known; until then spans wait in memory, and `identity` and
            `run_dir` are provisional.
    """

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        tracer_provider: TracerProvider | None = None,
        *,
        enabled: bool = True,
        provisional: bool = False,
    ) -> None:
        self.enabled = enabled
        self.settings = settings
        self.identity = identity
        # A program may change its working directory before the run's name is known.
        self._folder = (settings.run_dir or Path("otel-tf-runs")).absolute()
        self.run_dir = self._run_dir()
        self.named = threading.Event()
        if not provisional:
            self.named.set()
        self._naming = threading.Lock()
        self._provider_resource: Mapping[str, object] | None = None
        self._snapshots: collections.deque[_clock.Snapshot] = collections.deque(maxlen=_MAX_SNAPSHOTS)
        self._closed = self._running = self._forked = False
        max_batch = positive("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", _MAX_BATCH)
        self._spool = Spool(self.run_dir, identity.task.replace(":", "-")) if settings.spool else None
        self.resource = TaskResource(own_attributes(identity) if enabled else {})
        self._exit_callbacks: list[Callable[[float], object]] = []
        self._task_resources: list[tuple[TaskResource, _OfOwn]] = []
        limits = Limits.in_force(max_batch)
        self._network = Network(tracer_provider, spool=self._spool, limits=limits, adopt=self._adopt)
        self.logs = Logs(self.resource, self._spool, limits)
        self._meters = Meters(self.resource)
        self._drain = Drain(self._network, self._spool, max_batch)
        self._queue = self._drain.queue
        self._append = self._queue.append
        self._flusher = Ticker("otel-tf flusher")
        # Apart from the flusher: a callback may wait for a worker that is gone.
        self._callbacks = Ticker("otel-tf callbacks")

    # -- for the seams --------------------------------------------------------------

    def now(self) -> tuple[int, int, int]:
        """Returns (seq, mono_ns, wall_ns) of this instant, taken under one lock.

        ``seq`` grows strictly from 1 in a process, and never disagrees with the order of ``mono_ns``.
        A span's end is its start's wall time plus the monotonic time between: a step of the wall clock
        must not make a duration negative.
        """
        return _clock.now()

    def layout(
        self,
        name: str,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        resource: TaskResource | None = None,
        fields: tuple[str, ...] = (),
        constants: Mapping[str, AttributeValue] | None = None,
        remote_parent: bool = False,
    ) -> Layout:
        """Describes one kind of span from one place, once, so that a record is only its values.

        Args:
            name: The span's name, of low cardinality.
            kind: OTLP's span kind.
            resource: Whose span it is; default this process's own.
            fields: Names of the attributes whose values come with each record, in their order.
            constants: Attributes that are the same for every record.
            remote_parent: Whether the parent span lives in another process.
        """
        return Layout(name, SpanKind(kind), resource or self.resource, fields, constants or {}, remote_parent)

    def record(
        self,
        layout: Layout,
        trace_id: int,
        span_id: int,
        parent_id: int,
        start_ns: int,
        end_ns: int,
        values: tuple[AttributeValue | None, ...],
        *,
        error: SpanError | None = None,
        links: Sequence[SpanLink] = (),
    ) -> None:
        """Takes one finished span; thread-safe, about 1 µs, never raises, never blocks.

        Args:
            layout: From `layout`.
            trace_id: 128 bits.
            span_id: 64 bits.
            parent_id: 64 bits; 0 for a root.
            start_ns: Start, ns since the epoch by the wall clock of the layout's clock domain.
            end_ns: End, likewise; ``start_ns`` plus a monotonic duration.
            values: One value for each of the layout's fields; None leaves the attribute out.
            error: The failure that ended the span.
            links: Links to other spans. Jaeger takes a root's link for its parent: link from spans that
                have one.
        """
        if len(self._queue) >= _MAX_WAITING:
            self._drain.dropped += 1
            return
        self._append(Record(layout, trace_id, span_id, parent_id, start_ns, end_ns, values, error, links))
        if not self._running:
            self._resume()
        elif error is not None:
            # The process may be about to die of it.
            self._flusher.hurry()

    def record_later(self, make: Callable[[Facts], Iterable[Record]], facts: Facts) -> None:
        """Takes what a step left behind, to be made into spans on the flusher's thread; as safe as `record`.

        Args:
            make: Returns the records; called once, guarded.
            facts: What it is called with.
        """
        if len(self._queue) >= _MAX_WAITING:
            self._drain.dropped += 1
            return
        self._append((make, facts))
        if not self._running:
            self._resume()

    def log(self, make: Callable[[Facts], LogRecord], facts: Facts, *, urgent: bool = False) -> None:
        """Takes what becomes a log record later, very soon if ``urgent``; see `record_later`."""
        self.logs.take(make, facts)
        if not self._running:
            self._resume()
        elif urgent:
            self._flusher.hurry()

    def hurry(self) -> None:
        """Spools what is recorded so far at once: the process may be about to die."""
        self._flusher.hurry()

    def task_resource(
        self,
        task_type: str,
        task_index: int,
        *,
        clock_domain: str,
        host_name: str | None = None,
        host_id: str | None = None,
        pid: int | None = None,
    ) -> TaskResource:
        """Returns the resource of another task of this run, for spans written on its behalf.

        Args:
            task_type: Such as ``worker``.
            task_index: Index within the type.
            clock_domain: The clock that the spans' times are of.
            host_name: The task's host, where known.
            host_id: The task's host id, where known.
            pid: The task's process id, where known.
        """

        def of_own(own: Mapping[str, object]) -> Mapping[str, object]:
            return task_attributes(
                own,
                self.identity,
                task_type,
                task_index,
                clock_domain=clock_domain,
                host_name=host_name,
                host_id=host_id,
                pid=pid,
            )

        resource = TaskResource(of_own(self.resource.attributes))
        self._task_resources.append((resource, of_own))
        return resource

    def every(self, interval_s: float, callback: Callable[[], object]) -> Callable[[], None]:
        """Calls ``callback`` every ``interval_s`` seconds on a background thread, guarded.

        Returns:
            The undo. Callbacks do not outlive `shutdown`, and a fork's child has none of them.
        """
        return self._callbacks.every(interval_s, callback) if self.enabled else lambda: None

    def before_exit(self, callback: Callable[[float], object]) -> Callable[[], None]:
        """Calls ``callback`` first thing at the process's exit, while spans can still be recorded.

        Args:
            callback: Takes the time that the exit may still last, in s; guarded.

        Returns:
            The undo.
        """
        self._exit_callbacks = [*self._exit_callbacks, callback]

        def undo() -> None:
            self._exit_callbacks = [other for other in self._exit_callbacks if other is not callback]

        return undo

    @property
    def dropped(self) -> int:
        """Spans that were lost: broken, or more than the flusher could keep up with."""
        return self._drain.dropped

    @property
    def not_sent(self) -> int:
        """Spans that were given up on the way to the network; `otel-tf replay` sends them."""
        return self._network.not_sent

    @property
    def spool_size(self) -> int:
        """Bytes of spans spooled by this process."""
        return self._spool.size if self._spool is not None else 0

    # -- the way out -----------------------------------------------------------------

    @functools.cached_property
    def metrics(self) -> Instruments:
        """The instruments of training; for the flusher's thread, in what `record_later` calls."""
        return instruments(self, self._meters.meter())

    @property
    def waiting(self) -> bool:
        """Whether a span was recorded that is not spooled yet."""
        return bool(self._queue)

    def name(self, identity: Identity | None = None) -> None:
        """Ends the wait for the run's name: what was recorded so far is written under it. Once.

        Args:
            identity: Who this process is after all; default: as at the start.
        """
        with self._naming:
            if self.named.is_set():
                return
            if identity is not None:
                self.identity = identity
                self.run_dir = self._run_dir()
                if self._spool is not None:
                    self._spool.directory = self.run_dir
                self._set_resource(
                    own_attributes(identity, provider=self._provider_resource, forked=self._forked)
                )
            self.named.set()
        self._snapshot()
        self._flusher.hurry()

    def drain(self) -> None:
        """Spools what was recorded and hands it to the network's threads; never raises."""
        if self.named.is_set():
            self._drain.run()
            self.logs.run()

    def flush(self, timeout_s: float) -> bool:
        """Spools everything recorded before the call and waits until the network has tried it.

        An endpoint that refuses connections is not waited for.

        Args:
            timeout_s: The longest wait, in s.

        Returns:
            Whether all of it was written and, where there is a network exporter, accepted.
        """
        if not self.enabled:
            return True
        deadline = time.monotonic() + timeout_s
        if (self._queue or self.logs.waiting) and not self.named.wait(timeout_s):
            return False
        written = self._drain.within(deadline - time.monotonic())
        sent = self._network.flush(max(deadline - time.monotonic(), 0.0))
        return self.logs.flush(max(deadline - time.monotonic(), 0.0)) and sent and written

    def shutdown(self, timeout_s: float) -> bool:
        """Flushes, then ends the threads. What is recorded later still reaches the spool.

        A tracer provider of the program's own is handed its spans, but to flush it is the program's.

        Args:
            timeout_s: The longest wait, in s.

        Returns:
            As `flush`.
        """
        if not self.enabled or self._closed:
            return True
        deadline = time.monotonic() + timeout_s
        self.name()
        written = self._drain.within(timeout_s)
        sent = self._network.flush(max(deadline - time.monotonic(), 0.0), provider=False)
        sent = self.logs.flush(max(deadline - time.monotonic(), 0.0)) and sent
        self._meters.stop(deadline - time.monotonic())
        self._closed = True
        self._running = False
        self._flusher.stop()
        self._callbacks.stop()
        self._network.stop()
        self.logs.stop()
        atexit.unregister(self._at_exit)
        _pipelines.discard(self)
        # What came in meanwhile.
        return self._drain.within(0.0) and written and sent

    def _snapshot(self) -> None:
        if self._spool is None:
            return
        self._snapshots.append(_clock.snapshot())
        with self._naming:
            while self._snapshots and self.named.is_set():
                entry = {
                    "domain": self.identity.clock_domain,
                    "process": self.resource.process,
                    **self._snapshots.popleft()._asdict(),
                }
                self._spool.write(CLOCKS_SUFFIX, json.dumps(entry).encode() + b"\n")

    def _run_dir(self) -> Path:
        return self._folder if self.settings.run_dir else self._folder / self.identity.run_id

    # -- life ------------------------------------------------------------------------

    def begin(self) -> None:
        """Starts the threads and registers exit and fork; `start` calls it."""
        self._register()
        # All imports happen here, on the caller's thread: none must meet the program's own on another.
        with _drain_guard:
            self._network.prepare()
            self.logs.prepare()
            if self._meters.prepare():
                _ = self.metrics
        self._resume()

    def _register(self) -> None:
        """Registers for exit and fork; again when a provider came later, to run before its own exit."""
        atexit.unregister(self._at_exit)
        atexit.register(self._at_exit)
        _pipelines.add(self)

    def _resume(self) -> None:
        """The slow branch of `record`: first record of a fork's child, or a record after shutdown."""
        if not self.enabled:
            self._queue.clear()
            self.logs.abandon()
        elif self._closed:
            self.drain()
        else:
            self._running = True
            with _drain_guard:
                if self._forked:
                    # Not in the fork's own handler: the SDK's detectors use locks that others reset there.
                    self._set_resource(own_attributes(self.identity, forked=True))
                    # A child of ``multiprocessing`` leaves without running ``atexit``.
                    multiprocessing.util.Finalize(self, self._at_exit, exitpriority=0)
                self._snapshot()
                self._network.start()
                self.logs.start()
                self._callbacks.start()
                # At least 1 ms: the variable may say 0, and a busy thread would hold the training up.
                self._flusher.every(max(self.settings.flush_interval_ms, 1) / 1000, self.drain)
                self._flusher.every(_CLOCKS_INTERVAL_S, self._snapshot)

    def _adopt(self, provider_resource: Mapping[str, object]) -> None:
        """The program has a tracer provider: its resource wins, and its exit must come after ours."""
        self._provider_resource = provider_resource
        self._set_resource(own_attributes(self.identity, provider=provider_resource, forked=self._forked))
        self._register()

    def _set_resource(self, attributes: Mapping[str, object]) -> None:
        self.resource.replace(attributes)
        for resource, of_own in self._task_resources:
            resource.replace(of_own(attributes))

    def _at_exit(self) -> None:
        deadline = time.monotonic() + self.settings.exit_timeout_ms / 1000
        for callback in (*self._exit_callbacks, self.shutdown):
            with _exit_guard:
                callback(max(deadline - time.monotonic(), 0.0))

    def _after_fork_in_child(self) -> None:
        """Gives the child a state of its own; what the parent had recorded is the parent's to write."""
        self._drain.abandon()
        # Nobody in the child asks for the run's name.
        self.named = threading.Event()
        self.named.set()
        self._naming = threading.Lock()
        self._snapshots.clear()
        self._running = False
        self._forked = True
        self._exit_callbacks = []
        self._flusher.abandon()
        self._callbacks.abandon()
        self._network.abandon()
        self.logs.abandon()
        self._meters.abandon()
        vars(self).pop("metrics", None)
        if self._spool is not None:
            self._spool.abandon()


_pipelines: weakref.WeakSet[Pipeline] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for pipeline in list(_pipelines):
        pipeline._after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)


def start(
    settings: Settings,
    identity: Identity,
    *,
    tracer_provider: TracerProvider | None = None,
    provisional: bool = False,
) -> Pipeline:
    """Starts a pipeline for this process.

    Args:
        settings: The settings in force.
        identity: Who this process is; its run id names the run directory.
        tracer_provider: The program's tracer provider; default the global one, where it is the SDK's.
            Spans then go through it and no exporter of our own is set up.
        provisional: Whether the run id is still to be agreed: spans wait until `Pipeline.name`.
    """
    enabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() != "true"
    pipeline = Pipeline(settings, identity, tracer_provider, enabled=enabled, provisional=provisional)
    if enabled:
        pipeline.begin()
    return pipeline
