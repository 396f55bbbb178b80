"""`otel-tf demo`: a real asynchronous cluster on this machine, then its own run in causal order."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from pathlib import Path

from otel_tf.errors import UserError


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "demo",
        help="train asynchronously on this machine and put the run into causal order",
        description="Starts a coordinator, workers and a parameter server as separate processes, each under "
        "a wrong, drifting clock of its own, and trains on real handwritten digits; one worker is slowed. "
        "Then correlates the run.",
    )
    parser.add_argument("--workers", type=int, default=2, help="number of workers (default 2)")
    parser.add_argument("--steps", type=int, default=2000, help="training steps (default 2000)")
    parser.add_argument("--run-dir", type=Path, help="folder of the run (default ./otel-tf-runs/<run id>)")
    parser.add_argument(
        "--jaeger",
        metavar="URL|none",
        help="OTLP/HTTP endpoint of a Jaeger, such as http://localhost:4318; none sends nothing. Default: "
        "start one, where a binary is at hand (at the usual ports, if they are free), and leave it running",
    )
    parser.add_argument(
        "--kill-worker", action="store_true", help="kill the last worker in the middle; it is started again"
    )
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Runs the demo; returns 1 where an order was still violated at its end.

    Raises:
        UserError: Something the demo needs is not installed, or an option makes no sense.
        DemoError: A process of the cluster ended early.
    """
    from otel_tf import config, ids
    from otel_tf.correlator import correlate
    from otel_tf.demo.answer import answer, print_table
    from otel_tf.demo.clocks import false_clocks
    from otel_tf.demo.cluster import Cluster
    from otel_tf.demo.viewer import Viewer

    missing = [name for name in ("tensorflow", "sklearn") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"the demo needs {' and '.join(missing)}: pip install 'otel-tf[demo]'")
    if args.workers < 1 or args.steps < 1:
        raise UserError("--workers and --steps must be at least 1")

    settings = config.resolve()
    run_id = settings.run_id or ids.new_run_id()
    run_dir = args.run_dir or settings.run_dir or Path("otel-tf-runs") / run_id
    viewer = Viewer.find(args.jaeger)
    clocks = false_clocks()
    if clocks.problem:
        _say(f"All processes keep the true time: {clocks.problem}.")
    variables = {
        "OTEL_TF_RUN_ID": run_id,
        "OTEL_TF_RUN_DIR": str(run_dir.resolve()),
        "OTEL_SERVICE_NAME": os.environ.get("OTEL_SERVICE_NAME") or "otel-tf-demo",
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL") or "1",
        **viewer.environment(),
    }
    cluster = Cluster(args.workers, run_dir.resolve(), variables, clocks)
    _say(f"Starting a coordinator, {args.workers} workers and a parameter server; logs in {run_dir}/logs.")

    def on_step(step: int) -> None:
        _say(f"  step {step} of {args.steps}")
        if args.kill_worker and not cluster.restarts and step >= args.steps // 2:
            victim = f"worker:{args.workers - 1}"
            _say(f"  killing {victim}")
            cluster.kill(victim)

    trained = cluster.run(
        ["--steps", str(args.steps), "--slow-worker", str(args.workers - 1)], on_step=on_step
    )
    result = correlate(str(run_dir), run=run_id, say=_say)
    viewer.write_back(result, _say)
    found = answer(result, trained, run_dir=run_dir, clocks=clocks, jaeger_url=viewer.ui)
    if args.format == "json":
        print(json.dumps(found))
    else:
        print_table(found, viewer, variables["OTEL_SERVICE_NAME"])
    return 1 if found["violations"] else 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
