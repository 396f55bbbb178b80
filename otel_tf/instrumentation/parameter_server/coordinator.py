"""The seam in `tf.distribute.coordinator.ClusterCoordinator`: closures, attempts, retries, failures.

Closures run at least once, on whichever worker is free; `Closure.__init__` runs in the thread that
schedules, `Closure.execute_on` in the coordinator's thread for one worker, so what belongs to a closure
travels on the closure.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator
from tensorflow.python.eager.polymorphic_function import concrete_function as concrete_functions
from tensorflow.python.eager.polymorphic_function import polymorphic_function

from otel_tf import ids
from otel_tf._guard import Guard
from otel_tf.config import Settings
from otel_tf.identity import Identity
from otel_tf.instrumentation.errors import describe_error
from otel_tf.instrumentation.failure.batch import kept
from otel_tf.instrumentation.failure.call import FailedCall, Named
from otel_tf.instrumentation.failure.tensors import arrays, variables_of
from otel_tf.instrumentation.parameter_server.closures import Attempt, ClosureRecord, ClosureSpans
from otel_tf.instrumentation.parameter_server.cluster import ClusterTelemetry
from otel_tf.instrumentation.parameter_server.stamps import name_of, ring_name, stamped
from otel_tf.instrumentation.parameter_server.workers import WorkerTelemetry
from otel_tf.instrumentation.profiler import link
from otel_tf.instrumentation.profiler.notes import Notes
from otel_tf.instrumentation.seams import Seam, Seams
from otel_tf.instrumentation.steps import Steps
from otel_tf.instrumentation.stream import Stream
from otel_tf.instrumentation.training_function import step_counter, trains
from otel_tf.telemetry import Pipeline

__all__ = ["CoordinatorSeam"]

#: Where a closure carries its record.
_RECORD = "_otel_tf"
#: How often idle workers are looked at, for stamps that no further closure would fetch.
_IDLE_LOOK_S = 1.0
#: How long a last fetch waits for a running attempt.
_PATIENCE_S = 1.0
#: Where a scheduled function carries its wrapper: not a table of ours, which would keep it alive.
_WRAPPER = "_otel_tf_stamped"

Call = Callable[..., Any]

# Several run with every closure.
_PREPARING = Guard("preparing an attempt")
_STARTING = Guard("starting an attempt")
_RECORDING = Guard("recording an attempt")
_ENDING = Guard("ending a closure")
_WRAPPING = Guard("wrapping a scheduled function")
_SCHEDULING = Guard("recording a closure")
_FETCHING = Guard("fetching stamps")


class _Outcome(threading.local):
    """What the coordinator's thread of a worker decided about the closure it is processing."""

    put_back = False
    failure: BaseException | None = None


