"""A step that a loop has declared: `otel_tf.step`, a batch of Keras's `fit`."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from otel_tf.instrumentation.around import Instant
from otel_tf.instrumentation.stream import Stream
from otel_tf.telemetry import SpanError

__all__ = ["OpenStep", "PartOfStep", "is_end_of_data"]


class PartOfStep(NamedTuple):
    """A region of eager code in a step.

    Attributes:
        begun: The instant it began.
        end_mono_ns: When it ended.
        span_id: Its span's.
        parent: The span of the region around it; 0: the step's.
        name: Its name.
        error: What it failed with.
    """

    begun: Instant
    end_mono_ns: int
    span_id: int
    parent: int
    name: str
    error: SpanError | None


class OpenStep:
    """Between its begin and its end; training functions that run meanwhile are part of it.

    Attributes:
        outer: The instant it was declared, for the root.
        inner: The same for the worker's part.
        count: Steps in one run; None where only the counter can tell.
        number: Its number, where the loop says it.
        stream: Where its number comes from; else from the function that runs.
        whole: Whether the declared time is the step's; else it is that of the functions that ran.
        function: Name of the first training function that ran.
        first: The instant it began.
        last_mono_ns: Monotonic ns when the last one ended.
        mark: Its event in the profile, while one is taken.
        region: Span id of the region that is open in it, or 0.
        regions: Regions of eager code in it that have ended.
    """

    __slots__ = (
        "count",
        "first",
        "function",
        "inner",
        "last_mono_ns",
        "mark",
        "number",
        "outer",
        "region",
        "regions",
        "stream",
        "whole",
    )

    def __init__(
        self,
        outer: Instant,
        inner: Instant,
        *,
        count: int | None,
        number: int | None,
        stream: Stream | None,
        whole: bool,
        mark: Any = None,
    ) -> None:
        self.outer = outer
        self.inner = inner
        self.count = count
        self.number = number
        self.stream = stream
        self.whole = whole
        self.function: str | None = None
        self.first: Instant | None = None
        self.last_mono_ns = 0
        self.mark = mark
        self.region = 0
        self.regions: list[PartOfStep] = []

    def ran(self, begun: Instant, end_mono_ns: int, function: str | None, stream: Stream) -> None:
        """Notes that a training function ran, or failed."""
        if self.first is None:
            self.first = begun
            self.function = function
            if self.stream is None:
                self.stream = stream
        self.last_mono_ns = end_mono_ns


def is_end_of_data(error: BaseException) -> bool:
    """Returns whether a run ended for want of data: no failure, and no step."""
    return isinstance(error, StopIteration) or (
        isinstance(error, tf.errors.OutOfRangeError) and "End of sequence" in error.message
    )
