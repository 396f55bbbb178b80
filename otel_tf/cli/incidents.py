"""`otel-tf incidents`: what failed in a run, root cause first."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

__all__ = ["add_parser", "run"]

_MOST_SHOWN = 12


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "incidents",
        help="group the failures of all processes, root cause first",
        description="Group the errors of all processes of a run, from spans and log lines, into incidents: "
        "what failed first in causal order, on which task, and what only followed from it.",
        epilog="With --import, SOURCE is a plain log file, as for `otel-tf logs`. "
        "Exit codes: 0 done, 1 with --check: there are incidents, 2 bad usage or input.",
    )
    parser.add_argument("sources", nargs="+", metavar="SOURCE")
    parser.add_argument("--import", action="store_true", dest="plain", help="read plain log files")
    parser.add_argument("--run", metavar="ID", help="the run to take; default: the one that ended last")
    parser.add_argument("--check", action="store_true", help="exit with 1 if there are incidents")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Groups and prints.

    Raises:
        UserError: A source cannot be used.
    """
    from otel_tf.correlator.incidents import events_of_logs, events_of_spans, incidents, places_of

    spans = None
    if args.plain:
        from otel_tf.logs.evidence import arrange
        from otel_tf.logs.plain import read_plain

        plain = read_plain(args.sources)
        logs, _ = arrange(plain.logs, plain.file)
        events = events_of_logs(logs)
    else:
        from otel_tf.correlator.logs import merge

        merged = merge(args.sources, run=args.run, need=False, say=_say)
        spans = None if merged.result is None else merged.result.correlated
        logs = merged.logs
        events = events_of_logs(logs) + ([] if spans is None else events_of_spans(spans))
    found = incidents(events, spans, places_of(logs))
    print(json.dumps({"incidents": found}) if args.format == "json" else _text(found))
    return 1 if args.check and found else 0


def _text(found: list[dict[str, Any]]) -> str:
    if not found:
        return "No incidents."
    return "\n\n".join(_one(number, incident) for number, incident in enumerate(found, 1))


def _one(number: int, incident: dict[str, Any]) -> str:
    root = incident["root"]
    where = [root["worker"] or "unknown task"]
    where += [
        f"{name} {root[name]}" for name in ("pod", "host", "device", "op", "step") if root[name] is not None
    ]
    lines = [
        f"{number}. {root['error_type']} on {', '.join(where)}",
        *(f"   {line}" for line in root["message"].splitlines()),
    ]
    others = [worker for worker in incident["workers"] if worker != root["worker"]]
    if others:
        lines.append(f"   also told by: {', '.join(others)}")
    if incident["behind"]:
        slow = ", ".join(f"{item['worker']} by {item['behind']}" for item in incident["behind"][:4])
        lines.append(f"   behind the others then, in steps: {slow}")
    for item in incident["derived"][:_MOST_SHOWN]:
        times = f" × {item['count']}" if item["count"] > 1 else ""
        kind = "follows" if item["derived"] else "same"
        said = item["message"].partition("\n")[0][:100]
        lines.append(f"   - {kind}: {item['told_by'] or '-'}: {item['error_type']}: {said}{times}")
    if len(incident["derived"]) > _MOST_SHOWN:
        lines.append(f"   … and {len(incident['derived']) - _MOST_SHOWN} more (--format json has all)")
    return "\n".join(lines)


def _say(line: str) -> None:
    print(f"otel-tf: {line}", file=sys.stderr)
