"""The way of log records: a queue, the spool, the network where `OTEL_LOGS_EXPORTER` asks for it.

Beside `Drain`, and simpler: there is no sampler and no provider of the program's, which, if it has one,
gets its records from a handler of the program's own.
"""

from __future__ import annotations

import collections
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from otel_tf._guard import Guard
from otel_tf.telemetry._log_records import LogRecord, line, sdk_record
from otel_tf.telemetry._signals import LOGS
from otel_tf.telemetry._spool import LOGS_SUFFIX
from otel_tf.telemetry._values import clean

if TYPE_CHECKING:
    from otel_tf.telemetry._batch import Batch
    from otel_tf.telemetry._network import Limits
    from otel_tf.telemetry._resource import TaskResource
    from otel_tf.telemetry._shipper import Shipper
    from otel_tf.telemetry._spool import Spool

__all__ = ["Logs"]

#: Records that may wait for the flusher; beyond it the newest are dropped and counted.
_MAX_WAITING = 100_000
#: Records of one spool line.
_MAX_BATCH = 500

_guard = Guard("the logs of the telemetry pipeline")


class Logs:
    """Takes log records of this process; `run` writes them.

    Args:
        resource: This process's own resource.
        spool: Where lines are written; None where spooling is off.
        limits: How much waits for each destination, and travels at once.

    Attributes:
        dropped: Records that were lost: broken, or more than the flusher could keep up with.
    """

    def __init__(self, resource: TaskResource, spool: Spool | None, limits: Limits) -> None:
        self.dropped = 0
        self._resource = resource
        self._spool = spool
        self._limits = limits
        self._queue: collections.deque[tuple[Callable[[Any], LogRecord], Any]] = collections.deque()
        self._lock = threading.RLock()
        self._shippers: list[Shipper] = []

    def prepare(self) -> None:
        """Imports and sets up what the network needs, on the caller's thread."""
        from otel_tf.telemetry._shipper import Shipper
        from otel_tf.telemetry._sinks import configured

        self._shippers = [
            Shipper(
                make,
                limits=self._limits,
                acknowledge=lambda batch, rejected: None,
                advice=self._advice,
                unit=LOGS.unit,
            )
            for make in configured(os.environ, LOGS)
        ]

    def start(self) -> None:
        """Starts the shippers' threads."""
        for shipper in self._shippers:
            shipper.start()

    @property
    def wanted(self) -> bool:
        """Whether records go anywhere at all."""
        return self._spool is not None or bool(self._shippers)

    @property
    def sends(self) -> bool:
        """Whether there is a network to send to."""
        return bool(self._shippers)

    def send(self, records: Sequence[LogRecord]) -> None:
        """Hands records to the network alone: somebody else has spooled them."""
        batch = self._batch(records)
        for shipper in self._shippers:
            shipper.offer(batch)

    @property
    def waiting(self) -> bool:
        """Whether something was taken that is not spooled yet."""
        return bool(self._queue)

    @property
    def not_sent(self) -> int:
        """Records that were given up on the way to the network; the spool has them."""
        return sum(shipper.not_sent for shipper in self._shippers)

    def take(self, make: Callable[[Any], LogRecord], facts: Any) -> None:
        """Takes what a logging thread left behind, to be made a record later; under 1 µs, never raises.

        Args:
            make: Returns the record; called once, guarded, on the flusher's thread.
            facts: What it is called with.
        """
        if len(self._queue) >= _MAX_WAITING:
            self.dropped += 1
            return
        self._queue.append((make, facts))

    def run(self) -> None:
        """Spools what was taken and hands it to the shippers; never raises."""
        with _guard, self._lock:
            while self._queue:
                records = self._some()
                if records:
                    self._hand_over(records)

    def _within(self, timeout_s: float) -> bool:
        """Spools, unless another thread is stuck in it; returns whether all is written."""
        if not self._lock.acquire(timeout=max(timeout_s, 0.1)):
            return False
        try:
            self.run()
        finally:
            self._lock.release()
        return not self._queue and (self._spool is None or not self._spool.failed)

    def flush(self, timeout_s: float) -> bool:
        """Spools what was taken and waits until the network has tried all of it.

        Returns:
            Whether all of it was written and, where there is a network exporter, accepted.
        """
        deadline = time.monotonic() + timeout_s
        done = self._within(timeout_s)
        for shipper in self._shippers:
            done = shipper.flush(max(deadline - time.monotonic(), 0.0)) and done
        return done

    def stop(self) -> None:
        """Ends the shippers' threads."""
        for shipper in self._shippers:
            shipper.stop()

    def abandon(self) -> None:
        """In a fork's child: what waits, threads and connections are the parent's."""
        self._queue.clear()
        self.dropped = 0
        self._lock = threading.RLock()
        self._shippers = []

    def _some(self) -> list[LogRecord]:
        records: list[LogRecord] = []
        while self._queue and len(records) < _MAX_BATCH:
            make, facts = self._queue.popleft()
            try:
                records.append(make(facts))
            except Exception:
                self.dropped += 1
                with _guard:
                    raise
        # The training gets the interpreter in between.
        time.sleep(0)
        return records

    def _hand_over(self, records: Sequence[LogRecord]) -> None:
        if self._spool is not None:
            self._spool.write(LOGS_SUFFIX, line(self._resource, records))
        if self._shippers:
            self.send(records)

    def _batch(self, records: Sequence[LogRecord]) -> Batch:
        from otel_tf.telemetry._batch import Batch

        def sdk() -> list[Any]:
            from opentelemetry.sdk.resources import Resource

            resource = Resource(clean(self._resource.attributes), self._resource.schema_url)
            return [sdk_record(record, resource) for record in records]

        def payload() -> bytes:
            from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs

            return bytes(encode_logs(sdk()).SerializeToString())

        size = sum(len(record.body) + 500 for record in records)
        batch = Batch(len(records), len(records), b"", payload, sdk)
        batch.size = size
        return batch

    def _advice(self, _: str) -> str:
        if self._spool is None or self._spool.failed:
            return "training goes on; they are kept nowhere else"
        return f"training goes on, and all of them lie in {self._spool.directory}"
