"""The seam in checkpoints: `checkpoint.save` and `checkpoint.restore`, with the steps before and after."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tensorflow.python.checkpoint import checkpoint
from tensorflow.python.eager import context
from tensorflow.python.training import saver

from otel_tf import semconv
from otel_tf._guard import Guard
from otel_tf.instrumentation.run_spans import RunSpans
from otel_tf.instrumentation.seams import Seam, Seams
from otel_tf.instrumentation.steps import Steps

__all__ = ["CheckpointSeam"]

Call = Callable[..., Any]

_RESTORED = Guard("looking where a restored checkpoint leaves the steps")


class CheckpointSeam(Seam):
    """Checkpoints of `tf.train` and, where a Keras seam wraps them with `save` and `restore`, of Keras."""

    def __init__(self, steps: Steps, run_spans: RunSpans) -> None:
        self._steps = steps
        self._around = steps.around
        self._run_spans = run_spans
        self._on_restore: list[Callable[[], object]] = []

    def attach(self, seams: Seams) -> None:
        """Wraps the savers below `tf.train.Checkpoint` and the one of TensorFlow 1.

        Raises:
            DidNotInstrument: This TensorFlow's savers are not what we know.
        """
        seams.wrap(checkpoint.TrackableSaver, "save", self._save_eagerly)
        seams.wrap(checkpoint.TrackableSaver, "restore", self._restore_eagerly)
        seams.wrap(saver.Saver, "save", self._save_session)
        seams.wrap(saver.Saver, "restore", self._restore_session)

    def on_restore(self, callback: Callable[[], object]) -> None:
        """Calls ``callback`` after every restore, guarded."""
        self._on_restore.append(callback)

    def save(self, wrapped: Call, args: tuple[Any, ...], kwargs: dict[str, Any], path: Any) -> Any:
        """Runs what saves variables, as a span; what it calls that saves too is part of it."""
        return self._surround(semconv.SPAN_CHECKPOINT_SAVE, wrapped, args, kwargs, path)

    def restore(self, wrapped: Call, args: tuple[Any, ...], kwargs: dict[str, Any], path: Any) -> Any:
        """Runs what restores variables, as a span, and asks the step counters again."""
        return self._surround(semconv.SPAN_CHECKPOINT_RESTORE, wrapped, args, kwargs, path)

    def _surround(
        self, name: str, wrapped: Call, args: tuple[Any, ...], kwargs: dict[str, Any], path: Any
    ) -> Any:
        around = self._around
        if around.checkpointing:
            return wrapped(*args, **kwargs)
        # What saves or restores through a tf.function writes variables, and is no step.
        busy, around.busy, around.checkpointing = around.busy, True, True
        try:
            with self._run_spans.span(name, {semconv.CHECKPOINT_PATH: _text(path)}) as later:
                result = wrapped(*args, **kwargs)
                if name == semconv.SPAN_CHECKPOINT_RESTORE:
                    with _RESTORED:
                        later[semconv.STEP_BEFORE], later[semconv.STEP_AFTER] = self._steps.restored()
                        for callback in self._on_restore:
                            callback()
                return result
        finally:
            around.busy, around.checkpointing = busy, False

    def _save_eagerly(self, wrapped: Call, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not context.executing_eagerly():
            return wrapped(*args, **kwargs)
        return self.save(wrapped, args, kwargs, args[0] if args else kwargs.get("file_prefix"))

    def _restore_eagerly(self, wrapped: Call, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        path = args[0] if args else kwargs.get("save_path")
        # Without a path there is nothing to restore: it only makes ready for an initialisation.
        if path is None or not context.executing_eagerly():
            return wrapped(*args, **kwargs)
        return self.restore(wrapped, args, kwargs, path)

    def _save_session(self, wrapped: Call, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.save(wrapped, args, kwargs, args[1] if len(args) > 1 else kwargs.get("save_path"))

    def _restore_session(self, wrapped: Call, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.restore(wrapped, args, kwargs, args[1] if len(args) > 1 else kwargs.get("save_path"))


def _text(path: Any) -> str | None:
    if isinstance(path, str | bytes | os.PathLike):
        return os.fsdecode(path)
    return None
