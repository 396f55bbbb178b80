"""What was watched, on the span of the step in which something was wrong with it, and as a metric."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from otel_tf import semconv
from otel_tf._guard import Guard
from otel_tf.instrumentation.watching.watches import Kept, Watches
from otel_tf.telemetry import Pipeline, SpanEvent

__all__ = ["Notices", "event_of"]

_logger = logging.getLogger("otel_tf")

#: How often rings are asked whether anything is wrong.
_INTERVAL_NS = 100_000_000
#: A step's times and the stamps of its graph are rounded apart by less.
_TOLERANCE_NS = 2_000
_LONGEST = 16_384
_MOST_PENDING = 100

_LOOKING = Guard("looking at watched tensors")


def event_of(kept: Kept) -> SpanEvent:
    """Returns the event of one ring: its summaries as JSON text, the oldest first."""
    rows = [
        {
            key: value
            for key, value in one.as_json().items()
            if key not in ("name", "group", "device", "shape", "dtype")
        }
        for one in kept.summaries
    ]
    text = json.dumps(rows, separators=(",", ":"))
    while len(text) > _LONGEST and len(rows) > 1:
        rows = rows[1:]
        text = json.dumps(rows, separators=(",", ":"))
    last = kept.summaries[-1]
    given = {
        semconv.TENSOR_NAME: kept.name,
        semconv.TENSOR_DEVICE: kept.device,
        semconv.TENSOR_DTYPE: last.dtype,
        semconv.TENSOR_SHAPE: None if last.shape is None else list(last.shape),
        semconv.WATCH_SUMMARIES: text,
    }
    return SpanEvent(
        semconv.EVENT_WATCH, 0, {key: value for key, value in given.items() if value is not None}
    )


class _Measured(NamedTuple):
    kept: Sequence[Kept]
    worker: str


class Notices:
    """Looks at the rings of one task now and then, while its steps are written."""

    def __init__(self, watches: Watches, pipeline: Pipeline, worker: str, task: str | None = None) -> None:
        self._watches = watches
        self._pipeline = pipeline
        self._worker = worker
        self._task = task
        self._lock = threading.Lock()
        self._pending: list[Kept] = []
        self._next_ns = 0
        #: The last run that was measured, by ring and device.
        self._measured: dict[tuple[str, str], int] = {}
        _all.add(self)

    def of_step(self, end_ns: int) -> tuple[SpanEvent, ...]:
        """Looks, and returns the events for a step that is written; see `taken`."""
        if not self._watches.active:
            return ()
        with _LOOKING:
            self.look()
        return self.taken(end_ns)

    def taken(self, end_ns: int) -> tuple[SpanEvent, ...]:
        """Returns the events for a step that is written, of what was seen so far; each once.

        A tensor that went bad is noticed within a flush; its event is on the step that the stamp in the graph
        belongs to, or, under XLA, which has no stamps, on the one that is written first.

        Args:
            end_ns: When the step ended, by the wall clock of its task.
        """
        if not self._pending:
            return ()
        found = []
        with self._lock:
            for kept in list(self._pending):
                first = next((one.time_ns for one in kept.summaries if one.spoiled and one.time_ns), None)
                if first is None or first <= end_ns + _TOLERANCE_NS:
                    self._pending.remove(kept)
                    found.append(event_of(kept))
        return tuple(found)

    def of_all(self) -> tuple[SpanEvent, ...]:
        """Returns the events of all rings of this process, for a step that is worth it."""
        if not self._watches.active:
            return ()
        with _LOOKING:
            return tuple(event_of(kept) for kept in self._watches.kept(self._task))
        return ()

    def look(self) -> None:
        """Asks the rings, if it is time to.

        Raises:
            tf.errors.OpError: The task is gone.
        """
        now_ns = time.monotonic_ns()
        if not self._watches.active or now_ns < self._next_ns:
            return
        self._next_ns = now_ns + _INTERVAL_NS
        spoiled = self._watches.spoiled(self._task)
        if not spoiled:
            return
        with self._lock:
            self._pending = (self._pending + spoiled)[-_MOST_PENDING:]
        for kept in spoiled:
            _logger.warning(
                "the watched tensor %s has NaN or infinite elements, on %s", kept.name, kept.device
            )
        self.measure(spoiled)

    def measure(self, kept: Sequence[Kept]) -> None:
        """Leaves the means of what was read to be recorded as a metric, each once."""
        self._pipeline.record_later(self._record, _Measured(kept, self._worker))

    def _record(self, measured: _Measured) -> tuple[()]:
        for kept in measured.kept:
            place = (kept.ring, kept.device)
            last = self._measured.get(place, 0)
            attributes: dict[str, Any] = {
                semconv.TENSOR_NAME: kept.name,
                semconv.WORKER: measured.worker,
            }
            for one in kept.summaries:
                if one.mean is not None and (one.run or 0) > last:
                    self._pipeline.metrics.watch_value.record(one.mean, attributes)
            self._measured[place] = max([last, *(one.run or 0 for one in kept.summaries)])
        return ()

    def _after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        self._pending = []


_all: weakref.WeakSet[Notices] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for notices in list(_all):
        notices._after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
