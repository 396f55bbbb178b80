"""What the loops around the steps of a thread have told us: one object for all seams of a process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from otel_tf.instrumentation.failure.call import FailedCall
    from otel_tf.instrumentation.open_step import OpenStep
    from otel_tf.instrumentation.parameter_server.closures import Attempt

__all__ = ["Around", "Instant", "Wait"]

#: (seq, monotonic ns, wall ns), from `Pipeline.now`.
Instant = tuple[int, int, int]


class Wait(NamedTuple):
    """A wait for data that the next step, or the one that is open, was held up by."""

    outer: Instant
    begun: Instant
    end_mono_ns: int


class Around(threading.local):
    """One thread's surroundings; the values here are what a new thread starts with.

    Attributes:
        epoch: The epoch its steps are part of.
        batch: Position of the next run in its epoch, counted from 0.
        count: Steps in the next run, where it is scheduled rather than run.
        open: The step that a loop has declared and not ended.
        waits: Waits for data that no step has claimed yet.
        others: Whether functions that do not train ran since the last wait.
        parent: Span id of the run-level span that is open, or 0.
        busy: Whether a tf.function or a session runs; what it calls is part of it.
        waiting: Whether an iterator is asked for an element.
        checkpointing: Whether variables are being saved or restored.
        told: ``id`` of the exception whose event is on a span already.
        attempt: The run of a closure that this thread is in, or that has failed in it last.
        failed: What is known of the call that raised the exception that is on its way.
    """

    epoch: int | None = None
    batch: int | None = None
    count: int = 1
    open: OpenStep | None = None
    waits: tuple[Wait, ...] = ()
    others: bool = False
    parent: int = 0
    busy: bool = False
    waiting: bool = False
    checkpointing: bool = False
    told: int = 0
    attempt: Attempt | None = None
    failed: FailedCall | None = None
