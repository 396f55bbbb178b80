"""The flusher: one daemon thread that drains what the training recorded, and runs periodic callbacks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from otel_tf._guard import Guard

__all__ = ["Flusher"]


class _Every:
    __slots__ = ("callback", "due", "guard", "interval_s")

    def __init__(self, interval_s: float, callback: Callable[[], object], due: float) -> None:
        self.interval_s = interval_s
        self.callback = callback
        self.due = due
        self.guard = Guard(f"the periodic {getattr(callback, '__qualname__', callback)!s}")


class Flusher:
    """Runs ``flush`` every interval and each callback in its own, until stopped.

    Args:
        interval_s: Time between two flushes, in s.
        flush: What to run; guarded.
    """

    def __init__(self, interval_s: float, flush: Callable[[], object]) -> None:
        self._flush = _Every(interval_s, flush, 0.0)
        self._callbacks: list[_Every] = []
        self._restart()

    def _restart(self) -> None:
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.stopped = False

    @property
    def running(self) -> bool:
        """Whether the thread was started and not stopped."""
        return self._thread is not None

    def start(self) -> None:
        """Starts the thread unless it runs or was stopped."""
        with self._lock:
            if self._thread is None and not self.stopped:
                self._thread = threading.Thread(
                    target=self._run, args=(self._wake,), name="otel-tf flusher", daemon=True
                )
                self._thread.start()

    def every(self, interval_s: float, callback: Callable[[], object]) -> Callable[[], None]:
        """Calls ``callback`` every ``interval_s`` seconds on this thread; returns the undo."""
        every = _Every(interval_s, callback, time.monotonic() + interval_s)
        self._callbacks = [*self._callbacks, every]
        self.start()
        self._wake.set()

        def undo() -> None:
            self._callbacks = [other for other in self._callbacks if other is not every]

        return undo

    def stop(self) -> None:
        """Ends the thread after what it is doing now; does not wait."""
        self.stopped = True
        self._wake.set()

    def abandon(self) -> None:
        """In a fork's child: the parent's thread is not here, and its callbacks are the parent's."""
        self._callbacks = []
        self._restart()

    def _run(self, wake: threading.Event) -> None:
        while not self.stopped:
            due = self._flush.due
            for every in (self._flush, *self._callbacks):
                now = time.monotonic()
                if every.due <= now:
                    with every.guard:
                        every.callback()
                    # Counted from now: after a long callback or a suspended machine nothing is made up for.
                    every.due = time.monotonic() + every.interval_s
                due = min(due, every.due) if every is not self._flush else every.due
            wake.wait(max(due - time.monotonic(), 0.0))
            wake.clear()
