"""`otel_tf.step`: a step of a loop that no seam can see into."""

from __future__ import annotations

import operator
from types import TracebackType
from typing import SupportsIndex

from otel_tf._guard import Guard
from otel_tf.instrumentation.open_step import OpenStep, is_end_of_data
from otel_tf.instrumentation.steps import Steps

__all__ = ["DeclaredStep"]

_STEP = Guard("otel_tf.step")


class DeclaredStep:
    """A context manager around one step; whatever trains inside is the same step."""

    __slots__ = ("_number", "_opened", "_steps")

    def __init__(self, steps: Steps, number: SupportsIndex | None) -> None:
        self._steps = steps
        self._number = number
        self._opened: OpenStep | None = None

    def __enter__(self) -> None:
        with _STEP:
            number = None if self._number is None else operator.index(self._number)
            self._opened = self._steps.open(number=number, whole=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opened, self._opened = self._opened, None
        if opened is None:
            return
        with _STEP:
            if error is not None and opened.first is None and is_end_of_data(error):
                self._steps.abandon(opened)
            else:
                self._steps.close(opened, error)
