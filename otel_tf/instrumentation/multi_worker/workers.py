"""The seam in `MultiWorkerMirroredStrategy`: its workers agree on the run's name, then compare clocks.

Both need the coordination service, which the strategy's constructor joins; both run on one thread of their
own, for the other side may be late, or gone.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import collective_all_reduce_strategy as strategies

from otel_tf._guard import Guard
from otel_tf.config import Settings
from otel_tf.identity import Identity
from otel_tf.instrumentation.multi_worker import key_value
from otel_tf.instrumentation.multi_worker.clock_probes import ClockProbes
from otel_tf.instrumentation.multi_worker.run_name import RunName
from otel_tf.instrumentation.seams import Seam, Seams
from otel_tf.telemetry import Pipeline

__all__ = ["WorkersSeam"]

Call = Callable[..., Any]

_logger = logging.getLogger(__name__)
_TALKING = Guard("talking to the other workers")

#: How often `instrument` was called in this process. All workers run the same program, so the same number
#: is the same occasion.
_occasions = itertools.count()
#: How long the end of the process may wait for the thread, in s. It is woken by a message to itself.
_LAST_WORD_S = 0.5


class WorkersSeam(Seam):
    """One worker's talk with the others."""

    def __init__(self, pipeline: Pipeline, settings: Settings, identity: Identity) -> None:
        self._pipeline = pipeline
        occasion = str(next(_occasions))
        self._name = RunName(pipeline, identity, occasion)
        self._probes = ClockProbes(pipeline, settings, identity, occasion)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._forget_exit: Callable[[], None] = lambda: None

    def attach(self, seams: Seams) -> None:
        """Wraps the strategy's set-up, and starts at once where it is done already.

        Raises:
            DidNotInstrument: This TensorFlow's strategy is not one we know.
        """
        seams.wrap(strategies.CollectiveAllReduceExtended, "_initialize_strategy", self._initialize_strategy)
        # A thread that comes back from TensorFlow while Python goes down would abort the process.
        self._forget_exit = self._pipeline.before_exit(self._end)
        self._name.watch()
        self._begin()

    def detach(self) -> None:
        """Ends the talk; waits a moment for the thread."""
        self._forget_exit()
        self._end(_LAST_WORD_S)

    def _initialize_strategy(
        self, wrapped: Call, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._name.joining = True
        try:
            result = wrapped(*args, **kwargs)
        finally:
            self._name.joining = False
        with _TALKING:
            self._begin()
        return result

    def _begin(self) -> None:
        with self._lock:
            if self._thread is not None or not key_value.ready():
                return
            self._thread = threading.Thread(target=self._talk, name="otel-tf workers", daemon=True)
            self._thread.start()

    def _talk(self) -> None:
        with _TALKING:
            try:
                self._name.agree(self._stopped)
                self._probes.run(self._stopped)
            except tf.errors.OpError as error:
                # Expected: the service goes when the chief goes.
                _logger.debug("no more talk with the other workers: %s", error.message)

    def _end(self, timeout_s: float) -> None:
        self._stopped.set()
        thread = self._thread
        if thread is not None and thread.is_alive():
            # Not by this thread: the service may hang, and exit must not.
            cancel = self._pipeline.every(0.0, self._wake)
            thread.join(min(timeout_s, _LAST_WORD_S))
            cancel()
        self._name.give_up("the process ended before the chief had told its run's name")

    def _wake(self) -> None:
        thread = self._thread
        if thread is not None and thread.is_alive():
            with contextlib.suppress(tf.errors.OpError):
                self._probes.wake()