class CoordinatorSeam(Seam):
    """Everything that is wrapped for ParameterServerStrategy, and the state behind it."""

    def __init__(self, pipeline: Pipeline, settings: Settings, identity: Identity, steps: Steps) -> None:
        self._pipeline = pipeline
        self._steps = steps
        self._around = steps.around
        self._settings = settings
        self._identity = identity
        # Tells this coordinator process from an earlier one of the same run.
        self._incarnation = f"{os.getpid()}-{ids.random_span_id():016x}"
        self._closures = ClosureSpans(pipeline, identity.run_id)
        self._lock = threading.Lock()
        self._clusters: weakref.WeakKeyDictionary[Any, ClusterTelemetry] = weakref.WeakKeyDictionary()
        self._workers: weakref.WeakKeyDictionary[Any, WorkerTelemetry] = weakref.WeakKeyDictionary()
        self._wrapped_functions: weakref.WeakSet[Any] = weakref.WeakSet()
        self._streams: weakref.WeakKeyDictionary[Any, Stream | None] = weakref.WeakKeyDictionary()
        self._notes = Notes(pipeline)
        self._outcome = _Outcome()
        self._stop_idle_look: Callable[[], None] = lambda: None

    def attach(self, seams: Seams) -> None:
        """Wraps the coordinator's methods.

        Raises:
            DidNotInstrument: This TensorFlow's coordinator is not one we know.
        """
        closure, worker, queue = (
            cluster_coordinator.Closure,
            cluster_coordinator.Worker,
            cluster_coordinator._CoordinatedClosureQueue,
        )
        seams.wrap(closure, "__init__", self._init)
        seams.wrap(closure, "execute_on", self._execute_on)
        seams.wrap(closure, "mark_cancelled", self._mark_cancelled)
        seams.wrap(worker, "_process_closure", self._process_closure)
        seams.wrap(queue, "put_back", self._put_back)
        seams.wrap(queue, "mark_failed", self._mark_failed)
        self._stop_idle_look = self._pipeline.every(_IDLE_LOOK_S, self.fetch_idle)

    def detach(self) -> None:
        """Stops looking after workers and forgets the wrappers of scheduled functions."""
        self._stop_idle_look()
        for function in list(self._wrapped_functions):
            vars(function).pop(_WRAPPER, None)

    def settle(self) -> None:
        """Fetches what workers still hold."""
        self.fetch_idle(force=True)

    def fetch_idle(self, *, force: bool = False) -> None:
        """Fetches the stamps of workers that run nothing right now.

        Args:
            force: Fetch whatever the time, and wait a little for a running attempt to end.
        """
        for telemetry in list(self._workers.values()):
            if telemetry.attempt_lock.acquire(timeout=_PATIENCE_S if force else 0):
                try:
                    with _FETCHING:
                        telemetry.maintain(force=force)
                finally:
                    telemetry.attempt_lock.release()

    # -- scheduling --------------------------------------------------------------------------------------

    def _init(self, wrapped: Call, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if isinstance(instance, cluster_coordinator.ResourceClosure):
            wrapped(*args, **kwargs)
            return
        function = args[0] if args else kwargs["function"]
        wrapper = None
        with _WRAPPING:
            wrapper = self._wrapper_of(function)
        if wrapper is not None and not self._init_with(wrapper, wrapped, args, kwargs):
            wrapper = None
            # The function cannot be traced: its own trace says so in the user's own words. If it can
            # after all, only our wrapper could not; leave this function alone from now on.
            wrapped(*args, **kwargs)
            setattr(function, _WRAPPER, None)
        elif wrapper is None:
            wrapped(*args, **kwargs)
        with _SCHEDULING:
            stream = self._stream_of(instance._concrete_function)
            record = self._closures.scheduled(
                name_of(function), stream=stream, stamped=wrapper is not None, around=self._around
            )
            setattr(instance, _RECORD, record)

    @staticmethod
    def _init_with(wrapper: Any, wrapped: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        try:
            if args:
                wrapped(wrapper, *args[1:], **kwargs)
            else:
                wrapped(**{**kwargs, "function": wrapper})
        except Exception:
            return False
        return True

    def _wrapper_of(self, function: Any) -> Any | None:
        if not self._settings.worker_stamps or not isinstance(
            function, polymorphic_function.Function | concrete_functions.ConcreteFunction
        ):
            return None
        with self._lock:
            if _WRAPPER not in vars(function):
                setattr(function, _WRAPPER, stamped(function, ring_name(self._incarnation)))
                self._wrapped_functions.add(function)
            return vars(function)[_WRAPPER]

    def _stream_of(self, concrete: Any) -> Stream | None:
        """Returns where the steps of a function get their numbers; None where it does not train."""
        if concrete in self._streams:
            return self._streams[concrete]
        stream = None
        if trains(concrete):
            stream = self._steps.stream_of(step_counter(concrete))
            if stream.number is None:
                # One remote read in a run: training may go on from a checkpoint.
                self._steps.synchronise(stream)
            self._notes.function(concrete)
        self._streams[concrete] = stream
        return stream

    # -- running -------------------------------------------------------------------------------------------

    def _execute_on(self, wrapped: Call, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        record: ClosureRecord | None = getattr(instance, _RECORD, None)
        worker = args[0] if args else kwargs["worker"]
        telemetry: WorkerTelemetry | None = None
        with _PREPARING:
            telemetry = self._telemetry_of(worker) if record is not None else None
        if record is None or telemetry is None:
            return wrapped(*args, **kwargs)
        with telemetry.attempt_lock:
            attempt: Attempt | None = None
            with _STARTING:
                telemetry.before_attempt()
                attempt = self._closures.started(record, telemetry.name)
            # What the worker runs is no step of this process's own.
            self._around.busy, self._around.attempt = True, attempt
            mark = link.begin_step() if link.enabled() else None
            try:
                result = wrapped(*args, **kwargs)
            except BaseException as error:
                with Guard("recording a failed attempt"):
                    if attempt is not None:
                        self._closures.link(mark, attempt)
                        lost = _is_worker_lost(error)
                        if not lost:
                            self._around.failed = _failed_call(error, instance, worker)
                        self._closures.failed(attempt, functools.partial(self._steps.problem, error))
                        telemetry.failed(attempt, worker_lost=lost)
                        self._closures.write_dispatch(attempt)
                raise
            finally:
                self._around.busy = False
            self._around.attempt = None
            with _RECORDING:
                if attempt is not None:
                    self._closures.succeeded(attempt)
                    self._closures.link(mark, attempt)
                    if attempt.global_step is not None:
                        self._steps.at = attempt.global_step
                        self._steps.durations_ns.append(attempt.end_ns - attempt.start_ns)
                    telemetry.succeeded(attempt)
                    self._closures.write_dispatch(attempt)
            return result

    def _telemetry_of(self, worker: Any) -> WorkerTelemetry:
        telemetry = self._workers.get(worker)
        if telemetry is None:
            with self._lock:
                cluster = worker._cluster
                if cluster not in self._clusters:
                    self._clusters[cluster] = ClusterTelemetry(
                        self._pipeline,
                        self._settings,
                        self._identity,
                        self._incarnation,
                        cluster._num_ps,
                        self._steps.watches,
                    )
                self._steps.watches.runs_on(worker.device_name)
                telemetry = self._workers[worker] = WorkerTelemetry(
                    self._clusters[cluster], worker.worker_index, worker.device_name, worker.executor
                )
        return telemetry

    def _process_closure(
        self, wrapped: Call, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        closure = args[0] if args else kwargs["closure"]
        self._outcome.put_back = False
        self._outcome.failure = None
        try:
            return wrapped(*args, **kwargs)
        finally:
            with _ENDING:
                record: ClosureRecord | None = getattr(closure, _RECORD, None)
                if record is not None and not self._outcome.put_back:
                    failure = self._outcome.failure
                    self._closures.ended(record, None if failure is None else describe_error(failure))
                self._outcome.failure = None
            with _FETCHING:
                telemetry = self._workers.get(instance)
                if telemetry is not None:
                    with telemetry.attempt_lock:
                        telemetry.maintain()

    def _put_back(self, wrapped: Call, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._outcome.put_back = True
        with Guard("requeueing a closure"):
            record = getattr(args[0] if args else kwargs["closure"], _RECORD, None)
            if record is not None:
                self._closures.requeued(record)
        return wrapped(*args, **kwargs)

    def _mark_failed(
        self, wrapped: Call, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._outcome.failure = args[0] if args else kwargs["e"]
        return wrapped(*args, **kwargs)

    def _mark_cancelled(
        self, wrapped: Call, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        with Guard("cancelling a closure"):
            record = getattr(instance, _RECORD, None)
            if record is not None:
                self._closures.ended(
                    record, describe_error(tf.errors.CancelledError(None, None, "cancelled before it ran"))
                )
        return wrapped(*args, **kwargs)


def _failed_call(error: BaseException, closure: Any, worker: Any) -> FailedCall:
    concrete = getattr(closure, "_concrete_function", None)
    graph = None if concrete is None else concrete.graph

    def tensors() -> Iterator[Named]:
        yield from arrays("batch", (closure._args, closure._kwargs))
        if graph is not None:
            yield from kept(graph, worker.device_name)
            yield from variables_of(graph.variables)

    return FailedCall(error, graph, device=worker.device_name, tensors=tensors)


def _is_worker_lost(error: BaseException) -> bool:
    """Returns whether the worker itself may be gone, so that asking it anything would only wait."""
    return isinstance(
        error,
        tf.errors.UnavailableError | tf.errors.AbortedError | tf.errors.DeadlineExceededError,
    )
