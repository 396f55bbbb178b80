"""The pipeline: from a step's record to the spool and the network."""

from __future__ import annotations

import atexit
import collections
import contextlib
import json
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from otel_tf._guard import Guard
from otel_tf.telemetry import _clock
from otel_tf.telemetry._flusher import Flusher
from otel_tf.telemetry._records import AttributeValue, Layout, Record, SpanError, SpanKind, SpanLink
from otel_tf.telemetry._resource import TaskResource, own_attributes, task_attributes
from otel_tf.telemetry._spool import CLOCKS_SUFFIX, TRACES_SUFFIX, Spool

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from otel_tf.config import Settings
    from otel_tf.identity import Identity
    from otel_tf.telemetry._batch import Shaper

__all__ = ["Pipeline", "start"]

_logger = logging.getLogger("otel_tf")

#: Records that may wait for the flusher (some 100 MB); beyond it the newest are dropped and counted.
_MAX_WAITING = 200_000
#: Spans of one spool line and one request; about 1 MB, a quarter of what gRPC servers take.
_MAX_BATCH = 2_000
_CLOCKS_INTERVAL_S = 10.0

_drain_guard = Guard("the telemetry pipeline")
_exit_guard = Guard("the telemetry pipeline at exit")


class Pipeline:
    """Takes finished spans from the seams; made by `start`.

    Attributes:
        enabled: False where ``OTEL_SDK_DISABLED=true``: everything may be called and does nothing.
        identity: Who this process is.
        resource: This process's own resource, for `layout`.
        run_dir: The run directory.
        dropped: Spans that were lost because the flusher could not keep up.
    """

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        tracer_provider: TracerProvider | None = None,
        *,
        enabled: bool = True,
    ) -> None:
        self.enabled = enabled
        self.settings = settings
        self.identity = identity
        self.run_dir = settings.run_dir or Path("otel-tf-runs").absolute() / identity.run_id
        self.dropped = 0
        self._queue: collections.deque[Record] = collections.deque()
        self._append = self._queue.append
        self._drain_lock = threading.Lock()
        self._closed = False
        self._running = False
        self._given_provider = tracer_provider
        self._resources: list[tuple[TaskResource, Callable[[], Mapping[str, object]]]] = []
        self._flusher = Flusher(settings.flush_interval_ms / 1000, self.drain)
        self._spool = Spool(self.run_dir, identity.task.replace(":", "-")) if settings.spool else None
        self._shaper: Shaper | None = None
        self.resource = TaskResource(own_attributes(identity) if enabled else {})

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
            self.dropped += 1
            return
        self._append(Record(layout, trace_id, span_id, parent_id, start_ns, end_ns, values, error, links))
        if not self._running:
            self._resume()

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

        def attributes() -> Mapping[str, object]:
            return task_attributes(
                self.resource.attributes,
                self.identity,
                task_type,
                task_index,
                clock_domain=clock_domain,
                host_name=host_name,
                host_id=host_id,
                pid=pid,
            )

        return TaskResource(attributes() if self.enabled else {}, self.resource.schema_url)

    def every(self, interval_s: float, callback: Callable[[], object]) -> Callable[[], None]:
        """Calls ``callback`` every ``interval_s`` seconds on the flusher's thread, guarded.

        Returns:
            The undo. Callbacks do not outlive `shutdown`, and a fork's child has none of them.
        """
        return self._flusher.every(interval_s, callback)

    # -- the way out -----------------------------------------------------------------

    def drain(self) -> None:
        """Spools and offers to the network what was recorded; never raises."""
        with _drain_guard, self._drain_lock:
            self._drain_locked()

    def flush(self, timeout_s: float) -> bool:
        """Spools everything recorded before the call and waits for the network to have tried it.

        Returns:
            Whether all of it was written and, where a network exporter is configured, accepted in time.
        """
        if not self.enabled:
            return True
        self.drain()
        return True

    def shutdown(self, timeout_s: float) -> bool:
        """Flushes, then ends the threads. What is recorded later still reaches the spool.

        Returns:
            As `flush`.
        """
        done = self.flush(timeout_s)
        self._close()
        return done

    def _drain_locked(self) -> None:
        while self._queue:
            records = []
            with contextlib.suppress(IndexError):
                while len(records) < _MAX_BATCH:
                    records.append(self._queue.popleft())
            batch = self._current_shaper().shape(records)
            if batch is not None and self._spool is not None:
                batch.place = self._spool.write(TRACES_SUFFIX, batch.line)

    def _current_shaper(self) -> Shaper:
        if self._shaper is None:
            from opentelemetry.sdk.trace import TracerProvider

            from otel_tf.telemetry._batch import ProviderShaper

            provider = self._given_provider
            if not isinstance(provider, TracerProvider):
                provider = TracerProvider(shutdown_on_exit=False)
            self._shaper = ProviderShaper(provider)
        return self._shaper

    def _snapshot(self) -> None:
        if self._spool is None:
            return
        snapshot = _clock.snapshot()
        entry = {"domain": self.identity.clock_domain, "process": self.resource.process, **snapshot._asdict()}
        self._spool.write(CLOCKS_SUFFIX, json.dumps(entry).encode() + b"\n")

    # -- life ------------------------------------------------------------------------

    def begin(self) -> None:
        """Starts the threads and registers exit and fork; `start` calls it."""
        atexit.register(self._at_exit)
        _pipelines.add(self)
        self._resume()

    def _resume(self) -> None:
        """The slow branch of `record`: first record of a fork's child, or a record after shutdown."""
        if not self.enabled:
            self._queue.clear()
        elif self._closed:
            self.drain()
        else:
            self._running = True
            self._snapshot()
            self._flusher.every(_CLOCKS_INTERVAL_S, self._snapshot)
            self._flusher.start()

    def _close(self) -> None:
        self._closed = True
        self._running = False
        self._flusher.stop()
        atexit.unregister(self._at_exit)
        _pipelines.discard(self)

    def _at_exit(self) -> None:
        with _exit_guard:
            self.shutdown(self.settings.exit_timeout_ms / 1000)

    def _after_fork_in_child(self) -> None:
        """Gives the child a state of its own; what the parent had recorded is the parent's to write."""
        self._queue.clear()
        self.dropped = 0
        self._drain_lock = threading.Lock()
        self._running = False
        self._flusher.abandon()
        if self._spool is not None:
            self._spool.abandon()
        self._shaper = None
        with _drain_guard:
            self.resource.replace(own_attributes(self.identity, forked=True))


_pipelines: weakref.WeakSet[Pipeline] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for pipeline in list(_pipelines):
        pipeline._after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)


def start(
    settings: Settings, identity: Identity, *, tracer_provider: TracerProvider | None = None
) -> Pipeline:
    """Starts a pipeline for this process.

    Args:
        settings: The settings in force.
        identity: Who this process is; its run id names the run directory.
        tracer_provider: The program's tracer provider; default the global one, where it is the SDK's.
            Spans then go through it and no exporter of our own is set up.
    """
    enabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() != "true"
    pipeline = Pipeline(settings, identity, tracer_provider, enabled=enabled)
    if enabled:
        pipeline.begin()
    return pipeline
