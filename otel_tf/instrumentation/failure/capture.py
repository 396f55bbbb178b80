"""Looking at the tensors of a step that failed, for a bounded time, on a thread of its own.

The thread that failed waits for it, so that nothing changes meanwhile, but never longer than it may: a
parameter server that is gone may never answer. What was learned by then counts. The thread only reads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import ops

from otel_tf import semconv
from otel_tf._guard import Guard
from otel_tf.diagnostics import failure_file
from otel_tf.diagnostics.summary import TensorSummary, of_array, of_row, worst_first
from otel_tf.instrumentation.failure.call import FailedCall, Named
from otel_tf.instrumentation.failure.rows import summarise, takes
from otel_tf.instrumentation.failure.tensors import tensors_of
from otel_tf.instrumentation.watching.notices import event_of
from otel_tf.instrumentation.watching.watches import Kept, Watches
from otel_tf.telemetry import Pipeline, SpanError, SpanEvent

__all__ = ["StateCapture"]

_logger = logging.getLogger("otel_tf")

#: Of one span; the file has all of them.
_MOST_EVENTS = 32
_MOST_NAMES = 16
#: Of one failure.
_MOST_TENSORS = 2_000
#: Elements that are looked at of a tensor on another device or task: its memory is the training's.
_MOST_REMOTE = 1 << 24
#: A program that catches its failures and goes on is held up for no more than a twentieth of its time.
_SHARE = 20

_CAPTURING = Guard("looking at the tensors of a failed step")
_GONE = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.DeadlineExceededError)


class StateCapture:
    """Adds to the error of a span what the step's tensors held."""

    def __init__(self, pipeline: Pipeline, task: str, watches: Watches) -> None:
        self._pipeline = pipeline
        self._task = task
        self._watches = watches
        self._lock = threading.Lock()
        self._next_ns = 0

    def add(self, described: SpanError, call: FailedCall, step: int | None) -> SpanError:
        """Returns the error with what was learned within the time that a setting allows; never raises.

        Args:
            described: The error.
            call: What failed.
            step: The step's number, where it is known.
        """
        with _CAPTURING:
            timeout_s = self._pipeline.settings.failure_capture_ms / 1000
            if timeout_s and self._may():
                return self._add(described, call, step, timeout_s)
        return described

    def _may(self) -> bool:
        return time.monotonic_ns() >= self._next_ns

    def _add(self, described: SpanError, call: FailedCall, step: int | None, timeout_s: float) -> SpanError:
        begun_ns, time_ns = time.monotonic_ns(), time.time_ns()
        look = _Look(call, self._watches, time.monotonic() + timeout_s)
        thread = threading.Thread(target=look.run, name="otel-tf failure", daemon=True)
        thread.start()
        thread.join(timeout_s)
        summaries, left_out, watched = look.learned()
        written = None
        if summaries or watched:
            groups = {"tensors": summaries, "watched": [one for kept in watched for one in kept.summaries]}
            written = self._write(described, step, time_ns, groups, look.until)
        took_ns = time.monotonic_ns() - begun_ns
        with self._lock:
            self._next_ns = time.monotonic_ns() + _SHARE * took_ns
        attributes = {
            **described.attributes,
            **_attributes(summaries, left_out, took_ns),
        }
        if written is not None:
            attributes[semconv.FAILURE_FILE], attributes[semconv.FAILURE_LINE] = str(written[0]), written[1]
        events = [event_of(kept) for kept in watched[:_MOST_EVENTS]]
        events += [
            SpanEvent(semconv.EVENT_TENSOR, 0, one.as_attributes())
            for one in worst_first(summaries)[: _MOST_EVENTS - len(events)]
        ]
        return _replace(described, attributes, tuple(events))

    def _write(
        self,
        described: SpanError,
        step: int | None,
        time_ns: int,
        groups: Mapping[str, Sequence[TensorSummary]],
        until: float,
    ) -> tuple[Path, int] | None:
        pipeline = self._pipeline
        # The folder bears the run's name, which the workers may still have to agree on.
        if not pipeline.settings.spool or not pipeline.named.wait(max(until - time.monotonic(), 0.1)):
            return None
        failure = {
            "run_id": pipeline.identity.run_id,
            "worker": self._task,
            "time_unix_nano": time_ns,
            "global_step": step,
            "error_type": described.type,
            "message": described.message,
            "attributes": dict(described.attributes),
        }
        try:
            # One at a time: each is to know its line.
            with self._lock:
                return failure_file.append(pipeline.run_dir, self._task, failure, groups)
        except OSError as error:
            _logger.warning(
                "the tensors of a failed step could not be written to %s: %s", pipeline.run_dir, error
            )
            return None


