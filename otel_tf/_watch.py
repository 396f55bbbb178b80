"""Watching tensors: what of it a program may call whether or not it is instrumented."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from otel_tf.diagnostics.summary import TensorSummary

__all__ = ["watch", "watched"]

Tensor = TypeVar("Tensor")


def watch(name: str, tensor: Tensor, histogram: bool = False, keep: int = 8) -> Tensor:
    """Keeps the last summaries of a tensor where it lives: ``loss = otel_tf.watch("loss", loss)``.

    Use what it returns in place of the tensor, so that a step that fails further on has its own summary too.
    Nothing leaves the device until a step fails, the tensor has NaN or infinite elements, or `watched` asks.
    Works eagerly and in `tf.function`, on each replica and each worker, compiled by XLA or not. Where nothing
    is instrumented, and in the graphs of TensorFlow 1, it returns the tensor as it is.

    Args:
        name: What the summaries are found by.
        tensor: Of numbers, of any shape.
        histogram: Whether to count elements by magnitude, too.
        keep: How many summaries.
    """
    attach = sys.modules.get("otel_tf.instrumentation.attach")
    if attach is None:
        return tensor
    same: Tensor = attach.watch(name, tensor, histogram=histogram, keep=keep)
    return same


# TensorFlow's autograph leaves alone what bears this mark of its own; it would rewrite what it can see into.
watch.autograph_info__ = {}  # type: ignore[attr-defined]


def watched(timeout_s: float = 2.0) -> dict[str, list[TensorSummary]]:
    """Returns the last summaries of each watched tensor by name, of all replicas and workers, oldest first.

    Args:
        timeout_s: Seconds to wait at most, for workers may be far away, or gone.
    """
    attach = sys.modules.get("otel_tf.instrumentation.attach")
    if attach is None:
        return {}
    found: dict[str, list[TensorSummary]] = attach.watched(timeout_s)
    return found
