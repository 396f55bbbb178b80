"""For tests of training programs: what would be recorded, in memory.

    with otel_tf.testing.capture() as spans:
        train()
    assert [span.attributes["tensorflow.global_step"] for span in spans.named("train_step")] == [1, 2, 3]

Nothing is written to disk and nothing is sent. A failure of otel-tf's own, which in production is logged
and swallowed, is raised.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from otel_tf import _guard
from otel_tf.errors import OtelTfError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

__all__ = ["CapturedSpans", "capture"]

_FLUSH_S = 10.0


class CapturedSpans(Sequence["ReadableSpan"]):
    """The finished spans, in the order in which they were written; during the capture those so far."""

    def __init__(self, read: Callable[[], Sequence[ReadableSpan]]) -> None:
        self._read = read

    def named(self, name: str) -> list[ReadableSpan]:
        """Returns the spans of one name, such as ``train_step``."""
        return [span for span in self._read() if span.name == name]

    def __getitem__(self, index: Any) -> Any:
        return self._read()[index]

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return f"CapturedSpans({[span.name for span in self._read()]})"


@contextlib.contextmanager
def capture(strategy: Any = None, **settings: Any) -> Iterator[CapturedSpans]:
    """Instruments this process for the block and collects its spans.

    Args:
        strategy: As for `otel_tf.instrument`.
        **settings: As for `otel_tf.instrument`.

    Raises:
        OtelTfError: This process is instrumented already.
    """
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    from otel_tf.instrumentation import attach

    if attach.attached() is not None:
        raise OtelTfError("this process is instrumented already: otel_tf.uninstrument() first")
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=ALWAYS_ON, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    handle = attach.instrument(strategy, tracer_provider=provider, spool=False, **settings)

    def read() -> Sequence[ReadableSpan]:
        if attach.attached() is handle:
            handle.flush(_FLUSH_S)
        return exporter.get_finished_spans()

    before = _guard.strict(True)
    try:
        yield CapturedSpans(read)
    finally:
        _guard.strict(before)
        handle.uninstrument()
        provider.shutdown()
