"""A Keras callback for those who would rather pass one than have Keras wrapped; one for both Kerases.

It tells the same core the same things as the seam, with one exception: Keras calls no callback when a step
raises, so the failing step has no span. Where Keras is wrapped as well, it does nothing.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from otel_tf import semconv
from otel_tf._guard import Guard
from otel_tf.instrumentation import attach
from otel_tf.instrumentation.core import Core
from otel_tf.instrumentation.keras.counter import counter_of
from otel_tf.instrumentation.open_step import OpenStep
from otel_tf.instrumentation.run_spans import RunSpan

__all__ = ["make_callback"]

_CALLBACK = Guard("the Keras callback")
#: Where each Keras keeps the base class of its callbacks.
_KERASES = ("keras", "tf_keras")


class _Telling:
    """What the callback does, apart from being one."""

    # For tf_keras: batch-level callbacks are refused under ParameterServerStrategy, unless they take what
    # is not there yet; this one looks at no logs.
    _supports_tf_logs = True
    _chief_worker_only = None

    def __init__(self, settings: dict[str, Any]) -> None:
        self.params: dict[str, Any] = {}
        self._settings = settings
        self._handle: attach.Handle | None = None
        self._trained: Any = None
        self._open: OpenStep | None = None
        self._spans: list[RunSpan] = []

    def set_params(self, params: dict[str, Any] | None) -> None:
        self.params = params or {}

    def set_model(self, model: Any) -> None:
        self._trained = model

    @property
    def model(self) -> Any:
        return self._trained

    # What tf_keras asks its own callbacks: it may be imported after this one was made.

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False

    @property
    def _core(self) -> Core | None:
        """What to tell; None where Keras is wrapped, and tells it itself."""
        handle = attach.attached()
        if handle is None:
            handle = attach.recording(**self._settings)
        return None if handle.sees_loops else handle.core

    @property
    def _coordinated(self) -> bool:
        strategy = getattr(self._trained, "distribute_strategy", None)
        return bool(getattr(strategy, "_should_use_with_coordinator", False))

    @_CALLBACK
    def on_train_begin(self, logs: Any = None) -> None:
        self._abandon()
        core = self._core
        counter = counter_of(self._trained)
        if core is not None and counter is not None:
            core.steps.synchronise(core.steps.stream_of(counter))

    @_CALLBACK
    def on_train_end(self, logs: Any = None) -> None:
        self._abandon()

    @_CALLBACK
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._begin(semconv.SPAN_EPOCH, epoch=epoch)
        core = self._core
        if core is not None:
            core.steps.around.epoch = epoch

    @_CALLBACK
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        core = self._core
        if core is not None:
            core.steps.around.epoch = core.steps.around.batch = None
        self._end()

    @_CALLBACK
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        core = self._core
        if core is None or self._coordinated:
            return
        if self._open is not None:
            core.steps.abandon(self._open)
        counter = counter_of(self._trained)
        core.steps.around.batch = batch
        self._open = core.steps.open(
            stream=None if counter is None else core.steps.stream_of(counter),
            # How many steps a run takes, Keras does not tell a callback.
            count=1 if getattr(self._trained, "steps_per_execution", 1) == 1 else None,
        )

    @_CALLBACK
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        core, opened, self._open = self._core, self._open, None
        if core is not None and opened is not None:
            core.steps.close(opened)

    @_CALLBACK
    def on_test_begin(self, logs: Any = None) -> None:
        self._begin(semconv.SPAN_EVALUATE)

    @_CALLBACK
    def on_test_end(self, logs: Any = None) -> None:
        self._end()

    @_CALLBACK
    def on_predict_begin(self, logs: Any = None) -> None:
        self._begin(semconv.SPAN_PREDICT)

    @_CALLBACK
    def on_predict_end(self, logs: Any = None) -> None:
        self._end()

    def _begin(self, name: str, epoch: int | None = None) -> None:
        core = self._core
        if core is None:
            return
        if self._open is not None:
            # A batch that was begun and had no data.
            core.steps.abandon(self._open)
            self._open = None
        self._spans.append(core.run_spans.begin(name, epoch=epoch))

    def _end(self) -> None:
        core = self._core
        if core is not None and self._spans:
            core.run_spans.end(self._spans.pop())

    def _abandon(self) -> None:
        """Forgets what a failure has left open."""
        core, opened = self._core, self._open
        if core is not None and opened is not None:
            core.steps.abandon(opened)
        self._open = None
        while self._spans:
            self._end()


def make_callback(settings: dict[str, Any]) -> Any:
    """Returns a callback for every Keras that is imported; imports Keras 3 where none is."""
    loaded = [sys.modules[name] for name in _KERASES if name in sys.modules]
    if not loaded:
        import keras

        loaded = [keras]
    bases = tuple(_base(module) for module in loaded)
    kind = type("OtelTfCallback", (_Telling, *bases), {"__module__": __name__})
    return kind(settings)


def _base(module: ModuleType) -> type[Any]:
    base: type[Any] = module.callbacks.Callback
    return base
