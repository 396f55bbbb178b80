"""The seam in `tf.summary`: the numbers that a program writes for itself, on its steps.

Nothing is put into the program's graphs and no summary is looked at while it is written: whether eager or
in a `tf.function`, it ends in the writer's own file, and that is read, by a thread of the background.
"""

from __future__ import annotations

import bisect
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.ops import gen_summary_ops

from otel_tf import ids, semconv
from otel_tf._guard import Guard
from otel_tf.identity import Identity
from otel_tf.instrumentation.around import Instant
from otel_tf.instrumentation.event_file import EventFile, Summary
from otel_tf.instrumentation.seams import Seam, Seams
from otel_tf.instrumentation.steps import Steps
from otel_tf.telemetry import Pipeline, Record, SpanEvent

__all__ = ["SummarySeam"]

Call = Callable[..., Any]

_INTERVAL_S = 1.0
#: Records of one file that are read in one go.
_MOST_RECORDS = 5_000
#: As many goes as reading to the end may take.
_MOST_GOES = 20
_MOST_FOLDERS = 64
#: Summaries of one step; those beyond are counted.
_MOST_IN_STEP = 64
#: Steps that summaries may still belong to: a writer holds ten back, or two minutes of them.
_MOST_STEPS = 10_000
_MOST_PENDING = 20_000

_MAKING = Guard("looking at a new summary writer")
_READING = Guard("reading summaries")


class _Step:
    """A step whose spans are written, and how many summaries it has got."""

    __slots__ = ("begun_ns", "end_ns", "mono_ns", "number", "span_id", "summaries", "trace_id")

    def __init__(self, number: int, begun: Instant, end_mono_ns: int, trace_id: int, span_id: int) -> None:
        self.number = number
        self.mono_ns, self.begun_ns = begun[1:]
        self.end_ns = self.begun_ns + end_mono_ns - self.mono_ns
        self.trace_id = trace_id
        self.span_id = span_id
        self.summaries = 0


class _Found(NamedTuple):
    summaries: list[Summary]
    last: bool


