"""The operations of a real training job with stragglers, read off clocks that we set wrong ourselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from otel_tf.correlator.pipeline import correlate_tables
from tests.correlator.support import CONSUMER, INTERNAL, MS, PRODUCER, T0, S, ingested

#: What data-parallel ranks of one stage do together.
TOGETHER = {"grads-reduce-scatter": 1, "params-all-gather": 2}
#: Who receives what is sent: the next stage, or the one before.
SENT = {"forward-send": ("forward-recv", 1), "backward-send": ("backward-recv", -1)}
STEP_LENGTH = 10 * S


def operations(folder) -> list[dict[str, Any]]:
    rows = pq.read_table(folder / "timeline" / "straggler_ST.parquet").to_pylist()
    steps = {step: number for number, step in enumerate(sorted({row["step"] for row in rows}))}
    for row in rows:
        begin = steps[row["step"]] * STEP_LENGTH
        row["true_start"] = begin + round(row["start_ts"] * 1e9)
        row["true_end"] = row["true_start"] + round(row["duration"] * 1e9)
    return rows


def as_spans(operations, *, offset_ms, drift_ppm, seed=0):
    """Spans of one process a rank, each on a clock of its own; rank 0 keeps true time."""
    rng = np.random.default_rng(seed)
    ranks = 1 + max(row["rank"] for row in operations)
    offset = np.r_[0, rng.normal(0, offset_ms * MS, ranks - 1)].astype(np.int64)
    drift = np.r_[0, rng.normal(0, drift_ppm * 1e-6, ranks - 1)]

    def read(rank, true):
        return T0 + true + int(offset[rank]) + round(true * drift[rank])

    numbers = {
        (row["step"], row["dp_rank"], row["stage"], row["optype"], row["seq_id"]): number
        for number, row in enumerate(operations)
    }
    rows, links = [], []
    for number, row in enumerate(operations):
        kind = row["optype"]
        span = {
            "trace_lo": row["step"],
            "name": kind,
            "kind": PRODUCER if kind in SENT else INTERNAL,
            "process": f"rank{row['rank']}",
            "domain": f"host{row['rank']}",
            "worker": f"worker:{row['rank']}",
            "global_step": row["step"],
            "start_ns": read(row["rank"], row["true_start"]),
            "end_ns": read(row["rank"], row["true_end"]),
        }
        if kind in TOGETHER:
            span.update(name="collective", group_key=row["stage"], instance_key=TOGETHER[kind])
        rows.append(span)
        if kind in SENT:
            received, further = SENT[kind]
            to = (row["step"], row["dp_rank"], row["stage"] + further, received, row["seq_id"])
            if to in numbers:
                links.append((numbers[to], number + 1))
    for receive, _ in links:
        rows[receive].update(name="_Recv", kind=CONSUMER)
    return rows, links


@pytest.mark.parametrize(("offset_ms", "drift_ppm"), [(0.0, 0.0), (50.0, 15.0), (5000.0, 80.0)])
def test_clocks_set_wrong_are_found_from_sends_receives_and_collectives(shared_data, offset_ms, drift_ppm):
    known = operations(shared_data)
    rows, links = as_spans(known, offset_ms=offset_ms, drift_ppm=drift_ppm)
    assert len(links) == 1536
    result = correlate_tables(ingested(rows, links), reference="host0")
    report = result.report
    assert report["violations"] == 0
    assert report["quarantined"] == []
    assert (report["wall_clock_inversions"] > 0) == (offset_ms > 0)
    assert not any(clock["steps"] for clock in report["clocks"])
    spans = result.spans
    error = spans["error_ns"].to_numpy()
    true = np.array([[row["true_start"], row["true_end"]] for row in known])
    start = np.abs(spans["corrected_start_ns"].to_numpy() - T0 - true[:, 0])
    end = np.abs(spans["corrected_end_ns"].to_numpy() - T0 - true[:, 1])
    assert (np.maximum(start, end) <= error).all()
    # Messages take 0.4 ms at least here: the clocks cannot be known better than that, nor much worse.
    assert np.percentile(start, 50) < 2 * MS
    # (Collectives, the only way back to rank 0 from some, take 45 ms.)
    assert np.percentile(error, 50) < 50 * MS


def test_where_the_clocks_were_set_to_does_not_show_in_the_result(shared_data):
    known = operations(shared_data)
    results = [
        correlate_tables(ingested(*as_spans(known, offset_ms=offset, drift_ppm=0.0)), reference="host0").spans
        for offset in (0.0, 3000.0)
    ]
    for column in ("corrected_start_ns", "corrected_end_ns", "error_ns", "order"):
        assert results[0][column].equals(results[1][column])
