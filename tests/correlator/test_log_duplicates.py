"""Lines that a handler wrote to stderr, told from those that only stderr has."""

from __future__ import annotations

from typing import Any

from otel_tf.correlator.log_duplicates import without_duplicates
from tests.correlator.support import MS, T0
from tests.correlator.test_log_placing import table


def record(at: int, body: str, **fields: Any) -> dict[str, Any]:
    return {"observed_ns": T0 + at, "process": "p", "pid": "1", "body": body, **fields}


def stderr(at: int, body: str, **fields: Any) -> dict[str, Any]:
    return record(at, body, stream="stderr", **fields)


def left(*rows: dict[str, Any]) -> list[tuple[str, bool]]:
    found, count = without_duplicates(table(list(rows)))
    assert found.num_rows + count == len(rows)
    return [(row["body"], row["stream"] == "stderr") for row in found.to_pylist()]


def test_any_format_and_several_handlers() -> None:
    assert left(
        record(0, "loss is high"),
        stderr(1 * MS, "WARNING:tensorflow:loss is high"),
        stderr(2 * MS, "2024-01-01 WARN loss is high"),
        stderr(3 * MS, "only here"),
    ) == [("loss is high", False), ("only here", True)]


def test_each_record_takes_its_own_lines_only() -> None:
    """The record of the last line was lost with the process: its line stays."""
    rows = []
    for number in range(3):
        rows += [record(number * 100 * MS, "same words"), stderr(number * 100 * MS + MS, "INFO same words")]
    rows.append(stderr(300 * MS, "INFO same words"))
    assert [stream for _, stream in left(*rows)] == [False, False, False, True]


def test_messages_of_several_lines_and_tracebacks() -> None:
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: mine'
    assert left(
        record(0, "first\nsecond", exception_stacktrace=trace),
        stderr(1 * MS, "ERROR first"),
        stderr(1 * MS, "second"),
        stderr(1 * MS, trace),
        stderr(1 * MS, "third"),
    ) == [("first\nsecond", False), ("third", True)]


def test_short_messages_only_at_the_end_of_a_line() -> None:
    assert left(record(0, "3"), stderr(1 * MS, "epoch 3 of 5"), stderr(2 * MS, "INFO 3")) == [
        ("3", False),
        ("epoch 3 of 5", True),
    ]


def test_not_of_another_process_nor_long_after() -> None:
    rows = [
        record(0, "a long message"),
        stderr(MS, "a long message", pid="2"),
        stderr(5000 * MS, "a long message"),
    ]
    assert len(left(*rows)) == 3
