"""How fast the correlator is after ingest, how much memory it takes, and how right it is.

    python benchmarks/correlate.py [--spans 1e6 1e7] [--format table|json]

Speed: a parameter server and 15 workers, one 20 ms clock step, everything but reading the input. Each size
runs in a process of its own, so that its peak memory is its own, and beside a DuckDB sort of the same rows:
the ratio of the two times says more than either on a machine that others use too. Accuracy: the standard
scenario (16 clocks, 240,000 events) against the simulator's truth, beside what others do about clocks.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from otel_tf.correlator import baselines
from otel_tf.correlator.columns import from_spans
from otel_tf.correlator.edges import causal_edges
from otel_tf.correlator.engines.duckdb import DuckEngine
from otel_tf.correlator.pipeline import correlate_tables
from otel_tf.correlator.simulate import Scenario, simulate
from otel_tf.correlator.tables import CLOCKS, LINKS, SPANS, Ingested

REFERENCE = "host-ps-0"
ROUNDS = 3


def measure(path: Path) -> dict[str, Any]:
    """Correlates the spans of a Parquet file a few times, and sorts them with DuckDB in between."""
    spans = pq.read_table(path).cast(SPANS)
    # What reading took beyond the rows themselves is not what is measured.
    pa.default_memory_pool().release_unused()
    took, sorting, user, system, peak = [], [], [], [], 0
    for _ in range(ROUNDS):
        began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        result = correlate_tables(Ingested(spans, LINKS.empty_table(), CLOCKS.empty_table()))
        took.append(time.perf_counter() - began)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        user.append(usage.ru_utime - used.ru_utime)
        system.append(usage.ru_stime - used.ru_stime)
        report = result.report
        del result
        # The high-water mark of the process: after the first sort it would be that one's.
        peak = peak or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        sorting.append(sort(spans))
    return {
        "spans": spans.num_rows,
        "seconds": round(min(took), 2),
        # Beside the clock on the wall: what the processor did, on a machine that others use too, and of it
        # what the kernel took for giving out memory.
        "user_seconds": round(min(user), 2),
        "system_seconds": round(min(system), 2),
        "spans_per_second": round(spans.num_rows / min(took)),
        "sort_seconds": round(min(sorting), 2),
        "ratio_to_sort": round(min(took) / min(sorting), 2),
        "peak_mb": round(peak / 1024),
        "input_mb": round(spans.nbytes / 2**20),
        "violations": report["violations"],
        "quarantined": len(report["quarantined"]),
    }


def sort(spans: pa.Table) -> float:
    """Seconds that DuckDB takes to sort the rows by timeline and time into a new table."""
    connection = duckdb.connect()
    connection.register("spans", spans)
    began = time.perf_counter()
    connection.execute("CREATE TABLE sorted AS SELECT * FROM spans ORDER BY process, domain, start_ns")
    return time.perf_counter() - began


def speed(sizes: list[int]) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            path = Path(folder) / f"{size}.parquet"
            # In a process of its own as well: the simulator's memory is not the correlator's.
            for task in (["--write", str(size)], ["--measure"]):
                done = subprocess.run(
                    [sys.executable, __file__, *task, "--file", str(path)], check=True, stdout=subprocess.PIPE
                )
            rows.append(json.loads(done.stdout))
            path.unlink()
    return rows


def accuracy() -> list[dict[str, Any]]:
    """Errors against the truth, edges in the wrong order, and the reference's events out of order."""
    run = simulate(Scenario(workers=15, spans=120_000, step_ms=20.0))
    columns = from_spans(run.ingested.spans)
    edges = causal_edges(columns, baselines.raw(columns), run.ingested.links, DuckEngine())
    truth = np.stack([run.true_start_ns, run.true_end_ns], axis=1).ravel()
    reference = columns.domains.index(REFERENCE)
    lane = np.repeat(columns.timeline_domain[columns.timeline], 2)
    result = correlate_tables(run.ingested, reference=REFERENCE)
    ours = np.stack(
        [result.spans[f"corrected_{end}_ns"].to_numpy() for end in ("start", "end")], axis=1
    ).ravel()
    bar = np.repeat(result.spans["error_ns"].to_numpy(), 2)
    methods = {
        "raw clocks": baselines.raw(columns),
        "first event aligned": baselines.first_event(columns, reference),
        "Jaeger's adjuster": baselines.jaeger(columns, edges),
        "straight line": baselines.linear_fit(columns, edges, reference),
        "otel-tf": ours,
    }
    rows = []
    for name, times in methods.items():
        error = np.abs(times - truth)
        served = np.flatnonzero(lane == reference)
        served = served[np.argsort(truth[served], kind="stable")]
        rows.append(
            {
                "method": name,
                "violated_edges": int((times[edges.src] >= times[edges.dst]).sum()),
                "inverted_on_reference": int((np.diff(times[served]) < 0).sum()),
                **{f"p{p}_us": round(float(np.percentile(error, p)) / 1e3, 2) for p in (50, 99, 100)},
                "within_bar": float((error <= bar).mean()) if name == "otel-tf" else None,
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    cells = [
        list(rows[0]),
        *(
            [("-" if v is None else f"{v:,}") if not isinstance(v, str) else v for v in row.values()]
            for row in rows
        ),
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--spans", nargs="*", type=lambda text: int(float(text)), default=[1_000_000, 10_000_000]
    )
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument("--write", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.write:
        run = simulate(Scenario(workers=15, spans=args.write, step_ms=20.0))
        pq.write_table(run.ingested.spans, args.file, compression="zstd")
        return
    if args.measure:
        print(json.dumps(measure(args.file)))
        return
    report: dict[str, Any] = {"accuracy": accuracy(), "speed": speed(args.spans)}
    if len(report["speed"]) > 1:
        first, last = report["speed"][0], report["speed"][-1]
        report["time_ratio"] = round(last["seconds"] / first["seconds"], 2)
        report["user_time_ratio"] = round(last["user_seconds"] / first["user_seconds"], 2)
        report["size_ratio"] = round(last["spans"] / first["spans"], 2)
    if args.format == "json":
        print(json.dumps(report, indent=1))
        return
    print(table(report["accuracy"]))
    print(table(report["speed"]) if report["speed"] else "")
    if "time_ratio" in report:
        print(
            f"{report['size_ratio']} times the spans took {report['time_ratio']} times as long, "
            f"{report['user_time_ratio']} times the processor's time"
        )


if __name__ == "__main__":
    main()
