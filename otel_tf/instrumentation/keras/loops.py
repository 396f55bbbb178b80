"""What is wrapped around the loops of either Keras.

A batch declares a step; the training function that runs in it is the step (`FunctionCallSeam`), or, where
the model runs eagerly, all that happens between the batch's callbacks. Keras calls no hook when a step
raises, so its loops themselves are wrapped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from otel_tf import semconv
from otel_tf._guard import Guard
from otel_tf.instrumentation.failure.call import FailedCall
from otel_tf.instrumentation.failure.tensors import of_optimizer, variables_of
from otel_tf.instrumentation.keras.counter import counter_of
from otel_tf.instrumentation.keras.spoiled import spoiled
from otel_tf.instrumentation.keras.unsupported import say_what_keras_3_cannot
from otel_tf.instrumentation.open_step import OpenStep, is_end_of_data
from otel_tf.instrumentation.run_spans import RunSpan, RunSpans
from otel_tf.instrumentation.steps import Steps
from otel_tf.instrumentation.stream import Stream

__all__ = ["KerasLoops"]

Call = Callable[..., Any]
Arguments = tuple[Any, ...]
Keywords = dict[str, Any]

_FIT = Guard("following Keras's fit")
_BATCH = Guard("following Keras's batches")
_EVALUATING = Guard("following Keras's evaluate or predict")


class _Fit:
    """A call of ``fit`` that is going on in this thread."""

    __slots__ = ("coordinated", "epoch_span", "model", "open", "stream")

    def __init__(self, model: Any) -> None:
        self.model = model
        # The coordinator schedules: its closures are the steps.
        strategy = getattr(model, "distribute_strategy", None)
        self.coordinated = bool(getattr(strategy, "_should_use_with_coordinator", False))
        self.stream: Stream | None = None
        self.epoch_span: RunSpan | None = None
        self.open: OpenStep | None = None


class _Thread(threading.local):
    fit: _Fit | None = None
    #: Models whose ``evaluate`` or ``predict`` is going on: a subclass may call its parent's.
    surrounded: tuple[tuple[str, int], ...] = ()
    #: Steps in the next run, where Keras says so.
    count: int | None = 1


class KerasLoops:
    """The wrappers; one object for both Kerases."""

    def __init__(self, steps: Steps, run_spans: RunSpans) -> None:
        self._steps = steps
        self._around = steps.around
        self._run_spans = run_spans
        self._thread = _Thread()

    # -- fit ---------------------------------------------------------------------------------------------

    def fit(self, wrapped: Call, model: Any, args: Arguments, kwargs: Keywords) -> Any:
        """Around ``fit``: remembers the model, ends what a failure leaves open."""
        thread, around = self._thread, self._around
        outer = thread.fit
        if outer is not None and outer.model is model:
            return wrapped(*args, **kwargs)
        fit: _Fit | None = None
        with _FIT:
            fit = _Fit(model)
            if not fit.coordinated:
                fit.stream = self._stream_of(model)
                if fit.stream is not None:
                    self._steps.synchronise(fit.stream)
        epoch, batch = around.epoch, around.batch
        thread.fit = fit
        try:
            result = wrapped(*args, **kwargs)
        except BaseException as error:
            with _FIT:
                self._leave(fit, error)
            raise
        finally:
            thread.fit = outer
            around.epoch, around.batch, around.count = epoch, batch, 1
        with _FIT:
            self._leave(fit, None)
        return result

    def _leave(self, fit: _Fit | None, error: BaseException | None) -> None:
        if fit is None:
            return
        opened, fit.open = fit.open, None
        if opened is not None:
            if error is None or is_end_of_data(error):
                self._steps.abandon(opened)
            else:
                self._close(fit, opened, error)
        if fit.epoch_span is not None:
            self._run_spans.end(fit.epoch_span, error)
            fit.epoch_span = None

    def epoch_begin(self, wrapped: Call, _: Any, args: Arguments, kwargs: Keywords) -> Any:
        """Around ``CallbackList.on_epoch_begin``: the epoch begins before the program's own callbacks."""
        fit = self._thread.fit
        if fit is not None:
            with _FIT:
                epoch = int(args[0] if args else kwargs["epoch"])
                self._around.epoch, self._around.batch = epoch, None
                before = self._steps.at if fit.stream is None else fit.stream.number
                fit.epoch_span = self._run_spans.begin(
                    semconv.SPAN_EPOCH, {semconv.STEP_BEFORE: before}, epoch=epoch
                )
        return wrapped(*args, **kwargs)

    def epoch_end(self, wrapped: Call, _: Any, args: Arguments, kwargs: Keywords) -> Any:
        """Around ``CallbackList.on_epoch_end``: the epoch ends after the program's own callbacks."""
        self._end_of_data()
        result = wrapped(*args, **kwargs)
        fit = self._thread.fit
        if fit is not None and fit.epoch_span is not None:
            with _FIT:
                self._run_spans.end(fit.epoch_span)
                fit.epoch_span = None
                self._around.epoch = None
        return result

    # -- batches -----------------------------------------------------------------------------------------

    def batch_begin(self, wrapped: Call, callbacks: Any, args: Arguments, kwargs: Keywords) -> Any:
        """Around ``CallbackList.on_train_batch_begin``: a step may begin when the callbacks are done."""
        result = wrapped(*args, **kwargs)
        fit = self._thread.fit
        if fit is not None:
            with _BATCH:
                batch = int(args[0] if args else kwargs["batch"])
                self._around.batch = batch
                count = self._steps_in_run(fit.model, callbacks, batch)
                if fit.coordinated:
                    self._around.count = count or 1
                else:
                    fit.open = self._steps.open(stream=fit.stream, count=count)
        return result

    def batch_end(self, wrapped: Call, callbacks: Any, args: Arguments, kwargs: Keywords) -> Any:
        """Around ``CallbackList.on_train_batch_end``: the step has ended before the callbacks."""
        fit = self._thread.fit
        if fit is not None and fit.open is not None:
            with _BATCH:
                opened, fit.open = fit.open, None
                logs = args[1] if len(args) > 1 else kwargs.get("logs")
                self._close(fit, opened, spoiled(callbacks, logs))
        return wrapped(*args, **kwargs)

    def train_on_batch(self, wrapped: Call, model: Any, args: Arguments, kwargs: Keywords) -> Any:
        """Around ``train_on_batch``, the batch of a loop of the program's own."""
        opened: OpenStep | None = None
        fit = _Fit(model)
        with _BATCH:
            fit.stream = self._stream_of(model)
            opened = self._steps.open(stream=fit.stream)
        try:
            result = wrapped(*args, **kwargs)
        except BaseException as error:
            with _BATCH:
                if opened is not None:
                    self._close(fit, opened, error)
            raise
        with _BATCH:
            if opened is not None:
                self._close(fit, opened, None)
        return result

    def steps_of_handler(
        self, wrapped: Call, handler: Any, args: Arguments, kwargs: Keywords
    ) -> Iterator[int]:
        """Around tf_keras's ``DataHandler.steps``, which knows how many steps the next run takes."""
        for step in wrapped(*args, **kwargs):
            self._thread.count = handler._step_increment + 1
            yield step

    def _steps_in_run(self, model: Any, callbacks: Any, batch: int) -> int | None:
        steps_per_execution = model.steps_per_execution
        if not isinstance(steps_per_execution, int):
            return self._thread.count  # tf_keras: a variable, and its handler has told
        if steps_per_execution == 1:
            return 1
        # Keras 3 does not say how many batches were left for the last run of an epoch.
        known = (getattr(callbacks, "params", None) or {}).get("steps")
        if known is not None and batch + steps_per_execution <= known:
            return steps_per_execution
        return None

    def _close(self, fit: _Fit, opened: OpenStep, error: BaseException | None) -> None:
        if opened.stream is None:
            # Some optimizers make their counter in the first step.
            opened.stream = fit.stream = self._stream_of(fit.model)
        if error is not None:
            self._knows(fit.model, error)
        self._steps.close(opened, error)

    def _knows(self, model: Any, error: BaseException) -> None:
        """Adds what Keras knows of the tensors of a step that failed."""
        optimizer = getattr(model, "optimizer", None)
        failed = self._around.failed
        if failed is not None and failed.error is error:
            failed.optimizer = optimizer
        else:
            # Nothing was traced, or it failed outside of that.
            self._around.failed = FailedCall(
                error, tensors=lambda: variables_of([*model.variables, *of_optimizer(optimizer)], optimizer)
            )

    def _end_of_data(self) -> None:
        """A batch that was begun and had no data."""
        fit = self._thread.fit
        if fit is not None and fit.open is not None:
            with _BATCH:
                opened, fit.open = fit.open, None
                self._steps.abandon(opened)

    def _stream_of(self, model: Any) -> Stream | None:
        counter = counter_of(model)
        return None if counter is None else self._steps.stream_of(counter)

    # -- evaluate and predict ----------------------------------------------------------------------------

    def evaluate(self, wrapped: Call, model: Any, args: Arguments, kwargs: Keywords) -> Any:
        """Around ``evaluate``, also the one that ``fit`` calls."""
        self._end_of_data()
        return self._surround(semconv.SPAN_EVALUATE, wrapped, model, args, kwargs)

    def predict(self, wrapped: Call, model: Any, args: Arguments, kwargs: Keywords) -> Any:
        """Around ``predict``."""
        return self._surround(semconv.SPAN_PREDICT, wrapped, model, args, kwargs)

    def _surround(self, name: str, wrapped: Call, model: Any, args: Arguments, kwargs: Keywords) -> Any:
        thread, key = self._thread, (name, id(model))
        surrounded = thread.surrounded
        if key in surrounded:
            return wrapped(*args, **kwargs)
        thread.surrounded = (*surrounded, key)
        try:
            with self._run_spans.span(name, self._where(model)):
                return wrapped(*args, **kwargs)
        finally:
            thread.surrounded = surrounded
            self._around.waits = ()

    @_EVALUATING
    def _where(self, model: Any) -> dict[str, int | None]:
        """Returns the attributes of the step that a model is at; another one may be trained beside it."""
        stream = self._steps.known_stream(counter_of(model))
        number = self._steps.at if stream is None else stream.number
        return {semconv.STEP_BEFORE: number, semconv.STEP_AFTER: number}

    # -- what Keras 3 cannot do --------------------------------------------------------------------------

    def fit_of_keras_3(self, wrapped: Call, model: Any, args: Arguments, kwargs: Keywords) -> Any:
        """Around Keras 3's ``fit``: says beforehand where it is going to fail by itself."""
        with _FIT:
            say_what_keras_3_cannot(model.distribute_strategy)
        return self.fit(wrapped, model, args, kwargs)