def _replace(described: SpanError, attributes: dict[str, Any], events: tuple[SpanEvent, ...]) -> SpanError:
    return SpanError(
        described.type,
        described.message,
        described.exception_type,
        described.stacktrace,
        attributes,
        described.events + events,
    )


def _attributes(summaries: list[TensorSummary], left_out: int, took_ns: int) -> dict[str, Any]:
    spoiled = [one.name for one in worst_first(summaries) if one.spoiled]
    return {
        semconv.FAILURE_TENSORS: len(summaries),
        semconv.FAILURE_CAPTURE_TIME: took_ns / 1e9,
        **({semconv.FAILURE_SPOILED: spoiled[:_MOST_NAMES]} if spoiled else {}),
        **({semconv.FAILURE_LEFT_OUT: left_out} if left_out else {}),
    }


class _Look:
    """One look at the tensors of a call: `run` on a thread, `learned` on another, at any time."""

    def __init__(self, call: FailedCall, watches: Watches, until: float) -> None:
        self.until = until
        self._call = call
        self._watches = watches
        self._watched: list[Kept] = []
        self._lock = threading.Lock()
        self._summaries: list[TensorSummary] = []
        self._tensors: list[Named] = []
        self._closed = False
        self._gone: set[str] = set()

    def run(self) -> None:
        """Looks at one tensor after the other until the time is over."""
        with _CAPTURING:
            for kept in self._watches.kept(self._call.device):
                with self._lock:
                    if not self._closed:
                        self._watched.append(kept)
            tensors = list(tensors_of(self._call))
            with self._lock:
                self._tensors = tensors
            for tensor in tensors[:_MOST_TENSORS]:
                if not self._in_time():
                    break
                one = self._summary(tensor)
                with self._lock:
                    if self._closed:
                        break
                    self._summaries.append(one)

    def learned(self) -> tuple[list[TensorSummary], int, list[Kept]]:
        """Returns the summaries so far, how many tensors were not looked at, and what was watched.

        No more are taken.
        """
        with self._lock:
            self._closed = True
            return list(self._summaries), len(self._tensors) - len(self._summaries), list(self._watched)

    def _in_time(self) -> bool:
        return not self._closed and time.monotonic() < self.until

    def _summary(self, tensor: Named) -> TensorSummary:
        known: dict[str, Any] = {"name": tensor.name, "group": tensor.group}
        task = (tensor.device or "").partition("/device:")[0]
        try:
            if task in self._gone:
                raise tf.errors.UnavailableError(None, None, f"{task} does not answer")
            value = tensor.read()
            if isinstance(value, np.ndarray | np.generic):
                return of_array(np.asarray(value), self._in_time, **known)
            return _of_tensor(value, self._in_time, known)
        except Exception as error:
            if isinstance(error, _GONE):
                self._gone.add(task)
            return TensorSummary(
                **known,
                shape=tensor.shape,
                dtype=tensor.dtype,
                device=tensor.device,
                problem=f"{type(error).__name__}: {error}"[:200],
            )


def _of_tensor(tensor: Any, in_time: Callable[[], bool], known: dict[str, Any]) -> TensorSummary:
    known = {**known, "device": tensor.device}
    if tensor.device.startswith(context.context().host_address_space()) and "device:CPU:" in tensor.device:
        return of_array(tensor.numpy(), in_time, **known)
    known |= {"shape": tuple(tensor.shape), "dtype": tensor.dtype.name}
    if not takes(tensor.dtype):
        return TensorSummary(**known)
    with ops.device(tensor.device):
        partial = tensor.shape.num_elements() > _MOST_REMOTE
        looked_at = tf.reshape(tensor, [-1])[:_MOST_REMOTE] if partial else tensor
        return of_row(summarise(looked_at), partial=partial, **known)
