"""OpenTelemetry's own variables that this package reads itself."""

from __future__ import annotations

import logging
import os

__all__ = ["positive"]

_logger = logging.getLogger("otel_tf")


def positive(variable: str, default: int) -> int:
    """Returns a limit; ``default`` where the variable is no positive number."""
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        _logger.warning("%s=%r is ignored (no positive number); using %d", variable, text, default)
        return default
    return value
