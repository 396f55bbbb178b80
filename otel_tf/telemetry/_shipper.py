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

if TYPE_CHECKING:
    from otel_tf.telemetry._batch import Batch
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
        max_spans: Spans that may wait.
        acknowledge: Told of each accepted batch, with the number of rejected spans in it.
        advice: What to say to people when spans cannot be sent, given the endpoint.
    """

    def __init__(
        self,
        make_sink: Callable[[], Sink],
        *,
        max_spans: int,
        acknowledge: Callable[[Batch, int], None],
        advice: Callable[[str], str],
    ) -> None:
        self._make_sink = make_sink
        self._max_spans = max_spans
        self._acknowledge = acknowledge
        self._advice = advice
        self._queue: collections.deque[Batch] = collections.deque()
        self._waiting = 0  # spans in the queue
        self._current: Batch | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._deadline: float | None = None  # of whoever waits in `flush`, monotonic s
        self._failures_seen = 0  # ever; those that end a flush
        self._warned = False
        #: Spans accepted, and spans given up (the spool may have them).
        self.sent = 0
        self.not_sent = 0

    @property
    def pending(self) -> int:
        """Spans that wait or are under way."""
        current = self._current
        return self._waiting + (current.sampled if current is not None else 0)

    def offer(self, batch: Batch) -> None:
        """Queues a batch; never blocks on the network."""
        with self._changed:
            self._queue.append(batch)
            self._waiting += batch.sampled
            # At least the newest batch stays, however large.
            while self._waiting > self._max_spans and len(self._queue) > 1:
                let_go = self._queue.popleft()
                self._waiting -= let_go.sampled
                self.not_sent += let_go.sampled
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
            while self._queue or self._current is not None:
                left = deadline - time.monotonic()
                if left <= 0 or self._failures_seen > before or self._thread is None:
                    break
                self._changed.wait(left)
            self._deadline = None
            return not self._queue and self._current is None

    def stop(self) -> None:
        """Ends the thread after the attempt under way; what is left counts as not sent."""
        with self._changed:
            self._stopped = True
            left = self.pending
            self.not_sent += left
            if left:
                self._warn("the process ended first")
            self._queue.clear()
            self._waiting = 0
            self._changed.notify_all()

    def _run(self) -> None:
        # Our requests are not the program's: an instrumented HTTP client must not make spans of them.
        with _guard, suppress_instrumentation():
            sink = self._make_sink()
            try:
                failures = 0
                while (batch := self._next(sink, failures)) is not None:
                    outcome = sink.deliver(batch, self._time_left())
                    failures = failures + 1 if outcome.retry else 0
                    self._settle(batch, outcome, sink, failures)
            finally:
                sink.close()
        with self._changed:
            self._thread = None
            self._changed.notify_all()

    def _time_left(self) -> float | None:
        deadline = self._deadline
        return None if deadline is None else deadline - time.monotonic()

    def _next(self, sink: Sink, failures: int) -> Batch | None:
        """Returns the batch to try next: the one that failed before, else the queue's; None at the end."""
        with self._changed:
            if failures == 0:
                self._current = None
                self._changed.notify_all()
            while not self._stopped:
                if self._current is not None:
                    return self._current
                if self._queue:
                    self._current = self._queue.popleft()
                    self._waiting -= self._current.sampled
                    return self._current
                self._changed.wait()
            return None

    def _settle(self, batch: Batch, outcome: Outcome, sink: Sink, failures: int) -> None:
        if outcome.accepted:
            self.sent += batch.sampled - outcome.rejected
            self.not_sent += outcome.rejected
            if outcome.rejected:
                self._warn(
                    f"it rejected {outcome.rejected} spans: {outcome.reason or 'no reason given'}", sink
                )
            elif self._warned and self.not_sent == 0:
                self._warned = False
                _logger.info("spans are sent to %s again; none was lost", sink.target)
            if sink.acknowledges:
                self._acknowledge(batch, outcome.rejected)
            return
        self._warn(outcome.reason, sink)
        if not outcome.retry:
            with self._changed:
                self.not_sent += batch.sampled
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

    def _warn(self, reason: str, sink: Sink | None = None) -> None:
        if not self._warned:
            self._warned = True
            target = sink.target if sink is not None else ""
            _logger.warning("%s", self._advice_line(reason, target))

    def _advice_line(self, reason: str, target: str) -> str:
        return f"spans cannot be sent{f' to {target}' if target else ''} ({reason}); {self._advice(target)}"
