"""Severities: OTLP's numbers, of which each level has four; the first of them is the plain one.

https://opentelemetry.io/docs/specs/otel/logs/data-model/#field-severitynumber
"""

from __future__ import annotations

__all__ = ["DEBUG", "ERROR", "FATAL", "INFO", "TRACE", "UNKNOWN", "WARN", "name_of", "of_python", "of_word"]

UNKNOWN, TRACE, DEBUG, INFO, WARN, ERROR, FATAL = 0, 1, 5, 9, 13, 17, 21

_NAMES = ("", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
_WORDS = {
    "T": TRACE,
    "TRACE": TRACE,
    "V": DEBUG,
    "D": DEBUG,
    "DEBUG": DEBUG,
    "I": INFO,
    "INFO": INFO,
    "NOTICE": INFO,
    "W": WARN,
    "WARN": WARN,
    "WARNING": WARN,
    "E": ERROR,
    "ERR": ERROR,
    "ERROR": ERROR,
    "F": FATAL,
    "FATAL": FATAL,
    "CRITICAL": FATAL,
}


def of_word(word: str) -> int:
    """Returns the severity that a level's name or letter means; 0 for any other word."""
    return _WORDS.get(word.upper(), UNKNOWN)


def of_python(level: int) -> int:
    """Returns the severity of a level of Python's `logging`; levels in between keep their order.

    As OpenTelemetry's own handler has it: 10 steps of Python's are four of OTLP's.
    """
    if level <= 0:
        return UNKNOWN
    if level < 10:
        return TRACE
    if level >= 50:
        return min(FATAL + (level - 50) // 3, 24)
    tens, rest = divmod(level, 10)
    return 4 * tens + 1 + min(rest // 3, 3)


def name_of(number: int) -> str:
    """Returns the level's short name, such as ``WARN``; "" where it is unknown."""
    return _NAMES[min((number + 3) // 4, 6)] if number > 0 else ""
