"""The head of a line, in every format that TensorFlow and what is around it write."""

from __future__ import annotations

import datetime

import pytest

from otel_tf.logs.heads import Clock, Head, parse_head
from otel_tf.logs.severity import DEBUG, ERROR, FATAL, INFO, WARN, name_of, of_python, of_word

S = 1_000_000_000


def at(*moment: int, micros: int = 0, hours: int = 0) -> int:
    zone = datetime.timezone(datetime.timedelta(hours=hours))
    return int(datetime.datetime(*moment, tzinfo=zone).timestamp()) * S + micros * 1000


def parse(text: str, clock: Clock | None = None) -> Head:
    head = parse_head(text, clock or Clock(0, 2026))
    assert head is not None
    return head


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "W0000 00:00:1796106434.427519   13849 local_rendezvous.cc:412] aborting",
            Head("absl", 1796106434427519000, WARN, "aborting", "local_rendezvous.cc", 412, 13849),
        ),
        (
            "F0000 00:00:1796106434.000001 7 a.cc:1] ",
            Head("absl", 1796106434000001000, FATAL, "", "a.cc", 1, 7),
        ),
        (
            "2022-10-07 19:20:09.182892: I tensorflow/core/platform/x.cc:272] a: b",
            Head(
                "tensorflow",
                at(2022, 10, 7, 19, 20, 9, micros=182892),
                INFO,
                "a: b",
                "tensorflow/core/platform/x.cc",
                272,
            ),
        ),
        (
            "W0321 11:07:13.326980 139776 file.cc:7] msg",
            Head("glog", at(2026, 3, 21, 11, 7, 13, micros=326980), WARN, "msg", "file.cc", 7, 139776),
        ),
        (
            "I0212 22:37:01.813548 139900828899072 tf_logging.py:115] Running local_init_op.",
            Head(
                "python",
                at(2026, 2, 12, 22, 37, 1, micros=813548),
                INFO,
                "Running local_init_op.",
                "tf_logging.py",
                115,
                139900828899072,
            ),
        ),
        ("ERROR:tensorflow:a:b", Head("python", None, ERROR, "a:b", logger="tensorflow")),
        ("DEBUG:my.package:x", Head("python", None, DEBUG, "x", logger="my.package")),
        ("WARNING: All log messages", Head("python", None, WARN, "All log messages")),
        (
            "2024-01-02 03:04:05,678 - train - ERROR - it broke",
            Head("timed", at(2024, 1, 2, 3, 4, 5, micros=678000), ERROR, "it broke", logger="train"),
        ),
        (
            "[2024-01-02T03:04:05+01:00] INFO hello",
            Head("timed", at(2024, 1, 2, 3, 4, 5, hours=1), INFO, "hello"),
        ),
        (
            "host-0:17:538 [0] misc/ibvwrap.cu:63 NCCL WARN Failed",
            Head("nccl", None, WARN, "Failed", "misc/ibvwrap.cu", 63, 538),
        ),
        ("host-0:17:538 [0] NCCL INFO rank 0", Head("nccl", None, INFO, "rank 0", thread=538)),
        ("/a/b.py:74: UserWarning: mind", Head("warning", None, WARN, "UserWarning: mind", "/a/b.py", 74)),
        (
            "Traceback (most recent call last):",
            Head("traceback", None, ERROR, "Traceback (most recent call last):"),
        ),
    ],
)
def test_formats(text: str, expected: Head) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        "  indented",
        "[[0]",
        "1\timages/sec: 3",
        "Info: x",
        "E",
        "2022-13-45 99:00:00.1: I a.cc:1] x",
    ],
)
def test_what_has_no_head(text: str) -> None:
    head = parse_head(text, Clock(0))
    assert head is None or head.time_ns is None


def test_local_times_are_of_the_zone_that_is_said() -> None:
    text = "2022-10-07 19:20:09.182892: I a.cc:272] x"
    assert parse(text, Clock(7200)).time_ns == at(2022, 10, 7, 17, 20, 9, micros=182892)


def test_a_year_that_is_not_said_is_that_of_the_lines_before() -> None:
    clock = Clock(0)
    parse("2019-02-12 22:36:52.744292: I a.cc:1] x", clock)
    assert parse("W0212 22:36:59.984549 1 b.py:1] y", clock).time_ns == at(
        2019, 2, 12, 22, 36, 59, micros=984549
    )


def test_a_year_that_nothing_says_is_never_in_the_future() -> None:
    today = datetime.datetime.now(tz=datetime.timezone.utc).date()
    for month in range(1, 13):
        year = Clock(0).year_of(month, 1)
        assert today.year - 1 <= year <= today.year + 1
        assert datetime.date(year, month, 1) <= today + datetime.timedelta(days=1)


def test_severities_keep_the_order_of_python_levels() -> None:
    numbers = [of_python(level) for level in range(70)]
    assert numbers == sorted(numbers)
    assert [of_python(level) for level in (0, 10, 20, 30, 40, 50)] == [0, DEBUG, INFO, WARN, ERROR, FATAL]
    assert [name_of(of_word(word)) for word in ("w", "Warning", "F", "nonsense")] == [
        "WARN",
        "WARN",
        "FATAL",
        "",
    ]
