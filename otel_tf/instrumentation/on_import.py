"""Instrumenting a program that does not mention us: when, and only when, it imports TensorFlow."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import wrapt

from otel_tf._guard import Guard
from otel_tf.errors import OtelTfError

__all__ = ["instrument_on_import"]

_logger = logging.getLogger("otel_tf")


def instrument_on_import(**arguments: Any) -> Callable[[], None]:
    """Calls `otel_tf.instrument` right after TensorFlow is imported; at once where it is already.

    Nobody asked for us in the program: what cannot be instrumented is said in one line, and it runs on.

    Args:
        **arguments: For `otel_tf.instrument`.

    Returns:
        What calls it off, where TensorFlow is not imported yet.
    """
    wanted = True

    def attach(_: Any) -> None:
        if not wanted:
            return
        with Guard("instrumenting an import of TensorFlow"):
            from otel_tf.instrumentation.attach import instrument

            try:
                instrument(**arguments)
            except OtelTfError as error:
                _logger.warning("not instrumented: %s", error)

    def call_off() -> None:
        nonlocal wanted
        wanted = False

    if "tensorflow" in sys.modules:
        attach(None)
    else:
        wrapt.register_post_import_hook(attach, "tensorflow")
    return call_off
