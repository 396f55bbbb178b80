"""Entry point of the `otel-tf` command."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from otel_tf import __version__
from otel_tf.errors import OtelTfError

#: Command modules, in the order of the help text. Each imports its heavy parts only when it runs.
_COMMANDS: tuple[str, ...] = (
    "demo",
    "run",
    "correlate",
    "profile",
    "logs",
    "incidents",
    "simulate",
    "jaeger",
    "replay",
    "config",
)


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="otel-tf", description="Make a distributed TensorFlow job explain itself."
    )
    parser.add_argument("--version", action="version", version=f"otel-tf {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in _COMMANDS:
        importlib.import_module(f"otel_tf.cli.{name}").add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns:
        0 done, 1 the answer is "no", 2 bad usage or unreadable input (said in one line).
    """
    args = build_parser().parse_args(argv)
    try:
        code: int = args.func(args)
        sys.stdout.flush()
    except OtelTfError as error:
        print(f"otel-tf: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader went away (`otel-tf … | head`); point stdout elsewhere so that exit stays quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return code
