"""``--to perfetto=FILE``: a Chrome trace of the corrected run."""

from __future__ import annotations

import json

import pytest

from otel_tf.correlator import sinks
from otel_tf.errors import UserError


def events_of(run, tmp_path):
    path = tmp_path / "run.json"
    sinks.write(run.result(), f"perfetto={path}", print)
    return json.loads(path.read_text())["traceEvents"]


def test_a_process_track_a_worker_with_corrected_times(asynchronous, tmp_path):
    events = events_of(asynchronous, tmp_path)
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    assert sorted(names.values()) == ["chief:0", "worker:0", "worker:1", "worker:2"]
    result = asynchronous.result()
    spans = {row["span_id"]: row for row in result.spans.to_pylist()}
    first = min(row["corrected_start_ns"] for row in spans.values())
    drawn = [event for event in events if event["ph"] == "X"]
    assert len(drawn) == len(spans)
    for event in drawn:
        row = spans[event["args"]["span_id"]]
        assert names[event["pid"]] == row["process"].removeprefix("pss-1/")
        assert round(event["ts"] * 1000) == row["corrected_start_ns"] - first
        assert round(event["dur"] * 1000) == row["corrected_end_ns"] - row["corrected_start_ns"]
        assert event["args"]["order"] == row["order"]
        assert ("cname" in event) == (row["status"] == 2)


def test_spans_in_a_lane_lie_inside_each_other_or_apart(asynchronous, synchronous, tmp_path):
    for run in (asynchronous, synchronous):
        lanes: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for event in events_of(run, tmp_path):
            if event["ph"] == "X":
                start = round(event["ts"] * 1000)
                end = start + round(event["dur"] * 1000)
                lanes.setdefault((event["pid"], event["tid"]), []).append((start, end))
        # Closures of a coordinator overlap: three workers at 5 ms each, one every 2 ms.
        assert max(lane for _, lane in lanes) == (3 if run is asynchronous else 1)
        for spans in lanes.values():
            open_until: list[int] = []
            for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
                while open_until and open_until[-1] <= start:
                    open_until.pop()
                assert not open_until or end <= open_until[-1]
                open_until.append(end)


def test_a_file_that_cannot_be_written(synchronous, tmp_path):
    with pytest.raises(UserError, match=r"perfetto=.*: Is a directory"):
        sinks.write(synchronous.result(), f"perfetto={tmp_path}", print)
