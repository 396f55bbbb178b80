"""The drain: from waiting records to lines of the spool and batches for the network."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from otel_tf._guard import Guard, is_strict
from otel_tf.telemetry._spool import TRACES_SUFFIX

if TYPE_CHECKING:
    from otel_tf.telemetry._batch import Batch, Shaper
    from otel_tf.telemetry._network import Network
    from otel_tf.telemetry._records import Record
    from otel_tf.telemetry._spool import Spool

__all__ = ["Drain"]

_guard = Guard("the telemetry pipeline")


class Drain:
    """Empties a queue of records; one thread at a time.

    Args:
        network: Says how records are shaped, and takes batches.
        spool: Where lines are written first; None where spooling is off.
        max_batch: Spans of one line.

    Attributes:
        queue: Where records wait; appending to it is all that a recording thread does.
        dropped: Records that were lost: broken, or too many for the queue.
    """

    def __init__(self, network: Network, spool: Spool | None, max_batch: int) -> None:
        self.queue: collections.deque[Record] = collections.deque()
        self.dropped = 0
        self._network = network
        self._spool = spool
        self._max_batch = max_batch
        # Re-entrant: a span processor of the program's may itself run instrumented code.
        self._lock = threading.RLock()

    def run(self) -> None:
        """Drains; never raises."""
        with _guard, self._lock:
            self._drain()

    def within(self, timeout_s: float) -> bool:
        """Drains, unless another thread is stuck in a drain; returns whether all is written.

        Args:
            timeout_s: The longest wait for the other thread, in s.
        """
        if not self._lock.acquire(timeout=max(timeout_s, 0.1)):
            return False
        try:
            with _guard:
                self._drain()
        finally:
            self._lock.release()
        return not self.queue and (self._spool is None or not self._spool.failed)

    def abandon(self) -> None:
        """In a fork's child: what waits is the parent's to write."""
        self.queue.clear()
        self.dropped = 0
        self._lock = threading.RLock()

    def _drain(self) -> None:
        shaper = self._network.shaper()
        queue = self.queue
        while queue:
            records: list[Record] = []
            with contextlib.suppress(IndexError):
                while len(records) < self._max_batch:
                    records.append(queue.popleft())
            try:
                batches = shaper.shape(records)
            except Exception:
                if is_strict():
                    raise
                self._salvage(shaper, records)
            else:
                self._hand_over(batches)

    def _salvage(self, shaper: Shaper, records: Sequence[Record]) -> None:
        """One of the records is broken: hands over the others one by one."""
        for record in records:
            with _guard:
                self._hand_over(shaper.shape([record]))
                continue
            self.dropped += 1

    def _hand_over(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            if self._spool is not None:
                batch.place = self._spool.write(TRACES_SUFFIX, batch.line)
                batch.line = b""
            self._network.offer(batch)
