"""The head of a log line: time, severity, place, as the formats around TensorFlow write them.

Three formats are C++'s: absl's before it is set up (TensorFlow 2.21: seconds since the epoch), TensorFlow's
own until 2.15 or so (local time), and glog's (local time without the year), which absl for Python writes too.
"""

from __future__ import annotations

import datetime
import re
from typing import NamedTuple

from otel_tf.logs.severity import ERROR, UNKNOWN, WARN, of_word

__all__ = [
    "ABSL",
    "GLOG",
    "NATIVE",
    "NCCL",
    "PYTHON",
    "TENSORFLOW",
    "TIMED",
    "TRACEBACK",
    "WARNING",
    "Clock",
    "Head",
    "parse_head",
    "zoned",
]

#: Formats. The first four are C++'s (absl for Python is told from glog by its file's name).
ABSL, TENSORFLOW, GLOG, NCCL, PYTHON, TIMED, WARNING, TRACEBACK = (
    "absl",
    "tensorflow",
    "glog",
    "nccl",
    "python",
    "timed",
    "warning",
    "traceback",
)
NATIVE = frozenset({ABSL, TENSORFLOW, GLOG, NCCL})


class Head(NamedTuple):
    """What a line says of itself.

    Attributes:
        format: One of the constants above.
        time_ns: ns since the epoch; None where the line has no time.
        severity: OTLP's number, 0 where unknown.
        body: The message.
        file: Source file as written.
        line: Line in it.
        thread: The OS thread's or process's number.
        logger: Name of the Python logger.
    """

    format: str
    time_ns: int | None
    severity: int
    body: str
    file: str | None = None
    line: int | None = None
    thread: int | None = None
    logger: str | None = None


class Clock:
    """Turns local times without zone, or without year, into ns since the epoch.

    Args:
        utc_offset_s: The zone's offset in s; None: this machine's, as it was then.
        year: The year of times that have none; None: that of the last time that had one, else this year, or
            the last where that would be the future.
    """

    def __init__(self, utc_offset_s: int | None = 0, year: int | None = None) -> None:
        self._offset_s = utc_offset_s
        self._year = year
        self._seen: int | None = None
        self._days: dict[tuple[int, int, int, int], int] = {}

    def ns(self, date: tuple[int, int, int], clock: str, fraction: str = "") -> int | None:
        """Returns the time; None for a date that does not exist.

        Args:
            date: Year, month, day.
            clock: ``HH:MM:SS``.
            fraction: Digits behind the point.
        """
        hour = int(clock[:2])
        key = (*date, hour)
        base = self._days.get(key)
        if base is None:
            try:
                base = self._seconds(date, hour)
            except (ValueError, OverflowError, OSError):
                return None
            if len(self._days) > 10_000:
                self._days.clear()
            self._days[key] = base
        seconds = base + int(clock[3:5]) * 60 + int(clock[6:8])
        return seconds * 1_000_000_000 + (int(fraction[:9].ljust(9, "0")) if fraction else 0)

    def _seconds(self, date: tuple[int, int, int], hour: int) -> int:
        zone = datetime.timezone.utc
        if self._offset_s is None:
            # The machine's own zone, daylight saving included.
            return int(datetime.datetime(*date, hour).timestamp())
        return int(datetime.datetime(*date, hour, tzinfo=zone).timestamp()) - self._offset_s

    def saw(self, year: int) -> None:
        """Notes a year that a line has said; others of the same log may not."""
        self._seen = year

    def year_of(self, month: int, day: int) -> int:
        """Returns the year of a date that has none."""
        if self._year is not None or self._seen is not None:
            return self._year or self._seen or 0
        # A day of grace for zones.
        tomorrow = datetime.datetime.now(tz=datetime.timezone.utc).date() + datetime.timedelta(days=1)
        return tomorrow.year - 1 if (month, day) > (tomorrow.month, tomorrow.day) else tomorrow.year


