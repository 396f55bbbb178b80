"""The entry point of `opentelemetry-instrument`: attaches when, and only when, TensorFlow is imported."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

import wrapt
from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]
    BaseInstrumentor,
)

__all__ = ["TensorFlowInstrumentor"]


class TensorFlowInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Does what `otel_tf.instrument()` does."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """Returns nothing: TensorFlow comes under many names (tensorflow-cpu, tf-nightly, …)."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        def attach(_: Any) -> None:
            from otel_tf.instrumentation.attach import instrument

            instrument(**kwargs)

        if "tensorflow" in sys.modules:
            attach(None)
        else:
            # Every Python process of the environment starts through here; most never train.
            wrapt.register_post_import_hook(attach, "tensorflow")

    def _uninstrument(self, **kwargs: Any) -> None:
        attached = sys.modules.get("otel_tf.instrumentation.attach")
        if attached is not None:
            attached.uninstrument()
