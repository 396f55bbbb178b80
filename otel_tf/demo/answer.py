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
        "reference": report["reference"],
        "example": dict(zip(("step", "worker"), example_step(result), strict=True)),
        "false_clocks": clocks.problem is None,
        "jaeger_url": jaeger_url,
    }


def print_table(found: dict[str, Any], viewer: Viewer, service: str) -> None:
    """Prints the answer for a person.

    Args:
        found: What `answer` returned.
        viewer: The Jaeger that shows it, if any.
        service: Name under which the cluster recorded its spans.
    """
    run_dir, run_id = found["run_dir"], found["run_id"]
    print(f"Run {run_id}: test accuracy {found['accuracy']:.3f}, {found['spans']:,} spans")
    print(f"  closures {found['closures']:,}, retries {found['retries']:,}")
    print("\nWorker        steps   staleness p50 / p99 / max")
    for worker, steps in sorted(found["steps"].items()):
        stale = found["staleness"].get(worker)
        numbers = f"{stale['p50']:.0f} / {stale['p99']:.0f} / {stale['max']}" if stale else "-"
        print(f"  {worker:<10} {steps:>6,}   {numbers}")
    print(f"\nClock, ahead of {found['reference']} by          drift")
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
    print(f"  the whole report:  otel-tf correlate {run_dir}")
    print(f"\n{viewer.note}")
    _print_where(found, viewer, service)


def example_step(result: Result) -> tuple[int, str]:
    """Returns a step in the middle of the run, and the worker that took it."""
    spans = result.spans.select(["name", "global_step", "worker"])
    steps = spans.filter(pc.equal(spans["name"].cast("string"), semconv.SPAN_TRAIN_STEP)).drop_null()
    row = steps.slice(steps.num_rows // 2, 1).to_pylist()
    return (int(row[0]["global_step"]), str(row[0]["worker"])) if row else (1, "worker:0")


def _print_where(found: dict[str, Any], viewer: Viewer, service: str) -> None:
    """Prints what to click or type to see one step as it was recorded and as it was."""
    step, worker = found["example"]["step"], found["example"]["worker"]
    logical = f"{service}{semconv.LOGICAL_SERVICE_SUFFIX} {worker}"
    tags = f"{semconv.GLOBAL_STEP}={step}"
    if viewer.otlp is None:
        run_dir = found["run_dir"]
        print(f"  into a Jaeger:     otel-tf correlate {run_dir} --to jaeger=http://localhost:4318")
        print(f"  or into a file for the upload in Jaeger's UI:  --to otlp={run_dir}/in-order.jsonl")
        return
    if viewer.ui is None:
        print(f"  step {step} as its clocks had it:  in Jaeger's search, Service {service}, Tags {tags}")
        print(f"  and in order:  Service {logical}, the same Tags")
        return
    if not viewer.has_pages:
        print(
            "  This build of Jaeger has no web interface, only the API; releases have one, and so has the "
            "Docker image (otel-tf jaeger --docker)."
        )
    print(f"  step {step} as its clocks had it:  {viewer.search(service, step)}")
    print(f"  the steps around it in order:  {viewer.search(logical, step)}")
    if viewer.has_pages:
        print(f"  another step:  in the search, Tags {semconv.GLOBAL_STEP}=N")
    print(f"  the report from there:  otel-tf correlate '{viewer.source(found['run_id'])}'")