_ABSL = re.compile(
    r"([IWEFD])\d{4} \d\d:\d\d:(\d{9,11})\.(\d{6})\s+(\d+) ([^\s:\]]+):(\d+)\] ?(.*)", re.DOTALL
)
_TF = re.compile(
    r"(\d{4})-(\d\d)-(\d\d) (\d\d:\d\d:\d\d)\.(\d{3,6}): ([IWEFD]) ([^\s:\]]+):(\d+)\] ?(.*)", re.DOTALL
)
_GLOG = re.compile(
    r"([IWEFD])(\d\d)(\d\d) (\d\d:\d\d:\d\d)\.(\d{6})\s+(\d+) ([^\s:\]]+):(\d+)\] ?(.*)", re.DOTALL
)
_LEVELS = "DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL"
_PYTHON = re.compile(rf"({_LEVELS}):([A-Za-z_][\w.\-]*):(.*)", re.DOTALL)
_PLAIN_LEVEL = re.compile(rf"({_LEVELS}): (.*)", re.DOTALL)
#: ISO date and time, in brackets or not, then something, of which the level is looked for near the front.
_TIMED = re.compile(
    r"\[?(\d{4})-(\d\d)-(\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?\]?"
    r"(?:\s*[-|:]?\s+|\s*[|:]\s*)(.*)",
    re.DOTALL,
)
_LEVEL_NEAR = re.compile(rf"(?:^|[\s\[\-|:]{{1,3}})[\[<]?({_LEVELS})[\]>]?(?=[\s:\]|\-])[\s:\]|\-]*")
_NEAR = 80
_NCCL = re.compile(
    r"[\w.\-]+:\d+:(\d+) \[\d+\] (?:([^\s:]+):(\d+) )?NCCL (INFO|WARN|ERROR|TRACE) (.*)", re.DOTALL
)
_WARNING = re.compile(r"(/?[^\s:]+\.py):(\d+): (\w*Warning): (.*)", re.DOTALL)
_TRACEBACK = "Traceback (most recent call last):"


def parse_head(text: str, clock: Clock) -> Head | None:
    """Returns the head of a line; None where it has none: a continuation, or plain output.

    Args:
        text: The line, without what a launcher put before it.
        clock: Says what local times mean.
    """
    first = text[:1]
    if first.isdigit() or first == "[":
        return _dated(text, clock)
    if first in "IWEFD" and text[1:2].isdigit():
        return _lettered(text, clock)
    if first in "DINWECF":
        if match := _PYTHON.match(text):
            level, logger, body = match.groups()
            return Head(PYTHON, None, of_word(level), body, logger=logger)
        if match := _PLAIN_LEVEL.match(text):
            return Head(PYTHON, None, of_word(match[1]), match[2])
    if " NCCL " in text and (match := _NCCL.match(text)):
        thread, file, line, level, body = match.groups()
        return Head(NCCL, None, of_word(level), body, file, int(line) if line else None, int(thread))
    if first == "T" and text.startswith(_TRACEBACK):
        return Head(TRACEBACK, None, ERROR, text)
    if "Warning: " in text and (match := _WARNING.match(text)):
        return Head(WARNING, None, WARN, f"{match[3]}: {match[4]}", match[1], int(match[2]))
    return None


def _lettered(text: str, clock: Clock) -> Head | None:
    if match := _ABSL.match(text):
        letter, seconds, micros, thread, file, line, body = match.groups()
        since_epoch = int(seconds) * 1_000_000_000 + int(micros) * 1000
        return Head(ABSL, since_epoch, of_word(letter), body, file, int(line), int(thread))
    if match := _GLOG.match(text):
        letter, month, day, time, micros, thread, file, line, body = match.groups()
        date = (clock.year_of(int(month), int(day)), int(month), int(day))
        form = PYTHON if file.endswith(".py") else GLOG
        time_ns = clock.ns(date, time, micros)
        return Head(form, time_ns, of_word(letter), body, file, int(line), int(thread))
    return None


def _dated(text: str, clock: Clock) -> Head | None:
    if match := _TF.match(text):
        year, month, day, time, fraction, letter, file, line, body = match.groups()
        time_ns = clock.ns((int(year), int(month), int(day)), time, fraction)
        clock.saw(int(year))
        return Head(TENSORFLOW, time_ns, of_word(letter), body, file, int(line))
    if match := _TIMED.match(text):
        year, month, day, time, fraction, zone, body = match.groups()
        time_ns = zoned(clock, (int(year), int(month), int(day)), time, fraction or "", zone)
        if time_ns is None:
            return None
        level = _LEVEL_NEAR.search(body, 0, _NEAR)
        severity = of_word(level[1]) if level else UNKNOWN
        logger = None
        if level:
            logger, body = body[: level.start()].strip(" -|:[]") or None, body[level.end() :]
        return Head(TIMED, time_ns, severity, body, logger=logger)
    return None


_UTC = Clock(0)


def zoned(clock: Clock, date: tuple[int, int, int], time: str, fraction: str, zone: str | None) -> int | None:
    """Returns a time that may say its zone (``Z``, ``+01:00``), ns since the epoch."""
    if not zone:
        return clock.ns(date, time, fraction)
    time_ns = _UTC.ns(date, time, fraction)
    if time_ns is None or zone == "Z":
        return time_ns
    sign = -1 if zone[0] == "-" else 1
    minutes = int(zone[1:3]) * 60 + int(zone[-2:])
    return time_ns - sign * minutes * 60_000_000_000
