"""The report of `otel-tf correlate` for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["render"]

_MOST_ROWS = 40


def render(report: dict[str, Any]) -> str:
    """Returns the report as text: first whether it can be trusted, then workers, then clocks."""
    parts = [_head(report), _workers(report), _clocks(report), _skipped(report), _missing(report)]
    return "\n\n".join(part for part in parts if part)


def _head(report: dict[str, Any]) -> str:
    seconds = report.get("seconds", {})
    took = " + ".join(f"{name} {value:.1f} s" for name, value in seconds.items())
    lines = [
        f"Run {report['run_id'] or '(unnamed)'}: {report['spans']:,} spans of {report['processes']:,} "
        f"processes on {report['domains']:,} clocks, {report['edges']:,} edges ({took})",
        f"Order: {_violations(report['violations'])}. The wall clocks alone put "
        f"{report['wall_clock_inversions']:,} edges the wrong way round.",
    ]
    quarantined = report["quarantined"]
    if quarantined:
        lines.append(f"Set aside, because they contradict the others: {len(quarantined):,} edges, the first:")
        lines += [f"  {_one_line(item)}" for item in quarantined[:3]]
    return "\n".join(lines)


def _violations(count: int) -> str:
    return "no violation" if count == 0 else f"{count:,} VIOLATIONS"


def _one_line(item: Any) -> str:
    if isinstance(item, dict):
        return ", ".join(f"{key} {value}" for key, value in item.items())
    return str(item)


def _workers(report: dict[str, Any]) -> str:
    steps, staleness, waits = (report.get(key) or {} for key in ("steps", "staleness", "waits"))
    scores = {item["worker"]: item["score"] for item in report.get("stragglers") or []}
    names = sorted({*steps, *staleness, *waits, *scores}, key=_natural)
    if not names:
        return ""
    header = (
        "WORKER",
        "STEPS",
        "FIRST",
        "LAST",
        "STALENESS p50",
        "p99",
        "max",
        "FROM",
        "WAIT mean",
        "p99",
        "LATE",
    )
    rows = []
    for name in names:
        step, stale, wait = (table.get(name) or {} for table in (steps, staleness, waits))
        rows.append(
            (
                name,
                _number(step.get("count")),
                _number(step.get("first")),
                _number(step.get("last")),
                *(_number(stale.get(key)) for key in ("p50", "p99", "max")),
                str(stale.get("source") or "-"),
                *(_seconds(wait.get(key)) for key in ("mean_s", "p99_s")),
                "-" if name not in scores else f"{scores[name]:.2f}",
            )
        )
    return _table(header, rows)


def _clocks(report: dict[str, Any]) -> str:
    rows = []
    for clock in report.get("clocks") or []:
        stepped = clock.get("steps") or []
        rows.append(
            (
                str(clock["domain"]),
                _signed_ns(clock.get("offset_ns")),
                "?" if clock.get("error_ns") is None else f"± {_ns(clock['error_ns'])}",
                "-" if clock.get("drift_ppm") is None else f"{clock['drift_ppm']:+.2f} ppm",
                "-" if not stepped else f"{len(stepped)} ×, {_signed_ns(stepped[0]['size_ns'])}",
            )
        )
    return _table(("CLOCK", "AHEAD BY", "ERROR", "DRIFT", "STEPPED"), rows) if rows else ""


def _skipped(report: dict[str, Any]) -> str:
    skipped, first = report.get("skipped") or {}, report.get("first_skipped") or {}
    if not skipped:
        return ""
    lines = [f"Left out or mended: {sum(skipped.values()):,}"]
    for reason in sorted(skipped, key=lambda reason: (-skipped[reason], reason)):
        example = first.get(reason)
        lines.append(
            f"  {skipped[reason]:,} × {reason.replace('_', ' ')}" + (f", first: {example}" if example else "")
        )
    return "\n".join(lines)


def _missing(report: dict[str, Any]) -> str:
    """Returns what Jaeger lacks; nothing where all is there, or the source is none."""
    missing = {key: count for key, count in (report.get("missing") or {}).items() if count}
    if not missing:
        return ""
    names = {"sequence": "sequence numbers of processes"}
    counts = ", ".join(f"{count:,} {names.get(key, key)}" for key, count in missing.items())
    return f"No longer in Jaeger, or never: {counts}. The run directories have all that was recorded."


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rows = list(rows)
    more = len(rows) - _MOST_ROWS
    shown = [header, *rows[:_MOST_ROWS]]
    widths = [max(len(row[column]) for row in shown) for column in range(len(header))]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in shown
    ]
    return "\n".join([*lines, f"… and {more} more (--format json has all)"] if more > 0 else lines)


def _natural(name: str) -> tuple[str, int, str]:
    role, _, index = name.rpartition(":")
    return (role, int(index), name) if index.isdigit() else (name, -1, name)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else _ns(value * 1e9)


def _signed_ns(value: float | None) -> str:
    return "?" if value is None else ("-" if value < 0 else "+") + _ns(abs(value))


def _ns(value: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}" if value < 1000 * size else f"{value / size:,.0f} {unit}"
    return f"{value:.0f} ns"
