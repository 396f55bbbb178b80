"""A simulated run as files: OTLP JSON lines per process, as a run directory holds them, and its truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from otel_tf import semconv
from otel_tf.correlator.columns import codes
from otel_tf.correlator.simulate import Simulated
from otel_tf.correlator.sources import ids

__all__ = ["write"]

_SPANS_PER_LINE = 1000
_INTEGERS = (
    ("global_step", semconv.GLOBAL_STEP),
    ("local_step", semconv.LOCAL_STEP),
    ("seq", semconv.SEQ),
    ("mono_ns", semconv.MONOTONIC_NS),
    ("group_key", semconv.COLLECTIVE_GROUP_KEY),
    ("instance_key", semconv.COLLECTIVE_INSTANCE_KEY),
)


def write(simulated: Simulated, folder: Path) -> Path:
    """Writes ``<process>.traces.jsonl`` per process and ``truth.parquet``; returns the latter's path.

    ``truth.parquet``: ``span_id`` (hex as in the files), ``true_start_ns``, ``true_end_ns``.

    Raises:
        OSError: They cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    spans = simulated.ingested.spans
    process, names = codes(spans["process"])
    for number, name in enumerate(names):
        mine = spans.take(pa.array(np.flatnonzero(process == number)))
        task = name.rpartition("/")[2].replace(":", "-").replace("#", "-restart-")
        with (folder / f"{task}.traces.jsonl").open("w", encoding="utf-8") as file:
            for offset in range(0, mine.num_rows, _SPANS_PER_LINE):
                file.write(_line(mine.slice(offset, _SPANS_PER_LINE)))
    truth = folder / "truth.parquet"
    pq.write_table(
        pa.table(
            {
                "span_id": ids.to_hex(spans["span_id"].to_numpy()),
                "true_start_ns": simulated.true_start_ns,
                "true_end_ns": simulated.true_end_ns,
            }
        ),
        truth,
        compression="zstd",
    )
    return truth


def _line(spans: pa.Table) -> str:
    """Returns one line of OTLP JSON: spans of one process on one clock."""
    first = spans.slice(0, 1).to_pylist()[0]
    resource = {
        semconv.SERVICE_NAME: first["service"],
        semconv.SERVICE_INSTANCE_ID: first["process"],
        semconv.HOST_NAME: first["domain"],
        semconv.RUN_ID: first["run"],
        semconv.CLOCK_DOMAIN: first["domain"],
    }
    attributes = [{"key": key, "value": {"stringValue": value}} for key, value in resource.items()]
    head = json.dumps({"resource": {"attributes": attributes}}, separators=(",", ":"))[:-1]
    scope = json.dumps({"name": semconv.SCOPE})
    body = ",".join(_spans(spans))
    return f'{{"resourceSpans":[{head},"scopeSpans":[{{"scope":{scope},"spans":[{body}]}}]}}]}}\n'


def _spans(spans: pa.Table) -> list[str]:
    """Returns each span as JSON. All texts in it are the simulator's own: none needs escaping."""
    columns: list[list[Any]] = [
        ids.to_hex(spans["trace_hi"].to_numpy(), spans["trace_lo"].to_numpy()).to_pylist(),
        ids.to_hex(spans["span_id"].to_numpy()).to_pylist(),
        ids.to_hex(spans["parent_id"].to_numpy()).to_pylist(),
        *(spans[name].to_pylist() for name in ("name", "kind", "start_ns", "end_ns", "worker")),
        *(spans[name].to_pylist() for name, _ in _INTEGERS),
    ]
    keys = [f'{{"key":"{key}","value":{{"intValue":"' for _, key in _INTEGERS]
    made = []
    for trace, span, parent, name, kind, start, end, worker, *numbers in zip(*columns, strict=True):
        attributes = [
            f'{key}{number}"}}}}' for key, number in zip(keys, numbers, strict=True) if number is not None
        ]
        if worker is not None:
            attributes.append(f'{{"key":"{semconv.WORKER}","value":{{"stringValue":"{worker}"}}}}')
        above = "" if parent == "0000000000000000" else f'"parentSpanId":"{parent}",'
        made.append(
            f'{{"traceId":"{trace}","spanId":"{span}",{above}"name":"{name}","kind":{kind},'
            f'"startTimeUnixNano":"{start}","endTimeUnixNano":"{end}",'
            f'"attributes":[{",".join(attributes)}]}}'
        )
    return made
