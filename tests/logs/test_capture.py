"""Records of Python's logging: taken as handlers get them, while nothing changes for the program."""

from __future__ import annotations

import io
import itertools
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from absl import logging as absl_logging

from otel_tf.logs.capture import LogCapture, StepNow
from otel_tf.telemetry import LogRecord


class Taken:
    """A running capture, and what it took."""

    def __init__(self, *, prefix: bool = False) -> None:
        self.facts: list[tuple[Callable[[Any], LogRecord], Any, bool]] = []
        self.step = StepNow(None)
        numbers = itertools.count(1)
        self.capture = LogCapture(
            self._log, lambda: (next(numbers), 1000, 2000), "worker:1", lambda: self.step, prefix=prefix
        )
        self.capture.attach()

    def _log(self, make: Any, facts: Any, *, urgent: bool = False) -> None:
        self.facts.append((make, facts, urgent))

    @property
    def records(self) -> list[LogRecord]:
        return [make(facts) for make, facts, _ in self.facts]


@pytest.fixture
def taken() -> Iterator[Taken]:
    before = logging.Logger.callHandlers
    one = Taken()
    yield one
    one.capture.detach()
    assert logging.Logger.callHandlers is before


@pytest.fixture
def logger() -> logging.Logger:
    found = logging.getLogger("tests.logs.capture")
    found.setLevel(logging.INFO)
    return found


def test_a_record_with_its_step(taken: Taken, logger: logging.Logger) -> None:
    taken.step = StepNow(41207, lambda: (0xAB, 0xCD))
    logger.warning("loss is %s at %d", "high", 7)
    line = sys._getframe().f_lineno - 1
    (record,) = taken.records
    assert record == LogRecord(
        2000,
        2000,
        13,
        "WARNING",
        "loss is high at 7",
        "tests.logs.capture",
        {
            "tensorflow.worker": "worker:1",
            "tensorflow.seq": 1,
            "tensorflow.monotonic_ns": 1000,
            "tensorflow.global_step": 41207,
            "code.file.path": __file__,
            "code.line.number": line,
            "code.function.name": "test_a_record_with_its_step",
        },
        0xAB,
        0xCD,
    )


def test_only_what_passes_levels_and_filters(taken: Taken, logger: logging.Logger) -> None:
    logger.debug("too low")
    refuse = lambda record: "no" not in record.msg  # noqa: E731 - a filter
    logger.addFilter(refuse)
    try:
        logger.info("no")
        logger.info("yes")
    finally:
        logger.removeFilter(refuse)
    assert [record.body for record in taken.records] == ["yes"]


def test_once_whatever_propagates(taken: Taken, logger: logging.Logger) -> None:
    silent = logging.getLogger("tests.logs.capture.alone")
    silent.propagate = False
    silent.warning("no handler at all")
    logger.warning("to the root")
    assert [record.body for record in taken.records] == ["no handler at all", "to the root"]


def test_absl_and_its_own_place(taken: Taken) -> None:
    absl_logging.error("from absl %d", 3)
    (record,) = taken.records
    assert (record.body, record.scope, record.severity) == ("from absl 3", "absl", 17)
    assert record.attributes["code.file.path"] == __file__


def test_exceptions_and_extras(taken: Taken, logger: logging.Logger) -> None:
    try:
        raise ValueError("mine")
    except ValueError:
        logger.exception("it broke", extra={"batch": 3, "tensor": object})
    ((_, facts, urgent),) = taken.facts
    assert urgent
    # A traceback would hold the frames, and what is in them.
    assert all(not hasattr(part, "tb_frame") for part in facts.exception)
    attributes = taken.records[0].attributes
    assert attributes["exception.type"] == "ValueError"
    assert attributes["exception.message"] == "mine"
    assert attributes["exception.stacktrace"].startswith("Traceback")
    assert attributes["batch"] == 3
    assert attributes["tensor"] == "<class 'object'>"


def test_handlers_and_formats_stay_as_they_are(taken: Taken, logger: logging.Logger) -> None:
    root = logging.getLogger()
    before = list(root.handlers)
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter("%(levelname)s|%(message)s|%(funcName)s"))
    logger.addHandler(handler)
    try:
        logger.info("a %s", "b")
    finally:
        logger.removeHandler(handler)
    assert out.getvalue() == "INFO|a b|test_handlers_and_formats_stay_as_they_are\n"
    assert root.handlers == before


@pytest.mark.parametrize(
    ("number", "expected"), [(7, "[worker:1 step 7] 50% of a"), (None, "[worker:1] 50% of a")]
)
def test_a_prefix_where_it_is_asked_for(logger: logging.Logger, number: int | None, expected: str) -> None:
    one = Taken(prefix=True)
    one.step = StepNow(number)
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    logger.addHandler(handler)
    try:
        logger.info("50%% of %s", "a")
    finally:
        logger.removeHandler(handler)
        one.capture.detach()
    assert out.getvalue() == f"{expected}\n"
    # The record itself is as the program made it.
    assert one.records[0].body == "50% of a"


def test_messages_that_cannot_be_made(taken: Taken, logger: logging.Logger, monkeypatch: Any) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)

    class Bad:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    logger.info("%d", "no number")
    logger.info(Bad())
    logger.info("fine")
    assert [record.body for record in taken.records] == ["%d", "fine"]


def test_lines_about_sending_lines_are_not_taken(taken: Taken) -> None:
    def send() -> None:
        logging.getLogger("urllib3.connectionpool").warning("POST /v1/logs")
        logging.getLogger("otel_tf").warning("cannot be sent")

    logging.getLogger("opentelemetry.exporter.otlp").error("failed")
    for name in ("otel-tf shipper", "the program's"):
        thread = threading.Thread(target=send, name=name)
        thread.start()
        thread.join()
    assert [record.body for record in taken.records] == ["cannot be sent", "POST /v1/logs", "cannot be sent"]


def test_somebody_who_wraps_after_us_is_left_in_place(logger: logging.Logger) -> None:
    before = logging.Logger.callHandlers
    one = Taken()
    ours = logging.Logger.callHandlers
    seen = []

    def theirs(self: logging.Logger, record: logging.LogRecord) -> None:
        seen.append(record.msg)
        ours(self, record)

    logging.Logger.callHandlers = theirs  # type: ignore[method-assign]
    try:
        one.capture.detach()
        logger.info("after")
        assert logging.Logger.callHandlers is theirs
    finally:
        logging.Logger.callHandlers = before  # type: ignore[method-assign]
    assert seen == ["after"]
    assert one.facts == []
