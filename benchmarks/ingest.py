"""How fast spans are read: OTLP JSON lines, OTLP protobuf, Parquet; beside plain DuckDB SQL over the JSON.

    python benchmarks/ingest.py [--spans 400000] [--repeat 3] [--keep DIR] [--json]

Every format holds the same spans (seven attributes, 8 processes, 200 spans a line or message). Ways run in
turns, so that all see the same machine; the median counts. The SQL reads the same columns as we do, and
nothing else: no checks, no duplicates, no runs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from otel_tf import ids

T0 = 1_796_000_000_000_000_000
WORKERS = 8
BATCH = 200

SQL = """
SELECT span.traceId, span.spanId, span.parentSpanId, span.name, span.kind,
       CAST(span.startTimeUnixNano AS BIGINT) AS start_ns, CAST(span.endTimeUnixNano AS BIGINT) AS end_ns,
       process,
       CAST(attribute(span.attributes, 'tensorflow.global_step').intValue AS BIGINT) AS global_step,
       CAST(attribute(span.attributes, 'tensorflow.seq').intValue AS BIGINT) AS seq,
       CAST(attribute(span.attributes, 'tensorflow.monotonic_ns').intValue AS BIGINT) AS mono_ns,
       attribute(span.attributes, 'tensorflow.worker').stringValue AS worker
FROM (
  SELECT unnest(scope.spans) AS span, process FROM (
    SELECT unnest(part.scopeSpans) AS scope,
           attribute(part.resource.attributes, 'service.instance.id').stringValue AS process
    FROM (SELECT unnest(resourceSpans) AS part FROM
      read_json('{path}', format = 'newline_delimited', maximum_object_size = 64000000,
                columns = {{resourceSpans: '{shape}'}}))))
