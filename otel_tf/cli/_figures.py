"""Figures and tables for people: as many digits as are known, and no more."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

__all__ = ["duration", "measured", "measured_time", "natural", "number", "share", "table", "time_step"]

_UNITS = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))


def measured_time(value_ns: float, error_ns: float) -> str:
    """Returns a time and its error bar, in the unit of the larger of the two: ``+8.0011 s ± 2.1 ms``."""
    unit, size = _unit(max(abs(value_ns), error_ns))
    return f"{_rounded(value_ns / size, error_ns / size)} {unit} ± {duration(error_ns)}"


def measured(value: float, error: float, unit: str) -> str:
    """Returns a figure and its uncertainty in the same unit: ``+14.8 ± 0.3 ppm``."""
    return f"{_rounded(value, error)} ± {_two_digits(error)} {unit}"


def share(value: float) -> str:
    """Returns by how much something is more or less than usual: ``+58%``, ``0%``."""
    return f"{value:+.0%}" if round(value, 2) else "0%"


def time_step(value_ns: float) -> str:
    """Returns by how much a clock jumped, with its sign."""
    return ("-" if value_ns < 0 else "+") + duration(abs(value_ns))


def duration(value_ns: float) -> str:
    """Returns a duration with two digits, or all before its point: ``2.1 ms``, ``340 µs``."""
    unit, size = _unit(value_ns)
    # Rounded up to a thousand of its unit, it is one of the next.
    if round(value_ns / size) >= 1000 and unit != "s":
        unit, size = _unit(size * 1000)
    value = value_ns / size
    if unit == "ns":
        return f"{value:.0f} ns"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{_two_digits(value)} {unit}"


def number(value: float | None) -> str:
    """Returns a count, or a figure between counts: ``2``, ``3.8``; a dash for none."""
    if value is None:
        return "-"
    return f"{int(value):,}" if value == int(value) else f"{value:,.1f}"


def natural(name: str) -> tuple[str, int, str]:
    """Returns a key that sorts worker:2 before worker:10."""
    role, _, index = name.rpartition(":")
    return (role, int(index), name) if index.isdigit() else (name, -1, name)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], most: int) -> str:
    """Returns a table of at most so many rows: names to the left, figures to the right."""
    rows = list(rows)
    more = len(rows) - most
    shown = [header, *rows[:most]]
    # What is of nobody is not worth a column.
    used = [0, *(column for column in range(1, len(header)) if any(row[column] != "-" for row in rows))]
    widths = [max(len(row[column]) for row in shown) for column in used]
    lines = [
        "  ".join(
            row[column].rjust(width) if column else row[column].ljust(width)
            for column, width in zip(used, widths, strict=True)
        ).rstrip()
        for row in shown
    ]
    return "\n".join([*lines, f"… and {more} more (--format json has all)"] if more > 0 else lines)


def _unit(value_ns: float) -> tuple[str, float]:
    return next(((unit, size) for unit, size in _UNITS if value_ns >= size), _UNITS[-1])


def _second_digit(value: float) -> int:
    """Returns how many decimals the second digit of ``value`` takes; below 0 for one before the point."""
    return 1 - math.floor(math.log10(value))


def _two_digits(value: float) -> str:
    if value <= 0:
        return "0"
    value = round(value, _second_digit(value))
    return f"{value:,.{max(0, _second_digit(value))}f}"


def _rounded(value: float, error: float) -> str:
    """Returns ``value`` with a sign, to the second digit of ``error``; all of it if that is 0."""
    digit = _second_digit(error) if error > 0 else 9
    value = round(value, digit)
    # What is smaller than the last digit has no sign.
    return f"{value or 0.0:{'+' if value else ''},.{max(0, digit)}f}"
