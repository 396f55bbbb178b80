"""Asking a running program for a profile: a file touched in its run directory, or a signal.

A signal touches the file: all processes of the run that share its directory see the request, whoever got it.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Literal, NamedTuple

from otel_tf.telemetry import Pipeline

__all__ = ["REQUEST_FILE", "Request", "Requests", "signal_of"]

_logger = logging.getLogger("otel_tf")

#: In the run directory.
REQUEST_FILE = "profile.request"

#: How long a request stands for what others notice at the same time, in s.
_LATELY_S = 30.0

Reason = Literal["slow", "request"]


class Request(NamedTuple):
    """A request: its name, the same in all processes; when it was made, s since the epoch; and why."""

    name: str
    time_s: float
    reason: Reason


def signal_of(name: str) -> signal.Signals:
    """Returns the signal of a name such as ``SIGUSR2``, ``USR2`` or ``12``.

    Raises:
        ValueError: There is none, or it cannot be handled.
    """
    if name.isdecimal():
        number = signal.Signals(int(name))
    else:
        upper = name.upper()
        try:
            number = signal.Signals[upper if upper.startswith("SIG") else f"SIG{upper}"]
        except KeyError:
            raise ValueError("no signal of this system, such as SIGUSR2") from None
    if number in (signal.SIGKILL, signal.SIGSTOP):
        raise ValueError("it cannot be handled")
    return number


class Requests:
    """Takes requests made since it began to listen.

    Args:
        pipeline: Knows the run directory.
        number: The signal to listen for, or None.
    """

    def __init__(self, pipeline: Pipeline, number: signal.Signals | None) -> None:
        self._pipeline = pipeline
        self._signal = number
        self._seen_ns = time.time_ns()
        self._made: Reason | None = None
        self._previous: object = None

    def listen(self) -> None:
        """Begins to listen for the signal; a handler of the program's own is called after ours."""
        if self._signal is None:
            return
        if threading.current_thread() is not threading.main_thread():
            _logger.warning("OTEL_TF_PROFILE_SIGNAL is not listened for: instrument in the main thread")
            return
        self._previous = signal.signal(self._signal, self._signalled)

    def ignore(self) -> None:
        """Puts the program's own handler back."""
        if self._signal is None or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(self._signal) == self._signalled:
            # None is a handler that was not installed from Python: it cannot be put back.
            signal.signal(self._signal, self._previous or signal.SIG_DFL)  # type: ignore[arg-type]

    def make(self, reason: Reason) -> None:
        """Makes a request, for all processes that share the run directory."""
        self._made = reason

    def take(self) -> Request | None:
        """Returns a request that was not taken yet."""
        reason, self._made = self._made, None
        file = self._pipeline.run_dir / REQUEST_FILE
        try:
            if reason == "request" or (reason == "slow" and not self._asked_lately(file)):
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch()
            asked_ns = file.stat().st_mtime_ns
        except OSError:
            if reason is None:
                return None
            asked_ns = time.time_ns()  # the folder cannot be written: for this process alone
        if asked_ns <= self._seen_ns and reason is None:
            return None
        self._seen_ns = asked_ns
        name = time.strftime("request-%Y%m%d-%H%M%S", time.gmtime(asked_ns // 1_000_000_000))
        return Request(name, asked_ns / 1e9, reason or "request")

    @staticmethod
    def _asked_lately(file: Path) -> bool:
        """Returns whether another process has noticed as well that steps are slow, and asked."""
        try:
            return time.time() - file.stat().st_mtime < _LATELY_S
        except FileNotFoundError:
            return False

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        # No lock may be taken here: the signal may have come in the middle of anything.
        self._made = "request"
        if callable(self._previous):
            self._previous(number, frame)
