"""Capturing stderr in a program that does not mention us: when, and only when, TensorFlow is imported."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["capture_on_import"]


def capture_on_import(module: str = "tensorflow") -> Callable[[], None]:
    """Captures stderr as soon as ``module`` is about to be imported; a program that never does pays nothing.

    Returns:
        What calls it off.
    """

    class Finder:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            if name == module:
                call_off()
                from otel_tf._guard import Guard
                from otel_tf.logs.native import capture_native_logs

                with Guard("capturing stderr"):
                    capture_native_logs(wanted=False)

    finder = Finder()

    def call_off() -> None:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(finder)

    if module not in sys.modules:
        sys.meta_path.insert(0, finder)
    return call_off
