"""Log records of Python's `logging`, absl's and the `tensorflow` logger's too, as handlers get them.

The seam is `logging.Logger.callHandlers`: what passes a logger's level and filters comes through it once,
whatever handlers there are. A handler of ours would be seen by the program: `logging.basicConfig` and
TensorFlow's own logger set nothing up where there is one already.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from otel_tf import semconv
from otel_tf.logs.severity import of_python
from otel_tf.telemetry import LogRecord

__all__ = ["LogCapture", "StepNow"]

#: About sending: to take those would go in circles.
_NOT_TAKEN = ("opentelemetry.exporter", "opentelemetry.sdk")
#: So would what libraries log in threads of ours (urllib3 every request, for one).
_OUR_THREADS, _OUR_LOGGER = "otel-tf", "otel_tf"
_LONGEST_BODY = 1 << 16
#: Python's own attributes of a record are what ``extra=`` may not set.
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class StepNow(NamedTuple):
    """The step that a thread is in.

    Attributes:
        number: Its global step; None before the first.
        ids: Returns trace and span id, once the run has its name; None between two steps.
    """

    number: int | None
    ids: Callable[[], tuple[int, int]] | None = None


class _Facts(NamedTuple):
    instant: tuple[int, int, int]
    level: int
    level_name: str
    body: str
    logger: str
    file: str
    line: int
    function: str
    thread: str | None
    exception: tuple[str, str, str] | None
    extra: dict[str, Any] | None
    step: StepNow


class LogCapture:
    """Takes the records of all loggers of this process, until it is detached.

    Args:
        log: Takes facts, and what makes a record of them, `Pipeline.log`.
        now: `Pipeline.now`.
        worker: Name of this task.
        step: Returns the step that the calling thread is in.
        prefix: Whether to put ``[worker:1 step 41207]`` before messages that the program's handlers get.
    """

    def __init__(
        self,
        log: Callable[..., None],
        now: Callable[[], tuple[int, int, int]],
        worker: str,
        step: Callable[[], StepNow],
        *,
        prefix: bool = False,
    ) -> None:
        self._log = log
        self._now = now
        self._worker = worker
        self._step = step
        self._prefix = prefix
        self._original: Callable[..., None] | None = None
        self._ours: Callable[..., None] | None = None

    def attach(self) -> None:
        """Begins to take records."""
        if self._ours is not None:
            return
        original = self._original = logging.Logger.callHandlers
        take, prefix = self._take, self._prefixed if self._prefix else None

        def call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
            if self._ours is None:
                original(logger, record)
                return
            step = take(record)
            if prefix is None or step is None:
                original(logger, record)
            else:
                prefix(original, logger, record, step)

        self._ours = call_handlers
        logging.Logger.callHandlers = call_handlers  # type: ignore[assignment,method-assign]

    def detach(self) -> None:
        """Ends it. Where somebody has wrapped the seam meanwhile, ours stays below and passes through."""
        if self._ours is not None and logging.Logger.callHandlers is self._ours:
            assert self._original is not None
            logging.Logger.callHandlers = self._original  # type: ignore[method-assign]
        self._ours = None

    def _take(self, record: logging.LogRecord) -> StepNow | None:
        """Takes one record; None where it is none of the program's."""
        if record.name.startswith(_NOT_TAKEN):
            return None
        thread = record.threadName
        if thread is not None and thread.startswith(_OUR_THREADS) and record.name != _OUR_LOGGER:
            return None
        try:
            instant = self._now()
            step = self._step()
            raised = record.exc_info
            facts = _Facts(
                instant,
                record.levelno,
                record.levelname,
                _message(record),
                record.name,
                record.pathname,
                record.lineno,
                record.funcName,
                record.threadName,
                # A traceback that was kept would keep the tensors of its frames.
                _exception(raised) if raised and raised[0] is not None else None,
                None if len(vars(record)) <= _USUAL else _extra(record),
                step,
            )
            self._log(self._make, facts, urgent=record.levelno >= logging.ERROR)
        except Exception:
            # Whatever a message of the program's raises: its own handlers say so.
            return None
        return step

    def _prefixed(
        self, original: Callable[..., None], logger: logging.Logger, record: logging.LogRecord, step: StepNow
    ) -> None:
        before = record.msg
        number = "" if step.number is None else f" step {step.number}"
        record.msg = f"[{self._worker}{number}] {before}"
        try:
            original(logger, record)
        finally:
            record.msg = before

    def _make(self, facts: _Facts) -> LogRecord:
        """Makes the record, on the flusher's thread."""
        seq, mono_ns, wall_ns = facts.instant
        step = facts.step
        trace_id, span_id = (0, 0) if step.ids is None else step.ids()
        attributes: dict[str, Any] = {
            semconv.WORKER: self._worker,
            semconv.SEQ: seq,
            semconv.MONOTONIC_NS: mono_ns,
        }
        if step.number is not None:
            attributes[semconv.GLOBAL_STEP] = step.number
        attributes[semconv.CODE_FILE_PATH] = facts.file
        attributes[semconv.CODE_LINE_NUMBER] = facts.line
        attributes["code.function.name"] = facts.function
        if facts.thread and facts.thread != threading.main_thread().name:
            attributes["thread.name"] = facts.thread
        if facts.exception is not None:
            kind, message, stacktrace = facts.exception
            attributes[semconv.EXCEPTION_TYPE] = kind
            attributes[semconv.EXCEPTION_MESSAGE] = message
            attributes[semconv.EXCEPTION_STACKTRACE] = stacktrace
        if facts.extra:
            attributes.update(facts.extra)
        return LogRecord(
            wall_ns,
            wall_ns,
            of_python(facts.level),
            facts.level_name,
            facts.body,
            facts.logger,
            attributes,
            trace_id,
            span_id,
        )


_USUAL = len(vars(logging.makeLogRecord({})))


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()[:_LONGEST_BODY]
    except Exception:
        return str(record.msg)[:_LONGEST_BODY]


def _exception(raised: Any) -> tuple[str, str, str]:
    kind, error, trace = raised
    return (
        f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."),
        str(error)[:_LONGEST_BODY],
        "".join(traceback.format_exception(kind, error, trace))[:_LONGEST_BODY],
    )


def _extra(record: logging.LogRecord) -> dict[str, Any] | None:
    """Returns what the program gave as ``extra=``, plain values as they are, others as texts."""
    found = {
        key: value if isinstance(value, (str, bool, int, float)) else str(value)[:1000]
        for key, value in vars(record).items()
        if key not in _PLAIN
    }
    return found or None
