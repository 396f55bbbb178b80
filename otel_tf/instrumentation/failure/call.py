"""What a seam knows of the call that failed in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from otel_tf import semconv
from otel_tf.telemetry import SpanError

__all__ = ["FailedCall", "Named", "SpoiledStep"]


class SpoiledStep(FloatingPointError):
    """Nobody raises it: a step that was taken, and whose result ends the training.

    Args:
        text: What is wrong.
        value: The number that is.
    """

    def __init__(self, text: str, value: str) -> None:
        super().__init__(text)
        self._value = value

    def described(self) -> SpanError:
        """Returns it as the error of a span."""
        attributes = {
            semconv.ERROR_KIND: "loss",
            semconv.ERROR_TEXT: str(self),
            semconv.ERROR_VALUES: [self._value],
        }
        return SpanError("LOSS_NOT_FINITE", str(self), None, attributes=attributes)


class Named(NamedTuple):
    """A tensor that can be looked at.

    Attributes:
        group: What it is to the step; see `otel_tf.diagnostics.summary.TensorSummary`.
        name: Its name.
        read: Returns it, as an eager tensor or a numpy array.
        device: Where it lives, if that is known before it is read.
        shape: Its shape, likewise.
        dtype: Its type, likewise.
    """

    group: str
    name: str
    read: Callable[[], Any]
    device: str | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None


@dataclasses.dataclass(slots=True)
class FailedCall:
    """A run that raised.

    Attributes:
        error: What it raised.
        graph: What ran.
        arguments: Its inputs, as many as were given, in the order of the graph's.
        device: The task it ran on, if not this one.
        optimizer: Keras's optimizer, whose variables are named as such.
        tensors: Where its tensors are from, if not from the graph.
    """

    error: BaseException
    graph: Any = None
    arguments: Sequence[Any] = ()
    device: str | None = None
    optimizer: Any = None
    tensors: Callable[[], Iterator[Named]] | None = None