class SummarySeam(Seam):
    """Follows the files of the summary writers that are made while it is attached."""

    def __init__(self, pipeline: Pipeline, identity: Identity, steps: Steps) -> None:
        self._pipeline = pipeline
        self._running = steps.running
        self._follow = steps.spans.follow
        self._layout = pipeline.layout(
            semconv.SPAN_SUMMARY,
            fields=(semconv.MONOTONIC_NS, semconv.GLOBAL_STEP, semconv.SUMMARY_LEFT_OUT),
            constants={semconv.WORKER: identity.task},
        )
        self._pid = os.getpid()
        self._lock = threading.Lock()
        #: By place: the folder as the program called it.
        self._folders: dict[Path, str] = {}
        self._writers: list[weakref.ref[Any]] = []
        self._files: dict[Path, EventFile] = {}
        self._cancel: Callable[[], None] | None = None
        # The rest is the flusher's alone.
        self._steps: deque[_Step] = deque(maxlen=_MOST_STEPS)
        self._pending: deque[Summary] = deque(maxlen=_MOST_PENDING)

    def attach(self, seams: Seams) -> None:
        """Wraps the making of writers.

        Raises:
            DidNotInstrument: This TensorFlow makes them in another way.
        """
        seams.wrap(gen_summary_ops, "create_summary_file_writer", self._made)
        self._follow(self._step)
        self._cancel = self._pipeline.every(_INTERVAL_S, self._look)

    def settle(self) -> None:
        """Lets the writers write what they hold back, and reads to the end."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            writers = [writer() for writer in self._writers]
        self._look()
        for writer in writers:
            # (Without a file here it may be on another machine, which is not to be waited for.)
            if writer is not None and self._files:
                try:
                    gen_summary_ops.flush_summary_writer(writer)
                except tf.errors.OpError:  # closed by the program
                    continue
        # Whether a step is in flight is asked first: what it has written must wait for it.
        last = not self._running
        for _ in range(_MOST_GOES):
            if not self._look():
                break
        self._pipeline.record_later(self._make, _Found([], last))

    def detach(self) -> None:
        """Reads no more."""
        if self._cancel is not None:
            self._cancel()

    # -- in the program's threads -------------------------------------------------------------------------

    def _made(self, wrapped: Call, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = wrapped(*args, **kwargs)
        with _MAKING:
            self._remember(*args, **kwargs)
        return result

    def _remember(self, writer: Any, logdir: Any, *_: Any, **__: Any) -> None:
        if not hasattr(writer, "numpy"):
            return  # a graph of TensorFlow 1
        folder = os.fsdecode(logdir.numpy())
        with self._lock:
            if len(self._folders) < _MOST_FOLDERS:
                self._folders[Path(folder).absolute()] = folder
                alive = [other for other in self._writers if other() is not None]
                self._writers = [*alive, weakref.ref(writer)]

    # -- in the background --------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Reads on in all files; returns whether there was anything."""
        found = list[Summary]()
        with _READING:
            with self._lock:
                folders = list(self._folders.items())
            for place, folder in folders:
                # A writer names its process; the files of others beside it are theirs to tell.
                for path in place.glob(f"events.out.tfevents.*.{self._pid}.*"):
                    file = self._files.get(path)
                    if file is None:
                        file = self._files[path] = EventFile(path, folder)
                    found += file.read(_MOST_RECORDS)
            if found:
                self._pipeline.record_later(self._make, _Found(found, last=False))
        return bool(found)

    # -- in the flusher's thread --------------------------------------------------------------------------

    def _step(self, number: int, begun: Instant, end_mono_ns: int, trace_id: int, span_id: int) -> None:
        self._steps.append(_Step(number, begun, end_mono_ns, trace_id, span_id))

    def _make(self, found: _Found) -> list[Record]:
        """Returns the spans of the summaries whose step is known: the last that began before them."""
        self._pending += found.summaries
        if not self._pending or not self._steps:
            return []
        steps = sorted(self._steps, key=lambda step: step.begun_ns)
        by_step: dict[int, list[Summary]] = {}
        waiting = list[Summary]()
        for summary in self._pending:
            at = bisect.bisect_right(steps, summary.time_ns, key=lambda step: step.begun_ns) - 1
            if at == len(steps) - 1 and summary.time_ns > steps[at].end_ns and not found.last:
                # It may have been written in a step that still runs.
                waiting.append(summary)
            elif at >= 0:
                by_step.setdefault(at, []).append(summary)
        self._pending.clear()
        self._pending += waiting
        return [self._record(steps[at], summaries) for at, summaries in by_step.items()]

    def _record(self, step: _Step, summaries: list[Summary]) -> Record:
        kept = summaries[: max(_MOST_IN_STEP - step.summaries, 0)]
        step.summaries += len(kept)
        # The span lies in its step; the times of its events are their own.
        start_ns, end_ns = (
            min(max(summary.time_ns, step.begun_ns), step.end_ns) for summary in (summaries[0], summaries[-1])
        )
        return Record(
            self._layout,
            step.trace_id,
            ids.random_span_id(),
            step.span_id,
            start_ns,
            max(start_ns, end_ns),
            (step.mono_ns + start_ns - step.begun_ns, step.number, len(summaries) - len(kept) or None),
            None,
            (),
            tuple(_event(summary) for summary in kept),
        )


def _event(summary: Summary) -> SpanEvent:
    given: dict[str, Any] = {
        semconv.SUMMARY_TAG: summary.tag,
        semconv.SUMMARY_STEP: summary.step,
        semconv.SUMMARY_VALUE: summary.value,
        semconv.SUMMARY_BUCKETS: summary.buckets,
        semconv.SUMMARY_LOGDIR: summary.folder,
    }
    name = semconv.EVENT_SCALAR if summary.buckets is None else semconv.EVENT_HISTOGRAM
    return SpanEvent(name, summary.time_ns, {key: value for key, value in given.items() if value is not None})
