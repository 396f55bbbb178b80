"""The link from a profile to the spans: while a step runs, the profiler sees an event with the span's ids.

Whoever takes the profile, the event of the step's thread carries ``otel_trace`` (``t-<32 hex>``) and
``otel_span`` (``s-<16 hex>``), those of the `train_step` or `execute`, ``step_num`` and ``_r=1``. Ids have a
letter before them because TensorFlow takes the type of a value from its looks, and a hexadecimal number may
look like any. While nobody takes a profile a step asks once whether somebody does, some 20 ns.

On the coordinator of parameter servers the event is the dispatch's, in the thread of its worker; the ids are
still those of the worker's step, and ``otel_dispatch`` (``s-<16 hex>``), ``otel_worker`` (``worker-1``) and
``otel_closure`` (k) say what dispatched it.

Keras's own event of a step, where it makes one, is around ours or inside it.
"""

from __future__ import annotations

from typing import Any

from tensorflow.python.profiler.internal import _pywrap_traceme

__all__ = ["begin_region", "begin_step", "drop", "enabled", "end_region", "end_step"]

_STEP = "train_step"

#: Whether a profile is being taken in this process.
enabled = _pywrap_traceme.traceme_enabled


def begin_step() -> Any:
    """Begins the event of a step; to be called where `enabled`."""
    return _pywrap_traceme.TraceMe(_STEP)


def end_step(mark: Any, number: int | None, trace_id: int, span_id: int, **more: str | int) -> None:
    """Ends the event of a step, in the thread that began it.

    Only now: the number of a step may be known by its end alone.

    Args:
        mark: From `begin_step`.
        number: The step's number, if it has one.
        trace_id: Of its span; 0 where the run has no name yet.
        span_id: Likewise.
        **more: Further stats; text of letters, digits and ``_.-`` alone that begins with a letter.
    """
    if number is not None:
        more["step_num"] = number
    if trace_id:
        more["otel_trace"] = f"t-{trace_id:032x}"
        more["otel_span"] = f"s-{span_id:016x}"
    mark.SetMetadata(_r=1, **more)
    mark.Stop()


def begin_region(name: str) -> Any:
    """Begins the event of a region of eager code; to be called where `enabled`."""
    return _pywrap_traceme.TraceMe(name)


def end_region(mark: Any, trace_id: int, span_id: int) -> None:
    """Ends the event of a region of eager code.

    Args:
        mark: From `begin_region`.
        trace_id: Of its span; 0 where it is the step's that is around it.
        span_id: Of its span.
    """
    if trace_id:
        mark.SetMetadata(otel_trace=f"t-{trace_id:032x}")
    mark.SetMetadata(otel_span=f"s-{span_id:016x}")
    mark.Stop()


def drop(mark: Any) -> None:
    """Ends the event of what turned out to be no step; it says nothing then."""
    mark.Stop()
