"""One log of a run, in causal order: log records placed among the correlated spans."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from otel_tf.correlator import correlate
from otel_tf.correlator.log_duplicates import without_duplicates
from otel_tf.correlator.log_placing import by_own_time, place
from otel_tf.correlator.log_sources import read_logs
from otel_tf.correlator.result import Result
from otel_tf.correlator.sources.skipped import Skipped
from otel_tf.errors import UserError

__all__ = ["MergedLog", "merge"]


@dataclasses.dataclass(frozen=True)
class MergedLog:
    """The log records of a run.

    Attributes:
        logs: In causal order, rows of `PLACED`.
        evidence: How many were placed by what.
        duplicates: Lines of stderr left out: a record of Python's `logging` is the same.
        skipped: How many lines could not be used, by reason.
        result: The correlation of the spans; None where there are none.
    """

    logs: pa.Table
    evidence: dict[str, int]
    duplicates: int
    skipped: dict[str, int]
    result: Result | None


def merge(
    sources: Sequence[str],
    *,
    run: str | None = None,
    reference: str | None = None,
    need: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> MergedLog:
    """Returns the log records of a run in causal order, each with its corrected time and error bar.

    Args:
        sources: Run directories and OTLP JSON files; what else `correlate` takes may hold the run's spans.
        run: The run to take; default: the one that ended last.
        reference: The clock domain whose time corrected times are in.
        need: Whether it is an error that there are no log records.
        say: Told what is going on, one line at a time.

    Raises:
        UserError: A source cannot be read, holds neither spans nor log records, or there is no such run.
    """
    skipped = Skipped()
    result: Result | None = None
    missing: UserError | None = None
    try:
        result = correlate(sources, run=run, reference=reference, say=say)
    except UserError as error:
        # There may be no spans: servers have none, or nothing of the run has come so far.
        missing = error
    name = run if result is None else result.report["run_id"]
    logs = read_logs(sources, skipped, run=name)
    if not logs.num_rows and (need or missing is not None):
        raise missing or UserError(f"{' '.join(sources)}: no log records of run {name!r}")
    logs, duplicates = without_duplicates(logs)
    if result is None:
        say("no spans here: the order is that of the clocks as they were")
        placed = by_own_time(logs)
    else:
        placed = place(logs, result.correlated, reference=result.report["reference"])
    counts = pc.value_counts(placed["evidence"].combine_chunks().cast(pa.string()))
    evidence = {item["values"].as_py(): item["counts"].as_py() for item in counts}
    return MergedLog(placed, evidence, duplicates, skipped.counts, result)
