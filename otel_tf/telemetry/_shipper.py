"""The shipper: one thread for each destination, a bounded queue before it, patience towards it.

A dead, slow or refusing endpoint costs the training nothing: batches wait in memory up to a number of
spans, then the oldest are let go (the spool has them), and one line says so, with the way to send them
later. Attempts back off exponentially, or as the endpoint asks.
"""

from __future__ import annotations

import collections
import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_tf._guard import Guard
from otel_tf.telemetry._batch import MAX_BYTES, merged

if TYPE_CHECKING:
    from otel_tf.telemetry._batch import Batch
    from otel_tf.telemetry._network import Limits
    from otel_tf.telemetry._sinks import Outcome, Sink

__all__ = ["Shipper"]

_logger = logging.getLogger("otel_tf")

_FIRST_DELAY_S = 1.0
_MAX_DELAY_S = 30.0

_guard = Guard("sending spans")
#: The program's own ``random`` is left alone: a seeded one would also make all workers retry together.
_jitter = random.SystemRandom()


class Shipper:
    """Delivers batches to one sink, in order, on a thread of its own.

    Args:
        make_sink: Makes the sink; called on the shipper's thread.
        limits: How much waits and travels at once.
        acknowledge: Told of each accepted batch, with the number of rejected spans in it.
        advice: What to say to people when spans cannot be sent, given the endpoint.
        unit: What is sent, for people.
    """

    def __init__(
        self,
        make_sink: Callable[[], Sink],
        *,
        limits: Limits,
        acknowledge: Callable[[Batch, int], None],
        advice: Callable[[str], str],
        unit: str = "spans",
    ) -> None:
        self._make_sink = make_sink
        self._limits = limits
        self._acknowledge = acknowledge
        self._advice = advice
        self._unit = unit
        self._queue: collections.deque[Batch] = collections.deque()
        self._waiting = 0  # spans in the queue
        self._current: list[Batch] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._deadline: float | None = None  # of whoever waits in `flush`, monotonic s
        self._failures_seen = 0  # ever; those that end a flush
        self._warned = False
        self._target = ""
        self._last_reason = ""
        #: Spans accepted, and spans given up (the spool may have them).
        self.sent = 0
        self.not_sent = 0

    @property
    def pending(self) -> int:
        """Spans that wait or are under way."""
        return self._waiting + sum(batch.sampled for batch in self._current)

    def offer(self, batch: Batch) -> None:
        """Queues a batch; never blocks on the network."""
        with self._changed:
            self._queue.append(batch)
            self._waiting += batch.sampled
            # At least the newest batch stays, however large.
            while self._waiting > self._limits.max_waiting and len(self._queue) > 1:
                let_go = self._queue.popleft()
                self._waiting -= let_go.sampled
                self.not_sent += let_go.sampled
            if len(self._queue) == 1 or self._waiting >= self._limits.max_spans:
                self._changed.notify_all()
        self.start()

    def start(self) -> None:
        """Starts the thread; early, for Python starts none once the process exits."""
        with self._changed:
            if self._thread is None and not self._stopped:
                thread = threading.Thread(target=self._run, name="otel-tf shipper", daemon=True)
                thread.start()
                self._thread = thread

    def flush(self, timeout_s: float) -> bool:
        """Waits until everything was sent, an attempt failed, or time is up.

        An endpoint that asks for a short delay is waited for, a dead one is not.

        Returns:
            Whether nothing is left.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            before = self._failures_seen
            self._deadline = deadline
            self._changed.notify_all()
            while self._queue or self._current:
                left = deadline - time.monotonic()
                if left <= 0 or self._failures_seen > before or self._thread is None:
                    break
                self._changed.wait(left)
            self._deadline = None
            return not self._queue and not self._current

    def stop(self) -> None:
        """Ends the thread after the attempt under way; what is left counts as not sent."""
        with self._changed:
            self._stopped = True
            left = self.pending
            self.not_sent += left
            if left:
                self._warn(self._last_reason or "the process ended first")
            self._queue.clear()
            self._waiting = 0
            self._changed.notify_all()

    def _run(self) -> None:
        # Our requests are not the program's: an instrumented HTTP client must not make spans of them.
        with _guard, suppress_instrumentation():
            sink = self._make_sink()
            try:
                failures = 0
                while batches := self._next(failures):
                    outcome = sink.deliver(merged(batches), self._time_left())
                    failures = failures + 1 if outcome.retry else 0
                    self._target = sink.target
                    self._settle(batches, outcome, sink, failures)
            finally:
                sink.close()
        with self._changed:
            # Also after a failure of our own: a thread for every batch would not do better.
            self._stopped = True
            self._thread = None
            self._changed.notify_all()

    def _time_left(self) -> float | None:
        deadline = self._deadline
        return None if deadline is None else deadline - time.monotonic()

    def _next(self, failures: int) -> list[Batch]:
        """Returns what to try next: what failed before, else what the queue gathered; empty at the end."""
        with self._changed:
            if failures == 0:
                self._current = []
                self._changed.notify_all()
            while not self._stopped and not self._current:
                if self._queue:
                    self._gather()
                    self._current = self._take()
                else:
                    self._changed.wait()
            return [] if self._stopped else self._current

    def _gather(self) -> None:
        """Waits a little for more: each request costs as much as a hundred spans."""
        until = time.monotonic() + self._limits.delay_s
        while not self._stopped and self._deadline is None and self._waiting < self._limits.max_spans:
            left = until - time.monotonic()
            if left <= 0:
                return
            self._changed.wait(left)

    def _take(self) -> list[Batch]:
        taken: list[Batch] = []
        spans = size = 0
        while self._queue:
            batch = self._queue[0]
            spans, size = spans + batch.sampled, size + batch.size
            if taken and (spans > self._limits.max_spans or size > MAX_BYTES):
                break
            taken.append(self._queue.popleft())
            self._waiting -= batch.sampled
        return taken

    def _settle(self, batches: list[Batch], outcome: Outcome, sink: Sink, failures: int) -> None:
        spans = sum(batch.sampled for batch in batches)
        if outcome.accepted:
            self.sent += spans - outcome.rejected
            self.not_sent += outcome.rejected
            if outcome.rejected:
                self._warn(
                    f"it rejected {outcome.rejected} {self._unit}: {outcome.reason or 'no reason given'}"
                )
            elif self._warned and self.not_sent == 0:
                self._warned = False
                _logger.info("%s are sent to %s again; none was lost", self._unit, sink.target)
            if sink.acknowledges:
                # The answer does not say which were rejected; they count on the first line.
                for batch, rejected in zip(batches, (outcome.rejected, *[0] * len(batches)), strict=False):
                    self._acknowledge(batch, rejected)
            return
        self._last_reason = outcome.reason
        # Busy once is everyday; it is said if it lasts, or if the process ends before.
        if failures != 1:
            self._warn(outcome.reason)
        if not outcome.retry:
            with self._changed:
                self.not_sent += spans
                self._fail_flush()
            return
        delay = outcome.retry_after_s
        if delay is None:
            delay = min(_FIRST_DELAY_S * 2 ** min(failures - 1, 8), _MAX_DELAY_S) * _jitter.uniform(0.8, 1.2)
        self._back_off(delay, asked=outcome.retry_after_s is not None)

    def _back_off(self, delay_s: float, *, asked: bool) -> None:
        """Waits before the next attempt.

        Whoever flushes meanwhile gets an attempt at once, unless the endpoint has asked for the delay:
        then it is kept to, and a flush that ends before it has failed.
        """
        until = time.monotonic() + delay_s
        with self._changed:
            seen = None if asked else self._deadline
            if not asked:
                self._fail_flush()
            while not self._stopped:
                left = until - time.monotonic()
                deadline = self._deadline
                if left <= 0 or (not asked and deadline is not None and deadline != seen):
                    return
                if asked and deadline is not None and deadline < until:
                    self._fail_flush()
                seen = deadline
                self._changed.wait(left)

    def _fail_flush(self) -> None:
        self._failures_seen += 1
        self._changed.notify_all()

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            where = f" to {self._target}" if self._target else ""
            _logger.warning(
                "%s cannot be sent%s (%s); %s", self._unit, where, reason, self._advice(self._target)
            )
