"""The detail of the last steps, held back until one of them is worth it.

Waits for data that are too short for a span are noise, as long as steps are well. When one fails or takes
much longer than those before, they are what tells the last steps apart.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from otel_tf.instrumentation.around import Wait

if TYPE_CHECKING:
    from otel_tf.instrumentation.step_spans import StepFacts

__all__ = ["FlightRecorder", "Held"]

#: How much longer than usual a slow step takes: so many times, and so much at the least.
_SLOW = 3.0
_AT_LEAST_NS = 1_000_000
#: Steps that say what is usual, and how many of them there must be.
_BEFORE = 100
_ENOUGH = 20
#: So often what is usual is found out anew.
_EVERY = 10


class Held(NamedTuple):
    """What is held back of a step.

    Attributes:
        facts: The step.
        waits: Its waits for data that are too short for a span.
        trace_id: Of its spans.
        root_id: Its root's.
        own_id: Its `train_step`'s.
    """

    facts: StepFacts
    waits: tuple[Wait, ...]
    trace_id: int
    root_id: int
    own_id: int


class FlightRecorder:
    """Holds the last steps back; for one thread.

    Args:
        keep: How many.
    """

    def __init__(self, keep: int) -> None:
        self._held: deque[Held] = deque(maxlen=keep)
        self._durations_ns: deque[int] = deque(maxlen=_BEFORE)
        self._usual_ns = 0.0
        self._until_next = _ENOUGH

    def slowdown(self, duration_ns: int) -> float | None:
        """Takes how long a step took; returns how many times the usual that is, where it is slow.

        Args:
            duration_ns: Of the step and of its waits for data.
        """
        if not self._held.maxlen:
            return None
        usual_ns = self._usual_ns
        self._durations_ns.append(duration_ns)
        self._until_next -= 1
        if self._until_next <= 0:
            self._until_next = _EVERY
            self._usual_ns = statistics.median(self._durations_ns)
        if usual_ns and duration_ns > max(_SLOW * usual_ns, usual_ns + _AT_LEAST_NS):
            return duration_ns / usual_ns
        return None

    def hold(self, held: Held, *, write: bool) -> list[Held]:
        """Holds a step back.

        Args:
            held: The step.
            write: Whether it failed or was slow.

        Returns:
            What is to be written now, the oldest first: nothing, or all that was held back, and the step.
        """
        self._held.append(held)
        if not write:
            return []
        written = [each for each in self._held if each.waits]
        self._held.clear()
        return written
