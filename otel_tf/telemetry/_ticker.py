"""Periodic work on daemon threads."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from otel_tf._guard import Guard

__all__ = ["Ticker"]


class _Every:
    __slots__ = ("callback", "due", "guard", "interval_s")

    def __init__(self, interval_s: float, callback: Callable[[], object]) -> None:
        self.interval_s = interval_s
        self.callback = callback
        self.due = time.monotonic() + interval_s
        self.guard = Guard(f"the periodic {getattr(callback, '__qualname__', callback)!s}")


class Ticker:
    """One daemon thread that calls each callback in its own interval; started by the first of them.

    Args:
        name: The thread's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._callbacks: list[_Every] = []
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def every(self, interval_s: float, callback: Callable[[], object]) -> Callable[[], None]:
        """Calls ``callback`` every ``interval_s`` seconds, guarded; returns the undo.

        Counted from the end of the call before: nothing is made up for after a long one.
        """
        every = _Every(interval_s, callback)
        with self._lock:
            self._callbacks = [*self._callbacks, every]
        self.start()
        self._wake.set()

        def undo() -> None:
            with self._lock:
                self._callbacks = [other for other in self._callbacks if other is not every]

        return undo

    def start(self) -> None:
        """Starts the thread; early, for Python starts none once the process exits."""
        with self._lock:
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(
                    target=self._run, args=(self._wake,), name=self._name, daemon=True
                )
                self._thread.start()

    def hurry(self) -> None:
        """Makes the first callback due at once."""
        for every in self._callbacks[:1]:
            every.due = 0.0
        self._wake.set()

    def stop(self) -> None:
        """Ends the thread after the call under way; does not wait for it."""
        self._stopped = True
        self._wake.set()

    def abandon(self) -> None:
        """In a fork's child: the thread is not here, and its callbacks are the parent's."""
        self._callbacks = []
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._thread = None
        self._stopped = False

    def _run(self, wake: threading.Event) -> None:
        while not self._stopped:
            for every in self._callbacks:
                if every.due <= time.monotonic() and not self._stopped:
                    every.due = math.inf
                    with every.guard:
                        every.callback()
                    # Unless `hurry` was called meanwhile.
                    if every.due == math.inf:
                        every.due = time.monotonic() + every.interval_s
            due = min((every.due for every in self._callbacks), default=None)
            wake.wait(None if due is None else max(due - time.monotonic(), 0.0))
            wake.clear()
