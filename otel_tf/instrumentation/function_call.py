"""The seam in `tf.function`: a run of the outermost training function is a step.

It sits where a traced function runs, below the choice of the trace: the step is the run, never the tracing
before it, and it is that very graph that trains or does not.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import concrete_function as concrete_functions

from otel_tf._guard import Guard
from otel_tf.instrumentation.around import Instant
from otel_tf.instrumentation.failure.call import FailedCall
from otel_tf.instrumentation.hidden_frames import leave_out_of_tracebacks
from otel_tf.instrumentation.open_step import is_end_of_data
from otel_tf.instrumentation.profiler import link
from otel_tf.instrumentation.seams import Seam, Seams
from otel_tf.instrumentation.steps import Steps
from otel_tf.instrumentation.stream import Stream
from otel_tf.instrumentation.training_function import step_counter, trains
from otel_tf.telemetry import Pipeline

__all__ = ["FunctionCallSeam"]

Call = Callable[..., Any]

_JUDGING = Guard("looking at a traced function")
_RECORDING = Guard("recording a step")


@dataclasses.dataclass(slots=True)
class _Training:
    """A traced function that trains.

    Attributes:
        name: As the user called it.
        stream: Where its steps' numbers come from.
        count: Steps in one run; None while that is to be found out.
    """

    name: str
    stream: Stream
    count: int | None


class FunctionCallSeam(Seam):
    """Finds the steps of this process among its runs of traced functions."""

    def __init__(self, pipeline: Pipeline, steps: Steps) -> None:
        self._now = pipeline.now
        self._steps = steps
        self._around = steps.around
        #: False for functions that do not train.
        self._known: weakref.WeakKeyDictionary[Any, _Training | bool] = weakref.WeakKeyDictionary()

    def attach(self, seams: Seams) -> None:
        """Wraps the run of a traced function.

        Raises:
            DidNotInstrument: This TensorFlow's functions are not what we know.
        """
        seams.wrap(concrete_functions.ConcreteFunction, "_call_flat", self._call)
        leave_out_of_tracebacks(seams)

    def _call(self, wrapped: Call, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        around = self._around
        # Called while a graph is built, or from within a step: not the outermost.
        if around.busy or not context.executing_eagerly():
            return wrapped(*args, **kwargs)
        known = self._known.get(function)
        if known is None:
            known = self._judge(function)
        if not isinstance(known, _Training):
            around.others = True
            return wrapped(*args, **kwargs)
        now, running = self._now, self._steps.running
        outer, begun = now(), now()
        mark = link.begin_step() if link.enabled() and around.open is None else None
        around.busy = True
        thread = 0 if around.open is not None else threading.get_ident()
        if thread:
            running[thread] = known
        try:
            result = wrapped(*args, **kwargs)
        except BaseException as error:
            end_ns = time.monotonic_ns()
            with _RECORDING:
                around.failed = FailedCall(error, function.graph, args[0] if args else ())
                self._failed(known, outer, begun, end_ns, error, mark)
            raise
        finally:
            around.busy = False
            if thread:
                running.pop(thread, None)
        end_ns = time.monotonic_ns()
        # The guard itself only where it is needed: it costs as much as what it guards.
        try:
            opened = around.open
            if opened is not None:
                opened.ran(begun, end_ns, known.name, known.stream)
            else:
                steps = self._steps.ran(outer, begun, end_ns, known.stream, known.name, known.count, mark)
                if known.count is None:
                    known.count = max(steps, 1)
        except Exception:
            with _RECORDING:
                raise
        return result

    def _failed(
        self,
        known: _Training,
        outer: Instant,
        begun: Instant,
        end_ns: int,
        error: BaseException,
        mark: Any,
    ) -> None:
        if is_end_of_data(error):
            self._around.waits, self._around.failed = (), None
            if mark is not None:
                link.drop(mark)
            return
        opened = self._around.open
        if opened is not None:
            # Whoever opened it sees the error too.
            opened.ran(begun, end_ns, known.name, known.stream)
        else:
            self._steps.finish(
                outer,
                begun,
                end_ns,
                stream=known.stream,
                function=known.name,
                count=known.count,
                error=error,
                mark=mark,
            )

    def _judge(self, function: Any) -> _Training | bool:
        """Looks at a traced function before its first run."""
        judged: _Training | bool = False
        with _JUDGING:
            if trains(function):
                stream = self._steps.stream_of(step_counter(function))
                # Read once: training may go on from a checkpoint.
                if stream.number is None:
                    self._steps.synchronise(stream)
                # A loop inside the graph may take several steps in one run; the first run tells.
                judged = _Training(function.graph.name, stream, 1 if stream.counter is None else None)
        self._known[function] = judged
        return judged
