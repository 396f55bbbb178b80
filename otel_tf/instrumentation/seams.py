"""Wrapping functions of TensorFlow so that the identical originals can be put back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import wrapt

from otel_tf.errors import DidNotInstrument

__all__ = ["Seam", "Seams"]

_logger = logging.getLogger(__name__)

#: ``wrapper(wrapped, instance, args, kwargs)``, wrapt's convention.
Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]


class Seam:
    """One patched place in TensorFlow or Keras; a subclass a file."""

    def attach(self, seams: Seams) -> None:
        """Wraps what is to be wrapped.

        Raises:
            DidNotInstrument: The installed version is not one we know.
        """
        raise NotImplementedError

    def settle(self) -> None:
        """Writes the spans that are still in the making elsewhere; runs on the pipeline's thread."""

    def detach(self) -> None:
        """Forgets what was left on the user's objects; the originals are back already."""


class Seams:
    """The functions wrapped so far. Signature, name and documentation of each stay visible (wrapt)."""

    def __init__(self) -> None:
        self._undos: list[Callable[[], None]] = []

    def wrap(self, owner: Any, name: str, wrapper: Wrapper) -> None:
        """Wraps attribute ``name`` of a class or module.

        Raises:
            DidNotInstrument: ``owner`` itself has no such attribute, so this TensorFlow is not one we know.
        """
        original = vars(owner).get(name)
        if original is None:
            where = f"{getattr(owner, '__module__', '')}.{owner.__name__}".lstrip(".")
            raise DidNotInstrument(f"this TensorFlow has no {where}.{name}")
        attached = True
        proxy = wrapt.FunctionWrapper(original, wrapper, enabled=lambda: attached)

        def undo() -> None:
            nonlocal attached
            attached = False
            if vars(owner).get(name) is proxy:
                setattr(owner, name, original)
            else:
                # Somebody wrapped it after us; ours stays underneath and only passes through.
                _logger.debug("%s.%s was wrapped again by others; left in place, switched off", owner, name)

        setattr(owner, name, proxy)
        self._undos.append(undo)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Replaces a plain value of a class or module."""
        original = vars(owner)[name]

        def undo() -> None:
            if vars(owner).get(name) is value:
                setattr(owner, name, original)

        setattr(owner, name, value)
        self._undos.append(undo)

    def undo(self) -> None:
        """Puts every original back, last wrapped first."""
        while self._undos:
            self._undos.pop()()
