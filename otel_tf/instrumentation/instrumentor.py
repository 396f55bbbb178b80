"""The entry point of `opentelemetry-instrument`: attaches when, and only when, TensorFlow is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]
    BaseInstrumentor,
)

from otel_tf.instrumentation.on_import import instrument_on_import

__all__ = ["TensorFlowInstrumentor"]


class TensorFlowInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Does what `otel_tf.instrument()` does."""

    _call_off: Callable[[], None] | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Returns nothing: TensorFlow comes under many names (tensorflow-cpu, tf-nightly, …)."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        # Every Python process of the environment starts through here; most never train.
        self._call_off = instrument_on_import(**kwargs)

    def _uninstrument(self, **kwargs: Any) -> None:
        if self._call_off is not None:
            self._call_off()
        attached = sys.modules.get("otel_tf.instrumentation.attach")
        if attached is not None:
            attached.uninstrument()
