"""`otel-tf profile`: XSpaces into op spans, tied to the steps of a run."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from otel_tf.errors import UserError

__all__ = ["add_parser", "run"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "profile",
        help="make spans of the ops in TensorFlow's profiles",
        description="Read TensorFlow's profiles (XSpaces) and make spans of the ops in them: each under its "
        "step, with what happened before what between machines. TensorFlow need not be installed.",
        epilog="With --run and a run directory, all ops are written into it, where `otel-tf correlate` finds "
        "them. Exit codes: 0 done, 2 bad usage or input.",
    )
    parser.add_argument(
        "profiles", nargs="+", metavar="LOGDIR|FILE", help="a log directory, or files *.xplane.pb"
    )
    parser.add_argument(
        "--run",
        action="append",
        default=[],
        metavar="SOURCE",
        help="the spans of the run: a run directory, a file, jaeger+http://HOST:16686?run=ID",
    )
    parser.add_argument(
        "--cluster-spec",
        type=Path,
        metavar="FILE",
        help='JSON that says whose profile is whose: {"worker": ["localhost:32101"]}, or TF_CONFIG',
    )
    parser.add_argument(
        "--to",
        action="append",
        default=[],
        metavar="SINK",
        help="otlp=FILE (JSON lines; protobuf if it ends with .pb), jaeger=URL (of an OTLP/HTTP endpoint, "
        "e.g. http://localhost:4318) or parquet=DIR; may be given several times",
    )
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Reads, writes the sinks, prints the report.

    Raises:
        UserError: A profile, the run or a sink cannot be used.
    """
    from otel_tf.correlator.sinks import check
    from otel_tf.profiler import sinks
    from otel_tf.profiler.pipeline import profile
    from otel_tf.profiler.run import read_cluster

    for spec in args.to:
        check(spec, sinks.KINDS)
    cluster = read_cluster(args.cluster_spec) if args.cluster_spec else {}
    found = profile(args.profiles, run=args.run, cluster=cluster, say=_say)
    failed: list[str] = []
    folders = [Path(source) for source in args.run if "://" not in source and Path(source).is_dir()]
    targets = [("", str(folder)) for folder in folders[:1]] + [(spec, "") for spec in args.to]
    for spec, folder in targets:
        # A sink that fails must not take the report and the other sinks with it.
        try:
            if folder:
                sinks.write_run(found, Path(folder), _say)
            else:
                sinks.write(found, spec, _say)
        except UserError as error:
            failed.append(str(error))
    report = found.report
    print(json.dumps(report) if args.format == "json" else _render(report))
    if failed:
        raise UserError("; ".join(failed))
    return 0


def _say(line: str) -> None:
    print(f"otel-tf: {line}", file=sys.stderr)


def _render(report: dict[str, Any]) -> str:
    from otel_tf.cli._figures import table

    hosts = [
        (
            host["task"] or "-",
            f"{host['events']:,}",
            "yes" if host["absolute_time"] else "no",
            Path(host["file"]).name,
            host["session"],
        )
        for host in report["hosts"]
    ]
    edges, stale = report["edges"], report["staleness"]
    lines = [
        table(("task", "events", "wall clock", "file", "session"), hosts, 40),
        "",
        f"{report['op_spans']:,} ops in {report['steps']:,} steps, {report['linked_steps']:,} of them known",
        f"{edges['send_recv']:,} sends with their receives, {edges['collective']:,} pairs in collectives, "
        f"{edges['apply']:,} applies after another",
    ]
    if stale["exact"] or stale["not_exact"]:
        lines.append(
            f"staleness of {stale['exact']:,} applied gradients is exact, at most {stale['max']}; "
            f"of {stale['not_exact']:,} it is not"
        )
    lines += [
        f"skipped: {count:,} {reason.replace('_', ' ')}, first in {report['first_skipped'][reason]}"
        for reason, count in report["skipped"].items()
    ]
    return "\n".join(lines)
