"""Where Keras keeps the count of a model's steps."""

from __future__ import annotations

from typing import Any

__all__ = ["counter_of"]


def counter_of(model: Any) -> Any | None:
    """Returns the variable that counts a model's steps, if it is there yet.

    It is the raw one: under gradient accumulation the optimizer's ``iterations`` is this one, divided.
    """
    optimizer = getattr(model, "optimizer", None)
    # Loss scaling wraps the optimizer that counts.
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    return getattr(optimizer, "_iterations", None)
