"""`otel-tf run`: a training program, recorded without a change to it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from otel_tf.errors import UserError

_SITE = Path(__file__).parent / "site"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "run",
        help="run a training program and record it, without a change to it",
        usage="otel-tf run [-h] [-m] [--] PROGRAM [ARGS ...]",
        description="Becomes `python PROGRAM ARGS…`, in which TensorFlow is instrumented as soon as it is "
        "imported. Exit code, arguments, tracebacks and signals are Python's own. What is configured is "
        "configured by variables: see `otel-tf config`. Python programs that it starts are recorded as well.",
    )
    parser.add_argument(
        "-m", action="store_true", dest="module", help="PROGRAM is a module, as for python -m"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="PROGRAM ARGS", help=argparse.SUPPRESS)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Becomes the program; returns only by raising.

    Raises:
        UserError: No program was named.
    """
    command: list[str] = args.command
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        raise UserError("nothing to run: otel-tf run [-m] PROGRAM ARGS…")
    # What this interpreter was started with (-X dev, -W error) goes for the program too.
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    python = [sys.executable, *flags, *(["-m"] if args.module else [])]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [*python, *command], environment(os.environ))


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment in which Python programs are recorded."""
    others = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != str(_SITE)]
    return {**environ, "PYTHONPATH": os.pathsep.join([str(_SITE), *others])}
