"""`otel-tf correlate`: the causal order of a run, its clocks, staleness and waits."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time

from otel_tf.errors import UserError

__all__ = ["add_parser", "run", "steps_range"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "correlate",
        help="put the spans of a run into one causal order",
        description="Put the spans of all processes of a run into one causal order, with the clocks "
        "corrected and an error bar on every time, and say who waited for whom.",
        epilog="SOURCE is a run directory; a file of OTLP JSON (lines or one document), OTLP protobuf, "
        "Jaeger JSON or Parquet, also compressed; these in object storage, s3://BUCKET/PATH (also gs, abfs, "
        "hdfs); or jaeger+http://HOST:16686[?run=ID]. "
        "Exit codes: 0 done, 1 with --check: violations or quarantined edges, 2 bad usage or input.",
    )
    parser.add_argument("sources", nargs="+", metavar="SOURCE")
    parser.add_argument("--run", metavar="ID", help="the run to take; default: the one that ended last")
    parser.add_argument(
        "--steps", type=steps_range, metavar="A:B", help="only the global steps A to B, both included"
    )
    parser.add_argument("--engine", choices=("duckdb", "spark"), default="duckdb")
    parser.add_argument(
        "--to",
        action="append",
        default=[],
        metavar="SINK",
        help="parquet=DIR, jaeger=URL (of an OTLP/HTTP endpoint, e.g. http://localhost:4318), otlp=FILE "
        "(for the upload in Jaeger's UI) or perfetto=FILE (for ui.perfetto.dev); may be given several times",
    )
    parser.add_argument(
        "--reference",
        metavar="DOMAIN",
        help="the clock whose time corrected times are in; default: the one with the most edges to others",
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if the order is contradicted")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.set_defaults(func=run)


def steps_range(text: str) -> tuple[int | None, int | None]:
    """Returns first and last step of `A:B`, `A:`, `:B` or `A`; None for an open end."""
    match = re.fullmatch(r"(\d*)(:?)(\d*)", text)
    if not match or not (match[1] or match[3]):
        raise argparse.ArgumentTypeError(f"{text!r} is not A:B, A: or :B")
    first = int(match[1]) if match[1] else None
    last = int(match[3]) if match[3] else None if match[2] else first
    if first is not None and last is not None and last < first:
        raise argparse.ArgumentTypeError(f"{text!r} ends before it begins")
    return first, last


def run(args: argparse.Namespace) -> int:
    """Correlates, writes the sinks, prints the report.

    Raises:
        UserError: A source or sink cannot be used.
    """
    from otel_tf.cli._correlate_text import render
    from otel_tf.correlator import correlate, sinks

    for spec in args.to:
        sinks.check(spec)
    result = correlate(
        args.sources,
        run=args.run,
        steps=args.steps,
        engine=args.engine,
        reference=args.reference,
        say=_say,
    )
    report = result.report
    started = time.perf_counter()
    failed: list[str] = []
    for spec in args.to:
        # A sink that fails must not take the report and the other sinks with it.
        try:
            sinks.write(result, spec, _say)
        except UserError as error:
            failed.append(str(error))
    report["seconds"]["write"] = round(time.perf_counter() - started, 3)
    print(json.dumps(report) if args.format == "json" else render(report))
    if failed:
        raise UserError("; ".join(failed))
    return 1 if args.check and (report["violations"] or report["quarantined"]) else 0


def _say(line: str) -> None:
    print(f"otel-tf: {line}", file=sys.stderr)
