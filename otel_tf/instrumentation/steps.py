"""Numbering the training steps of this process: one core for every way in.

`FunctionCallSeam`, the Keras and session seams and `otel_tf.step` find out where a step begins and ends;
which number it has is decided here, on the training thread, and nothing else is done there.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from typing import Any

from otel_tf import ids
from otel_tf.identity import Identity
from otel_tf.instrumentation.around import Around, Instant
from otel_tf.instrumentation.errors import describe_error
from otel_tf.instrumentation.failure.call import SpoiledStep
from otel_tf.instrumentation.failure.capture import StateCapture
from otel_tf.instrumentation.open_step import OpenStep, PartOfStep
from otel_tf.instrumentation.profiler import link
from otel_tf.instrumentation.step_spans import StepFacts, StepSpans
from otel_tf.instrumentation.stream import Stream, plain_variable
from otel_tf.instrumentation.watching.notices import Notices
from otel_tf.instrumentation.watching.watches import Watches
from otel_tf.telemetry import Pipeline, SpanError

__all__ = ["Steps"]


#: Steps whose durations are kept until somebody looks.
_MOST_DURATIONS = 1_000


class Steps:
    """The steps of a synchronous strategy, or of no strategy: `step`, and `train_step` under it.

    The chief writes the root `step`; every worker's `train_step` hangs under the root's id, which all of
    them compute from the run id and the number alone.

    Attributes:
        around: What the loops around the steps have told us, by thread.
        spans: Makes the spans.
        at: Number of the last step of this process; None before the first.
        watches: What `otel_tf.watch` keeps.
        notices: What is noticed of it in this process.
        running: What is in flight, by thread: `stream` and `count` of each are known, of some `number`.
        durations_ns: How long the last steps took; for who wants to know whether they have become slow.
    """

    def __init__(self, pipeline: Pipeline, identity: Identity) -> None:
        self.around = Around()
        self.spans = StepSpans(pipeline, identity)
        self._pipeline = pipeline
        self._task = identity.task
        self._lock = threading.Lock()
        self._streams: dict[int | None, Stream] = {}
        self._local = 0
        self._told: weakref.WeakSet[BaseException] = weakref.WeakSet()
        self.watches = Watches(pipeline)
        self._capture = StateCapture(pipeline, identity.task, self.watches)
        self.spans.notices = self.notices = Notices(self.watches, pipeline, identity.task)
        self.at: int | None = None
        self.running: dict[int, Any] = {}
        self.durations_ns: deque[int] = deque(maxlen=_MOST_DURATIONS)
        self._name_incarnation()
        _all_steps.add(self)

    # -- numbers -----------------------------------------------------------------------------------------

    def stream_of(self, counter: Any | None) -> Stream:
        """Returns the stream of a variable that counts steps, or the one of all that have none."""
        counter = None if counter is None else plain_variable(counter)
        key = None if counter is None else id(counter)
        with self._lock:
            stream = self._streams.get(key)
            if stream is None or stream.counter is not counter:
                index = max((each.index for each in self._streams.values()), default=-1) + 1
                stream = self._streams[key] = Stream(index, counter)
            return stream

    def only_stream(self) -> Stream | None:
        """Returns the stream where there is only one; None where it cannot be known which."""
        try:
            (stream,) = self._streams.values()
        except (ValueError, RuntimeError):
            return None
        return stream

    @property
    def local(self) -> int:
        """Steps of this process so far."""
        return self._local

    def known_stream(self, counter: Any | None) -> Stream | None:
        """Returns the stream of a variable that has counted steps; makes none."""
        counter = None if counter is None else plain_variable(counter)
        stream = self._streams.get(None if counter is None else id(counter))
        return None if stream is None or stream.counter is not counter else stream

    def synchronise(self, stream: Stream) -> None:
        """Asks the counter before a loop begins: training may go on from a checkpoint.

        Never back: a counter that did not advance with every step, as under loss scaling, must not make
        two steps of one number.
        """
        told = stream.read()
        if told is not None:
            with self._lock:
                stream.number = max(told, stream.number or 0)
                stream.stale = False

    def set(self, stream: Stream, number: int) -> None:
        """Sets the number of the last step applied, as a session was asked for it."""
        with self._lock:
            self._move(stream, number)

    def _move(self, stream: Stream, number: int) -> None:
        if stream.number is not None and number < stream.number:
            stream.rewound_from = stream.number
        if self.at == stream.number:
            self.at = number
        stream.number = number
        stream.stale = False

    def restored(self) -> tuple[int | None, int | None]:
        """Asks all counters after variables were restored.

        Returns:
            The number of the last step before, and the number that training goes on from, where known.
        """
        before = self.at
        for stream in list(self._streams.values()):
            told = stream.read()
            if told is None or stream.number is None:
                continue
            with self._lock:
                self._move(stream, told)
        return before, self.at

    # -- steps that a loop declares ----------------------------------------------------------------------

    def open(
        self,
        *,
        number: int | None = None,
        stream: Stream | None = None,
        count: int | None = 1,
        whole: bool = False,
    ) -> OpenStep | None:
        """Declares that a step begins in this thread; None where one is open already: it is the same one.

        Args:
            number: Its number, where the loop says it.
            stream: Where its number comes from; default: the function that runs.
            count: Steps in one run; None where only the counter can tell.
            whole: Whether all the time until `close` is the step's.
        """
        around = self.around
        if around.open is not None:
            return None
        around.failed = None
        if not whole:
            # What was waited for before is not its own.
            around.waits = ()
        now = self._pipeline.now
        opened = around.open = OpenStep(
            now(),
            now(),
            count=count,
            number=number,
            stream=stream,
            whole=whole,
            mark=link.begin_step() if link.enabled() else None,
        )
        self.running[threading.get_ident()] = opened
        return opened

    def close(self, opened: OpenStep, error: BaseException | None = None) -> None:
        """Ends a step that was declared, and writes it."""
        now_ns = time.monotonic_ns()
        around = self.around
        around.open = None
        self.running.pop(threading.get_ident(), None)
        begun = opened.first or opened.inner
        end_ns = opened.last_mono_ns or now_ns
        root = opened.outer if opened.whole else (opened.outer[0], *begun[1:])
        self.finish(
            root,
            begun,
            end_ns,
            root_end_mono_ns=now_ns if opened.whole else end_ns,
            stream=opened.stream,
            function=opened.function,
            count=opened.count,
            at_least=0 if opened.count is None else 1,
            number=opened.number,
            error=error,
            mark=opened.mark,
            regions=tuple(opened.regions),
        )

    def abandon(self, opened: OpenStep) -> None:
        """Forgets a step that was declared: there was no data for it."""
        around = self.around
        if around.open is opened:
            around.open = None
            self.running.pop(threading.get_ident(), None)
        around.waits = ()
        if opened.mark is not None:
            link.drop(opened.mark)

    # -- steps that ran ----------------------------------------------------------------------------------

    def finish(
        self,
        root: Instant,
        begun: Instant,
        end_mono_ns: int,
        *,
        root_end_mono_ns: int | None = None,
        stream: Stream | None = None,
        function: str | None = None,
        count: int | None = 1,
        at_least: int = 1,
        number: int | None = None,
        error: BaseException | None = None,
        mark: Any = None,
        regions: tuple[PartOfStep, ...] = (),
    ) -> int:
        """Counts a step that has ended and leaves it to be written.

        Args:
            root: The instant it began, for the root.
            begun: The same for the worker's part.
            end_mono_ns: Monotonic ns when it ended.
            root_end_mono_ns: When the root ended; default: the same.
            stream: Where its number comes from; default: the one of all that have no counter.
            function: Name of what ran.
            count: Steps in one run of it (Keras's ``steps_per_execution``), the number is the last one's;
                None: ask the counter.
            at_least: The least that the counter is believed to have advanced; 0: nothing may have run.
            number: Its number where the loop says it; else it is counted.
            error: What it failed with. A failed step does not count: its number may be given again. One
                that is merely spoiled does.
            mark: Its event in the profile, to be ended, while one is taken.
            regions: Regions of eager code in it.

        Returns:
            Steps in this run; 0 where nothing ran, and nothing was written.
        """
        if stream is None:
            stream = self.stream_of(None)
        told = stream.read() if number is None and (count is None or stream.stale) else None
        if told is None and count is None:
            count = 1
        counts = error is None or isinstance(error, SpoiledStep)
        with self._lock:
            before = stream.number or 0
            known = stream.number is not None
            if not counts:
                step, steps = max(told or 0, before) + 1 if number is None else number, count or 1
                stream.stale = stream.counter is not None
            elif number is not None:
                step, steps = stream.number, stream.stale = number, stream.counter is not None
                steps = count or 1
            else:
                step = max(told or 0, before + (at_least if count is None else count))
                steps = count if count is not None else step - before if known else max(at_least, 1)
                if steps == 0:
                    if mark is not None:
                        link.drop(mark)
                    return 0
                stream.number = step
                stream.stale = False
            self._local += steps
            local = self._local
            self.at = step if counts else self.at
            rewound_from, stream.rewound_from = stream.rewound_from, None
        around = self.around
        waits, around.waits = around.waits, ()
        facts = StepFacts(
            step,
            local,
            stream.index,
            steps,
            function,
            around.epoch,
            around.batch,
            rewound_from,
            root,
            end_mono_ns if root_end_mono_ns is None else root_end_mono_ns,
            begun,
            end_mono_ns,
            waits,
            None if error is None else self.problem(error, step),
            self.incarnation,
            regions,
            counts,
        )
        if mark is not None:
            self.spans.link(mark, facts)
        self.durations_ns.append(end_mono_ns - begun[1])
        self._pipeline.record_later(self.spans.make, facts)
        if error is not None:
            self._pipeline.hurry()
        return steps

    def ran(
        self,
        root: Instant,
        begun: Instant,
        end_mono_ns: int,
        stream: Stream,
        function: str,
        count: int | None,
        mark: Any,
    ) -> int:
        """Does what `finish` does; by the shortest way where a step is like the one before it.

        Most are, and each line here is run by the training thread with cold caches.
        """
        if count is None or stream.stale or stream.number is None or mark is not None:
            return self.finish(
                root, begun, end_mono_ns, stream=stream, function=function, count=count, mark=mark
            )
        with self._lock:
            stream.number = self.at = step = stream.number + count
            self._local = local = self._local + count
            rewound_from, stream.rewound_from = stream.rewound_from, None
        around = self.around
        waits, around.waits = around.waits, ()
        facts = StepFacts(
            step,
            local,
            stream.index,
            count,
            function,
            around.epoch,
            around.batch,
            rewound_from,
            root,
            end_mono_ns,
            begun,
            end_mono_ns,
            waits,
            None,
            self.incarnation,
        )
        self.durations_ns.append(end_mono_ns - begun[1])
        self._pipeline.record_later(self.spans.make, facts)
        return count

    def problem(self, error: BaseException, step: int | None = None) -> SpanError:
        """Returns the error for the innermost span it happened in, and remembers that it is told.

        Where a seam left on `around` what it knows of the call that failed, its tensors are looked at.

        Args:
            error: The exception.
            step: Number of the step that failed, where one did.
        """
        self.told(error)
        call, self.around.failed = self.around.failed, None
        if call is None or call.error is not error:
            return describe_error(error)
        described = error.described() if isinstance(error, SpoiledStep) else describe_error(error, call.graph)
        return self._capture.add(described, call, step) if isinstance(error, Exception) else described

    def told(self, error: BaseException) -> None:
        """Remembers that the event of an exception is on a span."""
        try:
            self._told.add(error)
        except TypeError:  # Python's own exceptions can only be remembered by their place in memory
            self.around.told = id(error)

    def is_told(self, error: BaseException) -> bool:
        """Returns whether the event of an exception is on a span already, of whatever thread."""
        return error in self._told or self.around.told == id(error)

    def _name_incarnation(self) -> None:
        # Tells this process from an earlier one of the same task, and from the one it was forked from.
        self.incarnation = f"{self._task}-{ids.random_span_id():016x}"

    def _after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        self.running = {}
        self._name_incarnation()


_all_steps: weakref.WeakSet[Steps] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for steps in list(_all_steps):
        steps._after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