"""
_VALUE = "STRUCT(stringValue VARCHAR, intValue VARCHAR, boolValue BOOLEAN, doubleValue DOUBLE)"
_ATTRIBUTES = f"STRUCT(key VARCHAR, value {_VALUE})[]"
_SPAN = (
    "STRUCT(traceId VARCHAR, spanId VARCHAR, parentSpanId VARCHAR, name VARCHAR, kind INTEGER, "
    f"startTimeUnixNano VARCHAR, endTimeUnixNano VARCHAR, attributes {_ATTRIBUTES})"
)
SHAPE = f"STRUCT(resource STRUCT(attributes {_ATTRIBUTES}), scopeSpans STRUCT(spans {_SPAN}[])[])[]"
MACRO = "CREATE MACRO attribute(pairs, name) AS list_filter(pairs, lambda pair: pair.key = name)[1].value"


def resource_of(worker: int) -> dict[str, str]:
    return {
        "service.name": "mnist",
        "service.instance.id": f"run/worker:{worker}",
        "tensorflow.run.id": "run",
        "tensorflow.clock.domain": f"boot-{worker}",
        "host.name": f"node-{worker}",
    }


def spans(first: int) -> Iterator[dict[str, Any]]:
    for number in range(first, first + BATCH):
        start = T0 + number * 10_000
        yield {
            "trace": ids.trace_id("run", "step", number // WORKERS),
            "span": ids.span_id("run", number),
            "parent": ids.span_id("run", "step", number // WORKERS, "root"),
            "start": start,
            "end": start + 8_000_000,
            "attributes": {
                "tensorflow.global_step": number // WORKERS,
                "tensorflow.local_step": number // WORKERS,
                "tensorflow.worker": f"worker:{first // BATCH % WORKERS}",
                "tensorflow.seq": number,
                "tensorflow.monotonic_ns": start - T0 + 10**12,
                "tensorflow.epoch": number // 100_000,
                "tensorflow.steps_per_execution": 1,
            },
        }


def write_json(path: Path, count: int) -> None:
    def pairs(attributes: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {"key": key, "value": {"intValue": str(v)} if isinstance(v, int) else {"stringValue": v}}
            for key, v in attributes.items()
        ]

    with path.open("w") as file:
        for first in range(0, count, BATCH):
            made = [
                {
                    "traceId": f"{span['trace']:032x}",
                    "spanId": f"{span['span']:016x}",
                    "parentSpanId": f"{span['parent']:016x}",
                    "name": "train_step",
                    "kind": 1,
                    "startTimeUnixNano": str(span["start"]),
                    "endTimeUnixNano": str(span["end"]),
                    "attributes": pairs(span["attributes"]),
                    "status": {},
                }
                for span in spans(first)
            ]
            part = {
                "resource": {"attributes": pairs(resource_of(first // BATCH % WORKERS))},
                "scopeSpans": [{"scope": {"name": "otel_tf"}, "spans": made}],
            }
            file.write(json.dumps({"resourceSpans": [part]}, separators=(",", ":")) + "\n")


def write_proto(path: Path, count: int) -> None:
    from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

    def fill(into: Any, attributes: dict[str, Any]) -> None:
        for key, value in attributes.items():
            kind = "int_value" if isinstance(value, int) else "string_value"
            into.add(key=key, value={kind: value})

    with path.open("wb") as file:
        for first in range(0, count, BATCH):
            message = TracesData()
            part = message.resource_spans.add()
            fill(part.resource.attributes, resource_of(first // BATCH % WORKERS))
            scope = part.scope_spans.add()
            for span in spans(first):
                added = scope.spans.add(
                    trace_id=span["trace"].to_bytes(16, "big"),
                    span_id=span["span"].to_bytes(8, "big"),
                    parent_span_id=span["parent"].to_bytes(8, "big"),
                    name="train_step",
                    kind=1,
                    start_time_unix_nano=span["start"],
                    end_time_unix_nano=span["end"],
                )
                fill(added.attributes, span["attributes"])
            payload = message.SerializeToString()
            file.write(len(payload).to_bytes(4, "big") + payload)


def write_parquet(path: Path, source: Path) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from otel_tf.correlator import sources
    from otel_tf.correlator.sinks.parquet import spans_table

    ingested = sources.read([str(source)])
    zeros = pa.array(np.zeros(ingested.spans.num_rows, np.int64))
    table = ingested.spans.append_column("order", pa.array(np.arange(ingested.spans.num_rows)))
    table = table.append_column("corrected_start_ns", table["start_ns"])
    table = table.append_column("corrected_end_ns", table["end_ns"])
    table = table.append_column("shift_ns", zeros).append_column("error_ns", zeros)
    pq.write_table(spans_table(table, ingested.links), path, compression="zstd", row_group_size=1 << 17)


def read_ours(path: Path) -> int:
    from otel_tf.correlator import sources

    return int(sources.read([str(path)]).spans.num_rows)


def read_duckdb(path: Path) -> int:
    import duckdb

    with duckdb.connect() as connection:
        connection.sql(MACRO)
        return int(connection.sql(SQL.format(path=path, shape=SHAPE)).to_arrow_table().num_rows)


def _processor() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(read: Callable[[Path], int], path: Path, count: int) -> tuple[float, float]:
    """Returns wall seconds, and processor seconds with those of the processes that helped."""
    wall, processor = time.perf_counter(), _processor()
    found = read(path)
    wall, processor = time.perf_counter() - wall, _processor() - processor
    if found != count:
        raise SystemExit(f"{path}: {found} spans read, {count} written")
    return wall, processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spans", type=int, default=400_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="folder for the files; those already there are used")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    count = args.spans // BATCH * BATCH
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        paths = {name: folder / f"{count}.{name}" for name in ("jsonl", "proto", "parquet")}
        print(f"writing {count:,} spans three times", file=sys.stderr)
        for name, write in (("jsonl", write_json), ("proto", write_proto)):
            if not paths[name].exists():
                write(paths[name], count)
        if not paths["parquet"].exists():
            write_parquet(paths["parquet"], paths["jsonl"])
        ways: dict[str, tuple[Callable[[Path], int], Path]] = {
            "OTLP JSON, DuckDB SQL": (read_duckdb, paths["jsonl"]),
            "OTLP JSON": (read_ours, paths["jsonl"]),
            "OTLP protobuf": (read_ours, paths["proto"]),
            "Parquet": (read_ours, paths["parquet"]),
        }
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(args.repeat):
            for name, (read, path) in ways.items():
                taken[name].append(measure(read, path, count))
        sizes = {name: path.stat().st_size / count for name, (_, path) in ways.items()}
    report(taken, sizes, count, as_json=args.json)


def report(
    taken: dict[str, list[tuple[float, float]]], sizes: dict[str, float], count: int, *, as_json: bool
) -> None:
    walls = {name: statistics.median(wall for wall, _ in times) for name, times in taken.items()}
    base = next(iter(walls.values()))
    rows = {
        name: {
            "spans_per_s": round(count / walls[name]),
            "spans_per_processor_s": round(count / statistics.median(cpu for _, cpu in times)),
            "times_duckdb": round(base / walls[name], 2),
            "bytes_per_span": round(sizes[name]),
        }
        for name, times in taken.items()
    }
    if as_json:
        print(json.dumps({"spans": count, "cores": os.cpu_count(), "ways": rows}))
        return
    print(f"{count:,} spans, {os.cpu_count()} cores")
    print(f"{'':<24}{'spans/s':>12}{'per CPU s':>12}{'× DuckDB':>10}{'B/span':>8}")
    for name, row in rows.items():
        numbers = f"{row['spans_per_s']:>12,}{row['spans_per_processor_s']:>12,}"
        print(f"{name:<24}{numbers}{row['times_duckdb']:>10.1f}{row['bytes_per_span']:>8}")


if __name__ == "__main__":
    main()
