"""What the demo found out about its own run: as JSON keys, and as a text to read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from otel_tf import semconv

if TYPE_CHECKING:
    from otel_tf.correlator import Result
    from otel_tf.demo.clocks import FalseClocks
    from otel_tf.demo.viewer import Viewer

__all__ = ["answer", "print_table"]


def answer(
    result: Result, trained: dict[str, Any], *, run_dir: Path, clocks: FalseClocks, jaeger_url: str | None
) -> dict[str, Any]:
    """Returns the demo's JSON object: the run's report and what the training itself said."""
    report = result.report
    names = result.spans.column("name").cast("string")
    dispatches = pc.sum(pc.equal(names, semconv.SPAN_DISPATCH)).as_py() or 0
    closures = pc.sum(pc.equal(names, semconv.SPAN_CLOSURE)).as_py() or 0
    return {
        "run_dir": str(run_dir),
        "run_id": report["run_id"],
        "accuracy": trained["accuracy"],
        "spans": report["spans"],
        "steps": {worker: row["count"] for worker, row in report["steps"].items()},
        "closures": closures,
        "retries": dispatches - closures,
        "staleness": report["staleness"],
        "wall_clock_inversions": report["wall_clock_inversions"],
        "violations": report["violations"],
        "edges": report["edges"],
        "clocks": report["clocks"],
        "false_clocks": clocks.problem is None,
        "jaeger_url": jaeger_url,
    }


def print_table(found: dict[str, Any], viewer: Viewer) -> None:
    """Prints the answer for a person."""
    run_dir, run_id = found["run_dir"], found["run_id"]
    print(f"Run {run_id}: test accuracy {found['accuracy']:.3f}, {found['spans']:,} spans")
    print(f"  closures {found['closures']:,}, retries {found['retries']:,}")
    print("\nWorker        steps   staleness p50 / p99 / max")
    for worker, steps in sorted(found["steps"].items()):
        stale = found["staleness"].get(worker)
        numbers = f"{stale['p50']:.0f} / {stale['p99']:.0f} / {stale['max']}" if stale else "-"
        print(f"  {worker:<10} {steps:>6,}   {numbers}")
    print("\nClock          offset            drift")
    for clock in found["clocks"]:
        if clock["offset_ns"] is None:
            print(f"  {clock['domain']:<12} unknown")
        else:
            offset, error = clock["offset_ns"] / 1e9, (clock["error_ns"] or 0) / 1e6
            print(f"  {clock['domain']:<12} {offset:+.6f} s ± {error:.3f} ms  {clock['drift_ppm']:+.1f} ppm")
    print(
        f"\nOf {found['edges']:,} pairs of cause and effect the wall clocks had "
        f"{found['wall_clock_inversions']:,} in the wrong order; {found['violations']} remain."
    )
    print(f"\nThe run lies in {run_dir}")
    print(f"  again:       otel-tf correlate {run_dir}")
    print(viewer.note)
    if viewer.ui:
        print(f"  as recorded: {viewer.ui}/search?service=otel-tf-demo")
        print(f"  in order:    {viewer.ui}/search?service=otel-tf-demo.logical%20worker%3A0")
        print(f"  from there:  otel-tf correlate 'jaeger+{viewer.ui}?run={run_id}'")
    elif viewer.otlp is None:
        print(f"  to see it in a Jaeger: otel-tf correlate {run_dir} --to jaeger=http://localhost:4318")
