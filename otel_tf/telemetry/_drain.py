"""The drain: from waiting records to lines of the spool and batches for the network."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from otel_tf._guard import Guard, is_strict
from otel_tf.telemetry._records import Record
from otel_tf.telemetry._spool import TRACES_SUFFIX

if TYPE_CHECKING:
    from otel_tf.telemetry._batch import Batch, Shaper
    from otel_tf.telemetry._network import Network
    from otel_tf.telemetry._spool import Spool

__all__ = ["Drain", "Later"]

#: What makes records, and what of; see `Pipeline.record_later`.
Later: TypeAlias = "tuple[Callable[[Any], Iterable[Record]], Any]"

#: What is made in one go, some 100 µs: then the training gets the interpreter.
_SLICE = 32

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
        self.queue: collections.deque[Record | Later] = collections.deque()
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
            records = self._take()
            if not records:
                continue
            try:
                batches = shaper.shape(records)
            except Exception:
                if is_strict():
                    raise
                self._salvage(shaper, records)
            else:
                self._hand_over(batches)

    def _take(self) -> list[Record]:
        """Returns the next records, made where they are still to be made."""
        queue, records = self.queue, list[Record]()
        for number in range(1, self._max_batch + 1):
            try:
                taken = queue.popleft()
            except IndexError:
                break
            if isinstance(taken, Record):
                records.append(taken)
                continue
            make, facts = taken
            try:
                records += make(facts)
            except Exception:
                self.dropped += 1
                with _guard:
                    raise
            if number % _SLICE == 0:
                time.sleep(0)
        return records

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
