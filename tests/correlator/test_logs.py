"""Two real processes under clocks that disagree: their lines come out in the order of their causes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from otel_tf.correlator.logs import MergedLog, merge
from otel_tf.demo.clocks import FalseClock, FalseClocks, false_clocks
from otel_tf.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("log_program.py")
ROUNDS = 40


@pytest.fixture(scope="module")
def library() -> FalseClocks:
    found = false_clocks()
    if found.library is None:
        pytest.skip(f"platform: {found.problem}")
    return found


def converse(folder: Path, library: FalseClocks, clocks: dict[str, FalseClock]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = []
    try:
        for index, side in enumerate(("answers", "asks")):
            environment = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
            process = subprocess.Popen(
                [sys.executable, str(PROGRAM), side, str(port), str(ROUNDS)],
                env={
                    **environment,
                    "PYTHONPATH": str(ROOT),
                    "OTEL_TRACES_EXPORTER": "none",
                    "OTEL_TF_RUN_DIR": str(folder),
                    "OTEL_TF_RUN_ID": "talk",
                    "OTEL_TF_CLOCK_DOMAIN": side,
                    "OTEL_TF_TESTING": "true",
                    "TF_CONFIG": json.dumps(
                        {"cluster": {"worker": ["a", "b"]}, "task": {"type": "worker", "index": index}}
                    ),
                    **library.environment(clocks[side]),
                },
                stdout=subprocess.PIPE,
                text=True,
            )
            started.append(process)
            if side == "answers":
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
        for process in started:
            process.communicate(timeout=60)
            assert process.returncode == 0
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory, library: FalseClocks) -> Path:
    folder = tmp_path_factory.mktemp("talk")
    converse(folder, library, {"asks": FalseClock(0.0, 0.0), "answers": FalseClock(-8.0, 80.0)})
    return folder


@pytest.fixture(scope="module")
def merged(run_dir: Path) -> MergedLog:
    return merge([str(run_dir)], reference="asks")


EXPECTED = [
    f"{number}: {what}" for number in range(ROUNDS) for what in ("asking", "answering", "has the answer")
]


def rows(merged: MergedLog) -> list[dict[str, Any]]:
    return [row for row in merged.logs.to_pylist() if row["logger"] == "job"]


def test_the_order_is_that_of_the_causes(merged: MergedLog) -> None:
    found = rows(merged)
    assert [row["body"] for row in found] == EXPECTED
    # Which the clocks alone would not have given.
    by_wall = [row["body"] for row in sorted(found, key=lambda row: row["time_ns"])]
    assert by_wall[:ROUNDS] == [f"{number}: answering" for number in range(ROUNDS)]


def test_times_are_those_of_the_reference_and_bars_are_there(merged: MergedLog) -> None:
    found = rows(merged)
    times = [row["corrected_ns"] for row in found]
    assert times == sorted(times)
    for row in found:
        offset = row["corrected_ns"] - row["time_ns"]
        assert row["error_ns"] is not None
        assert row["error_ns"] < 20_000_000
        if row["worker"] == "worker:1":
            assert abs(offset) < 1_000_000
        else:
            assert abs(offset - 8_000_000_000) < 20_000_000
    assert merged.evidence["program"] >= len(found)


def test_steps_are_those_in_flight_told_or_found(merged: MergedLog) -> None:
    for row in rows(merged):
        number = int(row["body"].partition(":")[0])
        assert row["global_step"] == number
        assert row["span_id"] is not None


def test_without_spans_the_clocks_are_all_there_is(run_dir: Path) -> None:
    said: list[str] = []
    alone = merge([str(path) for path in run_dir.glob("*.logs.jsonl")], say=said.append)
    assert any("no spans" in line for line in said)
    assert set(alone.evidence) == {"time"}
    assert all(row["error_ns"] is None for row in alone.logs.to_pylist())
    times = alone.logs["time_ns"].to_pylist()
    assert times == sorted(times)


def test_another_run_and_nothing_at_all(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no spans of run 'other'"):
        merge([str(run_dir)], run="other")
    with pytest.raises(UserError, match="no OTLP or Parquet files"):
        merge([str(tmp_path)])
