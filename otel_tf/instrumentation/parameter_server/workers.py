"""The coordinator's side of one worker: pairs its stamps with its attempts and writes its spans.

A worker's queue is in dispatch order, and a successful run leaves exactly one entry, so the n-th entry
since the last fetch belongs to the n-th success. A failed run leaves none, or one at the end; it is
fetched right after the failure. What cannot be paired keeps the coordinator's times, marked.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from tensorflow.python.eager import context
from tensorflow.python.framework import ops

from otel_tf import ids, semconv
from otel_tf._guard import Guard
from otel_tf.instrumentation.parameter_server.closures import Attempt
from otel_tf.instrumentation.parameter_server.cluster import ClusterTelemetry
from otel_tf.instrumentation.parameter_server.remote_task import probe_clocks
from otel_tf.instrumentation.parameter_server.stamps import RING_CAPACITY
from otel_tf.instrumentation.watching.notices import Notices
from otel_tf.telemetry import Layout, Record, SpanKind, TaskResource

__all__ = ["WorkerTelemetry"]

_logger = logging.getLogger(__name__)

#: tf.timestamp() is float64 seconds: two clock readings can be rounded apart by one step of it.
_STAMP_STEP_NS = 240
#: No sane clock runs faster than this beside another; more means that stamp and attempt do not belong
#: together. (NTP slews by 500 ppm at most.)
_MAX_DRIFT = 1e-3


_NOTICING = Guard("looking at watched tensors on a worker")


def _as_it_is(record: Record) -> tuple[Record]:
    return (record,)


class WorkerTelemetry:
    """State of one worker. Everything but `attempt_lock` is touched only with that lock held."""

    def __init__(self, cluster: ClusterTelemetry, index: int, device_name: str, executor: Any) -> None:
        self.name = f"worker:{index}"
        #: Held while the worker runs an attempt or answers a question of ours, so that no fetch can
        #: meet a running step.
        self.attempt_lock = threading.Lock()
        self._cluster = cluster
        self._index = index
        self._device_name = device_name
        self._executor = executor
        self._notices = Notices(cluster.watches, cluster.pipeline, self.name, device_name)
        self._pending: deque[Attempt] = deque()
        self._steps = 0
        self._seq = 0
        self._probes = 0
        self._lost_contact = False
        self._resource: TaskResource | None = None
        self._coordinator_timed: dict[bool, Layout] | None = None
        self._last_fetch_ns = time.monotonic_ns()
        self._last_probe_ns: int | None = None

    # -- attempts --------------------------------------------------------------------------------------

    def before_attempt(self) -> None:
        """Throws away stamps of attempts that were already given up; a rare case after lost contact."""
        if self._lost_contact:
            with Guard("discarding stamps"), self._on_worker():
                self._cluster.fetch_stamps()
                self._lost_contact = False

    def succeeded(self, attempt: Attempt) -> None:
        """Takes a successful attempt; its worker's stamps are fetched later."""
        if attempt.closure.training:
            self._steps += attempt.closure.steps
            attempt.local_step = self._steps
            attempt.lag = self._cluster.lag(self._steps)
        if attempt.closure.stamped:
            self._pending.append(attempt)
        else:
            self._write_step(attempt, None)

    def failed(self, attempt: Attempt, *, worker_lost: bool) -> None:
        """Takes a failed attempt and settles the pairing at once."""
        if worker_lost:
            self._lose_contact()
        entries = self._fetch() if attempt.closure.stamped and not worker_lost else None
        if entries is None:
            self._write_step(attempt, None)
        elif len(entries) == len(self._pending) + 1:
            self._pair(entries[:-1])
            self._write_step(attempt, entries[-1])
        else:
            self._pair(entries)
            self._write_step(attempt, None)

    def maintain(self, *, force: bool = False) -> None:
        """Fetches stamps and probes clocks when they are due; called between attempts.

        Args:
            force: Fetch and probe now, whatever the time: a short run gets its second probe at the end.
        """
        now_ns = time.monotonic_ns()
        settings = self._cluster.settings
        due = now_ns - self._last_fetch_ns >= settings.drain_interval_ms * 1_000_000
        probe_due = settings.clock_probe_interval_ms and (
            force
            or self._last_probe_ns is None
            or now_ns - self._last_probe_ns >= settings.clock_probe_interval_ms * 1_000_000
        )
        # Half a queue is left for the time until the next look. Before a probe the steps so far are
        # fetched, so that the worker's sequence numbers follow its own time.
        half_full = len(self._pending) >= RING_CAPACITY // 2
        if self._pending and (force or due or probe_due or half_full):
            entries = self._fetch()
            if entries is not None:
                self._pair(entries)
        if probe_due:
            self._last_probe_ns = now_ns
            self._probe()

    # -- questions to the worker -------------------------------------------------------------------------

    @contextlib.contextmanager
    def _on_worker(self) -> Iterator[None]:
        with ops.device(self._device_name), context.executor_scope(self._executor):
            yield

    def _fetch(self) -> npt.NDArray[np.float64] | None:
        """Returns the worker's stamps, or None (and gives up on pending ones) where it does not answer."""
        self._last_fetch_ns = time.monotonic_ns()
        try:
            with self._on_worker():
                self._identify()
                stamps = self._cluster.fetch_stamps()
                with _NOTICING:
                    self._notices.look()
                return stamps
        except Exception as error:
            _logger.debug("%s did not hand over its stamps: %r", self.name, error)
            self._lose_contact()
            return None

    def _lose_contact(self) -> None:
        self._give_up()
        self._lost_contact = True
        self._resource = None  # a restarted worker is another process

    def _identify(self) -> None:
        if self._resource is None:
            self._resource = self._cluster.task_resource("worker", self._index)
            self._worker_timed = self._step_layouts(self._resource, semconv.SOURCE_WORKER)
            self._probe_client = self._cluster.pipeline.layout(
                semconv.SPAN_CLOCK_PROBE,
                kind=SpanKind.CLIENT,
                resource=self._resource,
                fields=(semconv.SEQ, semconv.PROBE_PEER),
                constants={semconv.WORKER: self.name},
            )

    def _probe(self) -> None:
        try:
            with self._on_worker():
                self._identify()
                probes = probe_clocks(self._cluster.probing_function)
            peers = self._cluster.probe_servers()
        except Exception as error:
            _logger.debug("%s did not answer a clock probe: %r", self.name, error)
            return
        cluster = self._cluster
        for probe in sorted(probes, key=lambda probe: probe.sent_ns):
            self._probes += 1
            self._seq += 1
            peer = f"ps:{probe.parameter_server}"
            key = ("probe", self.name, peer, self._probes)
            trace_id = ids.trace_id(cluster.run_id, *key)
            client_id = ids.random_span_id()
            cluster.pipeline.record(
                self._probe_client,
                trace_id,
                client_id,
                0,
                probe.sent_ns,
                probe.received_ns,
                (self._seq, peer),
            )
            cluster.pipeline.record(
                peers[probe.parameter_server],
                trace_id,
                ids.random_span_id(),
                client_id,
                probe.answered_ns,
                probe.answered_ns,
                (self.name,),
            )

    # -- pairing --------------------------------------------------------------------------------------------

    def _give_up(self) -> None:
        while self._pending:
            self._write_step(self._pending.popleft(), None)

    def _pair(self, entries: npt.NDArray[np.float64]) -> None:
        surplus = len(entries) - len(self._pending)
        if surplus > 0:
            # Entries of attempts that were given up come first.
            entries = entries[surplus:]
        while len(self._pending) > len(entries):
            self._write_step(self._pending.popleft(), None)  # dropped from a full queue
        for entry in entries:
            self._write_step(self._pending.popleft(), entry)

    def _write_step(self, attempt: Attempt, entry: npt.NDArray[np.float64] | None) -> None:
        closure = attempt.closure
        times = None if entry is None else self._plausible(attempt, entry)
        if times is not None and self._resource is not None:
            layout = self._worker_timed[closure.training]
            start_ns, end_ns = times
            self._seq += 1
            seq: int | None = self._seq
        else:
            if self._coordinator_timed is None:
                self._coordinator_timed = self._step_layouts(
                    self._cluster.coordinator_timed_resource(self._index), semconv.SOURCE_COORDINATOR
                )
            layout = self._coordinator_timed[closure.training]
            start_ns, end_ns, seq = attempt.start_ns, attempt.end_ns, None
        record = Record(
            layout,
            closure.trace_id,
            attempt.step_span_id,
            attempt.dispatch_span_id,
            start_ns,
            end_ns,
            (
                seq,
                closure.number,
                closure.function_name,
                attempt.global_step,
                attempt.local_step,
                attempt.staleness,
                None if attempt.staleness is None else semconv.SOURCE_COORDINATOR,
                closure.epoch,
                closure.batch,
                closure.steps if closure.steps != 1 else None,
                (closure.stream.index or None) if closure.stream else None,
            ),
            attempt.error,
            (),
            () if times is None else self._notices.taken(end_ns),
        )
        self._cluster.pipeline.record_later(_as_it_is, record)
        if attempt.error is not None:
            self._cluster.pipeline.hurry()
        if closure.training:
            self._cluster.pipeline.record_later(
                self._measure, (end_ns - start_ns, attempt.staleness, attempt.lag)
            )

    def _measure(self, facts: tuple[int, int | None, int | None]) -> tuple[()]:
        """Records the metrics of a step; on the flusher's thread."""
        duration_ns, staleness, lag = facts
        metrics, of_worker = self._cluster.pipeline.metrics, {semconv.WORKER: self.name}
        metrics.step_duration.record(duration_ns / 1e9, of_worker)
        if staleness is not None:
            metrics.staleness.record(staleness, of_worker)
        if lag is not None:
            metrics.worker_lag.record(lag, of_worker)
        return ()

    @staticmethod
    def _plausible(attempt: Attempt, entry: npt.NDArray[np.float64]) -> tuple[int, int] | None:
        """Returns a stamp in ns where it can belong to the attempt: a step is within its dispatch."""
        start_ns, end_ns = (int(x) for x in np.rint(entry * 1e9))
        limit = (attempt.end_ns - attempt.start_ns) * (1 + _MAX_DRIFT) + _STAMP_STEP_NS
        return (start_ns, end_ns) if 0 <= end_ns - start_ns <= limit else None

    def _step_layouts(self, resource: TaskResource, source: str) -> dict[bool, Layout]:
        return {
            training: self._cluster.pipeline.layout(
                semconv.SPAN_TRAIN_STEP if training else semconv.SPAN_EXECUTE,
                kind=SpanKind.SERVER,
                resource=resource,
                fields=(
                    semconv.SEQ,
                    semconv.CLOSURE_ID,
                    semconv.FUNCTION_NAME,
                    semconv.GLOBAL_STEP,
                    semconv.LOCAL_STEP,
                    semconv.STALENESS,
                    semconv.STALENESS_SOURCE,
                    semconv.EPOCH,
                    semconv.BATCH,
                    semconv.STEPS_PER_EXECUTION,
                    semconv.STEP_STREAM,
                ),
                constants={semconv.WORKER: self.name, semconv.TIME_SOURCE: source},
                remote_parent=True,
            )
            for training in (True, False)
        }
