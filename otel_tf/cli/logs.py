"""`otel-tf logs`: one log of all processes, in causal order."""

from __future__ import annotations

import argparse
import re
import sys
import time
from typing import TYPE_CHECKING, Any

from otel_tf.cli.correlate import steps_range
from otel_tf.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["add_parser", "run"]

_FOLLOW_EVERY_S = 1.0
_LEVELS = ("trace", "debug", "info", "warn", "error", "fatal")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "logs",
        help="put the log lines of all processes into one order",
        description="Merge the log lines of all processes of a run into one causal order, each with its "
        "corrected time, the error bar of that, its worker and the step in flight.",
        epilog="With --import, SOURCE is a plain log file that nobody instrumented, of one process or "
        "interleaved; worker:0=FILE says whose it is. Lines are ordered by what they say themselves, and "
        "how far that went is said.",
    )
    parser.add_argument("sources", nargs="+", metavar="SOURCE")
    parser.add_argument("--import", action="store_true", dest="plain", help="read plain log files")
    parser.add_argument("--run", metavar="ID", help="the run to take; default: the one that ended last")
    parser.add_argument("--reference", metavar="DOMAIN", help="the clock whose time corrected times are in")
    parser.add_argument("--follow", action="store_true", help="go on with what comes, until interrupted")
    parser.add_argument(
        "--worker", action="append", metavar="TASK", help="only of this task, such as worker:1; repeatable"
    )
    parser.add_argument("--step", type=steps_range, metavar="A:B", help="only of the global steps A to B")
    parser.add_argument("--level", choices=_LEVELS, help="only of this level and above")
    parser.add_argument("--grep", type=_pattern, metavar="REGEX", help="only what matches")
    parser.add_argument(
        "--step-pattern",
        type=_pattern,
        metavar="REGEX",
        help="with --import: finds the step, its first group",
    )
    parser.add_argument(
        "--worker-pattern", type=_pattern, metavar="REGEX", help="with --import: finds the worker, likewise"
    )
    parser.add_argument(
        "--utc-offset",
        type=_offset,
        default=0,
        metavar="+HH:MM",
        help="with --import: the zone of times that say none; default: UTC",
    )
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.set_defaults(func=run)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None


def _offset(text: str) -> int:
    match = re.fullmatch(r"([+-])(\d\d):?(\d\d)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not +HH:MM")
    seconds = int(match[2]) * 3600 + int(match[3]) * 60
    return -seconds if match[1] == "-" else seconds


def run(args: argparse.Namespace) -> int:
    """Merges and prints.

    Raises:
        UserError: A source cannot be used.
    """
    from otel_tf.cli._logs_text import Printer

    printer = Printer(sys.stdout, as_json=args.format == "json")
    if args.plain:
        if args.follow:
            raise UserError("--follow follows a run directory, not plain files: tail -f does that")
        printer.write(_kept(_imported(args), args))
        return 0
    if args.follow:
        return _follow(args, printer)
    from otel_tf.correlator.logs import merge

    merged = merge(args.sources, run=args.run, reference=args.reference, say=_say)
    printer.write(_kept(merged.logs, args))
    _say(_how(merged.evidence, merged.duplicates, merged.skipped))
    return 0


def _imported(args: argparse.Namespace) -> pa.Table:
    from otel_tf.logs.evidence import arrange
    from otel_tf.logs.heads import Clock
    from otel_tf.logs.hints import Patterns
    from otel_tf.logs.plain import read_plain

    plain = read_plain(
        args.sources,
        patterns=Patterns(args.step_pattern, args.worker_pattern),
        clock=Clock(args.utc_offset),
    )
    logs, evidence = arrange(plain.logs, plain.file)
    _say(f"{plain.lines:,} lines, {logs.num_rows:,} records; {_how(evidence, 0, {})}; no clock was corrected")
    return logs


def _follow(args: argparse.Namespace, printer: Any) -> int:
    """Prints what is there, then what comes; each time in the order that is known by then."""
    from otel_tf.cli._logs_text import unseen
    from otel_tf.correlator.logs import merge

    seen: set[int] = set()
    said: set[str] = set()

    def say_once(line: str) -> None:
        if line not in said and "spans read" not in line:
            said.add(line)
            _say(line)

    while True:
        try:
            merged = merge(args.sources, run=args.run, reference=args.reference, need=False, say=say_once)
            printer.write(_kept(unseen(merged.logs, seen), args))
            sys.stdout.flush()
        except UserError as error:
            # The run may be about to begin.
            say_once(str(error))
        time.sleep(_FOLLOW_EVERY_S)


def _kept(logs: pa.Table, args: argparse.Namespace) -> pa.Table:
    """Returns the records that the options ask for."""
    import pyarrow as pa
    import pyarrow.compute as pc

    keep = None

    def also(mask: Any) -> None:
        nonlocal keep
        mask = pc.fill_null(mask, False)
        keep = mask if keep is None else pc.and_(keep, mask)

    if args.worker:
        also(pc.is_in(logs["worker"].cast(pa.string()), value_set=pa.array(args.worker)))
    if args.step is not None:
        first, last = args.step
        step = logs["global_step"]
        also(pc.is_valid(step))
        if first is not None:
            also(pc.greater_equal(step, first))
        if last is not None:
            also(pc.less_equal(step, last))
    if args.level is not None:
        also(pc.greater_equal(logs["severity"], 4 * _LEVELS.index(args.level) + 1))
    if args.grep is not None:
        found = [args.grep.search(text) is not None for text in logs["body"].to_pylist()]
        also(pa.chunked_array([pa.array(found, pa.bool_())]))
    return logs if keep is None else logs.filter(keep)


def _how(evidence: dict[str, int], duplicates: int, skipped: dict[str, int]) -> str:
    names = {
        "program": "between events of their own process",
        "clock": "by their host's clock",
        "time": "by their own times",
        "step": "by step",
        "position": "by their place in the file only",
    }
    parts = [f"{count:,} {names[how]}" for how, count in evidence.items() if count]
    text = f"placed: {', '.join(parts) or 'nothing'}"
    if duplicates:
        text += f"; {duplicates:,} lines of stderr left out that a log record has too"
    if skipped:
        text += f"; unusable: {', '.join(f'{count:,} {reason}' for reason, count in skipped.items())}"
    return text


def _say(line: str) -> None:
    print(f"otel-tf: {line}", file=sys.stderr)
