"""The report of `otel-tf correlate` for people: what is late, by how much, how sure."""

from __future__ import annotations

from typing import Any

from otel_tf.cli._figures import duration, measured, measured_time, natural, number, share, table, time_step

__all__ = ["render"]

_MOST_ROWS = 40
#: A worker that is so much slower than the typical one is named.
_SLOW = 0.1
#: What is known of a staleness, by the report's ``source``.
_SURENESS = {"profile": "exact", "correlated": "counted", "coordinator": "estimated"}


def render(report: dict[str, Any]) -> str:
    """Returns the report as text: first whether it can be trusted, then who is late, workers, clocks."""
    parts = [
        _head(report),
        _late(report),
        _workers(report),
        _clocks(report),
        _skipped(report),
        _missing(report),
    ]
    return "\n\n".join(part for part in parts if part)


def _head(report: dict[str, Any]) -> str:
    seconds = report.get("seconds", {})
    took = " + ".join(f"{name} {value:.1f} s" for name, value in seconds.items())
    covered = report.get("duration_s")
    over = "" if covered is None else f" over {duration(covered * 1e9)}"
    lines = [
        f"Run {report['run_id'] or '(unnamed)'}: {report['spans']:,} spans of {report['processes']:,} "
        f"processes on {report['domains']:,} clocks{over}, {report['edges']:,} edges ({took})",
        f"Order: {_violations(report['violations'])}. The wall clocks alone put "
        f"{report['wall_clock_inversions']:,} edges the wrong way round.",
        *_how_sure(report.get("clocks") or []),
    ]
    quarantined = report["quarantined"]
    if quarantined:
        count = report.get("quarantined_count", len(quarantined))
        lines.append(f"Set aside, because they contradict the others: {count:,} edges, the first:")
        lines += [f"  {_one_line(item)}" for item in quarantined[:3]]
    return "\n".join(lines)


def _violations(count: int) -> str:
    return "no violation" if count == 0 else f"{count:,} VIOLATIONS"


def _how_sure(clocks: list[dict[str, Any]]) -> list[str]:
    """Returns how well clocks are known, in one line each for those that are and those that are not."""
    lines = []
    known = [clock for clock in clocks if clock.get("error_ns")]
    if known:
        worst = max(known, key=lambda clock: clock["error_ns"])
        lines.append(f"Times are known to ± {duration(worst['error_ns'])} (worst: {worst['domain']}).")
    lost = [clock["domain"] for clock in clocks if clock.get("error_ns") is None]
    if lost:
        names = ", ".join(lost[:3]) + (", …" if len(lost) > 3 else "")
        lines.append(f"NOT TIED to the others by any cause, times as recorded: {names}.")
    return lines


def _one_line(item: Any) -> str:
    if isinstance(item, dict):
        return ", ".join(f"{key} {value}" for key, value in item.items())
    return str(item)


def _late(report: dict[str, Any]) -> str:
    """Returns who is late, by how much, how sure; nothing where nobody is."""
    lines = []
    slow = [item for item in report.get("stragglers") or [] if item["score"] >= _SLOW]
    if slow:
        first = max(slow, key=lambda item: item["score"])
        more = "" if len(slow) == 1 else f"; {len(slow) - 1} more are slow"
        lines.append(
            f"Slow: {first['worker']} works {first['score']:.0%} longer on a step than the typical worker, "
            f"waits taken off{more}. Told by durations alone: no clock error is in it."
        )
    staleness = report.get("staleness") or {}
    if staleness:
        name, stale = max(staleness.items(), key=lambda item: (item[1]["p99"], item[1]["max"], item[0]))
        if stale["max"]:
            sure = _SURENESS.get(str(stale.get("source")), "-")
            lines.append(
                f"Behind: {name} applies what is up to {number(stale['max'])} steps old, "
                f"mostly {number(stale['p50'])} ({sure})."
            )
    return "\n".join(lines)


def _workers(report: dict[str, Any]) -> str:
    steps, staleness, waits = (report.get(key) or {} for key in ("steps", "staleness", "waits"))
    scores = {item["worker"]: item["score"] for item in report.get("stragglers") or []}
    names = sorted(
        {*steps, *staleness, *waits, *scores}, key=lambda name: (-scores.get(name, 0.0), natural(name))
    )
    if not names:
        return ""
    header = (
        *("WORKER", "STEPS", "FIRST", "LAST", "BUSY VS TYPICAL"),
        *("STALE p50", "p99", "max", "KNOWN", "WAITED mean", "p99"),
    )
    rows = []
    for name in names:
        step, stale, wait = (each.get(name) or {} for each in (steps, staleness, waits))
        rows.append(
            (
                name,
                *(number(step.get(key)) for key in ("count", "first", "last")),
                "-" if name not in scores else share(scores[name]),
                *(number(stale.get(key)) for key in ("p50", "p99", "max")),
                _SURENESS.get(str(stale.get("source")), "-"),
                *("-" if wait.get(key) is None else duration(wait[key] * 1e9) for key in ("mean_s", "p99_s")),
            )
        )
    return table(header, rows, _MOST_ROWS)


def _clocks(report: dict[str, Any]) -> str:
    clocks = report.get("clocks") or []
    reference = report.get("reference")
    # What nothing is known of first, after the clock that all are compared with.
    clocks = sorted(
        clocks,
        key=lambda clock: (
            clock["domain"] != reference,
            clock.get("error_ns") is not None,
            natural(str(clock["domain"])),
        ),
    )
    rows = [(str(clock["domain"]), *_clock(clock, reference)) for clock in clocks]
    return table(("CLOCK", "AHEAD BY", "DRIFT", "STEPPED"), rows, _MOST_ROWS) if rows else ""


def _clock(clock: dict[str, Any], reference: str | None) -> tuple[str, str, str]:
    stepped = clock.get("steps") or []
    sizes = "-" if not stepped else f"{len(stepped)} ×, {time_step(stepped[0]['size_ns'])}"
    offset, error, drift = (clock.get(key) for key in ("offset_ns", "error_ns", "drift_ppm"))
    if clock["domain"] == reference:
        return "reference", "-", sizes
    if offset is None or error is None:
        return "unknown", "-", sizes
    unsure = clock.get("drift_error_ppm")
    rate = "-" if drift is None or unsure is None else measured(drift, unsure, "ppm")
    return measured_time(offset, error), rate, sizes


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
