"""`otel-tf simulate`: a run with known truth, for measuring correlators."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from otel_tf.errors import UserError

__all__ = ["add_parser", "run"]

#: Option, type, default and help of what becomes a field of `Scenario`.
_OPTIONS: tuple[tuple[str, type, int | float, str], ...] = (
    ("--workers", int, 16, "number of workers"),
    ("--spans", int, 100_000, "about how many spans"),
    ("--offset-ms", float, 50.0, "standard deviation of the clocks' offsets"),
    ("--drift-ppm", float, 15.0, "standard deviation of the clocks' drifts"),
    ("--step-ms", float, 0.0, "size of one step of one worker's clock, half-way through"),
    ("--wander-ppm", float, 0.0, "random walk of the clocks' rates, per square root of a second"),
    ("--slew-ppm", float, 0.0, "every second clock is slewed by this much for a quarter of the run"),
    ("--loss", float, 0.0, "share of the spans that never arrived"),
    ("--latency-us", float, 50.0, "least one-way latency"),
    ("--tail-us", float, 20.0, "scale of the heavy tail on top of it"),
    ("--one-sided", float, 0.5, "share of the least latency that the way there takes"),
    ("--restarts", int, 0, "how often each worker's process restarts"),
    ("--threads", int, 1, "streams of steps per worker"),
    ("--straggler", float, 1.0, "factor on the duration of worker 0's steps"),
    ("--seed", int, 0, "seed; the same seed gives the same files"),
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "simulate",
        help="write a run with known truth",
        description="Write a run that never happened as OTLP JSON lines, and truth.parquet beside it: "
        "when everything really was. Domain 0 keeps true time; correlate with its clock as reference.",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--topology", choices=("star", "ring", "coordinator", "barrier"), default="star")
    for option, kind, default, text in _OPTIONS:
        parser.add_argument(
            option, type=kind, default=default, metavar="N", help=f"{text} (default {default})"
        )
    parser.add_argument(
        "--monotonic", action="store_true", help="spans carry the monotonic clock of their start"
    )
    parser.add_argument("--float-stamps", action="store_true", help="what a graph stamps is float64 seconds")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Simulates and writes.

    Raises:
        UserError: A value is out of range, or the folder cannot be written.
    """
    from otel_tf.correlator.simulate import Scenario, simulate
    from otel_tf.correlator.simulate_files import write

    names = [option[2:].replace("-", "_") for option, *_ in _OPTIONS]
    scenario = Scenario(
        topology=args.topology,
        monotonic=args.monotonic,
        float_stamps=args.float_stamps,
        **{name: getattr(args, name) for name in names},
    )
    simulated = simulate(scenario)
    try:
        truth = write(simulated, args.out)
    except OSError as error:
        raise UserError(f"{args.out}: {error.strerror or error}") from None
    report = {
        "spans": simulated.ingested.spans.num_rows,
        "violations_raw": simulated.inversions(),
        "truth": str(truth),
    }
    if args.format == "json":
        print(json.dumps(report))
    else:
        print(
            f"{report['spans']:,} spans in {args.out}, {report['violations_raw']:,} edges against the clocks"
        )
        print(f"truth in {truth}", file=sys.stderr)
    return 0
