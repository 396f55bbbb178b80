"""Causal order of a run: sources, edges, clocks, repair, order, answers, sinks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from otel_tf.correlator.result import Result

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Result", "correlate"]


def correlate(
    source: str | Sequence[str],
    *,
    run: str | None = None,
    steps: tuple[int | None, int | None] | None = None,
    engine: Literal["duckdb", "spark"] = "duckdb",
    reference: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Result:
    """Returns the spans of one run in causal order, with corrected times and an error bar on each.

    Args:
        source: A run directory, a file (OTLP JSON or protobuf, Jaeger JSON, Parquet) or
            ``jaeger+http://host:port[?run=ID]``; also in object storage, ``s3://bucket/path``; or several
            of them.
        run: The run to take; default: the one that ended last.
        steps: First and last global step to take, both included; either may be None.
        engine: ``duckdb`` in this process, or ``spark`` for what outgrows one machine; same answer.
        reference: The clock domain whose time the corrected times are in; default: the one with the
            most edges to others.
        say: Told what is going on, one line at a time.

    Raises:
        UserError: A source cannot be read or holds nothing usable, there is no such run, reference or
            engine.
    """
    import time

    from otel_tf.correlator import sources
    from otel_tf.correlator.pipeline import correlate_tables

    started = time.perf_counter()
    specs = [source] if isinstance(source, str) else list(source)
    ingested = sources.read(specs, run=run, steps=steps, engine=engine, say=say)
    read = time.perf_counter()
    say(f"{ingested.spans.num_rows:,} spans read in {read - started:.1f} s")
    correlated = correlate_tables(ingested, reference=reference, engine=engine)
    duration_s = _covered_ns(correlated.spans) / 1e9
    for clock in correlated.report["clocks"]:
        # A rate is known no better than where the clock was at both ends of the run.
        error_ns = clock["error_ns"]
        known = error_ns is not None and duration_s > 0
        clock["drift_error_ppm"] = round(error_ns / duration_s / 1e3, 4) if known else None
    report = {
        "skipped": ingested.skipped,
        "first_skipped": ingested.first_skipped,
        "missing": ingested.missing,
        **correlated.report,
        "duration_s": round(duration_s, 6),
        "seconds": {
            "ingest": round(read - started, 3),
            "correlate": round(time.perf_counter() - read, 3),
            "write": 0.0,
        },
    }
    return Result(correlated.spans, correlated.edges, ingested.links, report)


def _covered_ns(spans: pa.Table) -> int:
    """Returns how long it was from the first start to the last end, corrected."""
    import pyarrow.compute as pc

    first, last = pc.min(spans["corrected_start_ns"]), pc.max(spans["corrected_end_ns"])
    return int(last.as_py() - first.as_py())
