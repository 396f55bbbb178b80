"""Real logs of others' jobs, every count and attribution checked by hand, or by grep."""

from __future__ import annotations

import datetime
import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from otel_tf.errors import UserError
from otel_tf.logs.evidence import arrange
from otel_tf.logs.plain import read_plain
from otel_tf.logs.severity import ERROR, INFO, WARN


@pytest.fixture(scope="module")
def logs(shared_data: Path) -> Path:
    return shared_data / "logs"


def rows(*paths: Path | str) -> list[dict[str, Any]]:
    return read_plain([str(path) for path in paths]).logs.to_pylist()


def placed(*paths: Path | str) -> tuple[list[dict[str, Any]], dict[str, int]]:
    plain = read_plain([str(path) for path in paths])
    table, evidence = arrange(plain.logs, plain.file)
    return table.to_pylist(), evidence


#: File: lines, records, severities, workers. Of the horovod file's 529 lines, 8 × 3 are properties
#: of devices, 8 × 2 instructions, 8 indented, 8 blank. NCCL's are told apart by pod and process.
COUNTS = {
    "pss_stderr_ps_0.log": (10, 9, {INFO: 9}, {"ps:0": 9}),
    "pss_stderr_worker_0.log": (200, 51, {INFO: 9, WARN: 2, 0: 40}, {"worker:0": 51}),
    "pss_stderr_worker_1.log": (200, 51, {INFO: 9, WARN: 2, 0: 40}, {"worker:1": 51}),
    "tf221_mwms_survivor.stderr.log": (50, 19, {INFO: 12, WARN: 3, ERROR: 4}, {None: 19}),
    "tf221_pss_closure_assert.stderr.log": (
        *(160, 24, {INFO: 13, WARN: 5, ERROR: 6}),
        {None: 18, "worker:0": 2, "ps:0": 2, "worker:1": 2},
    ),
    "tf221_pss_worker_killed.stderr.log": (17, 12, {INFO: 6, WARN: 3, ERROR: 3}, {None: 12}),
    "tfjob_worker0.log": (59, 51, {INFO: 50, WARN: 1}, {"worker:0": 51}),
    "horovod_synthetic_interleaved.log": (
        *(529, 473, {INFO: 188, WARN: 22, 0: 263}),
        {
            **{None: 397, "rank:0": 14, "rank:1": 9, "rank:2": 9, "rank:3": 8},
            **{"rank:4": 10, "rank:5": 9, "rank:6": 9, "rank:7": 8},
        },
    ),
}


def test_there_are_no_other_files(logs: Path) -> None:
    assert {path.name for path in logs.iterdir()} == set(COUNTS)


@pytest.mark.parametrize("name", COUNTS)
def test_counts(logs: Path, name: str) -> None:
    lines, records, severities, workers = COUNTS[name]
    plain = read_plain([str(logs / name)])
    found = plain.logs.to_pylist()
    assert (plain.lines, len(found)) == (lines, records)
    assert Counter(row["severity"] for row in found) == severities
    assert Counter(row["worker"] for row in found) == workers


def test_files_times_and_places_of_a_server(logs: Path) -> None:
    found = rows(logs / "pss_stderr_worker_1.log")
    first, shard, tensor = found[0], found[9], found[11]
    moment = datetime.datetime(2022, 10, 7, 19, 20, 9, 182639, tzinfo=datetime.timezone.utc)
    assert first["time_ns"] // 1000 == int(moment.timestamp()) * 1_000_000 + 182639
    assert (first["file"], first["line"]) == ("tensorflow/core/platform/cpu_feature_guard.cc", 151)
    assert first["body"].endswith("rebuild TensorFlow with the appropriate compiler flags.")
    # The whole graph of the dataset, up to the blank line.
    assert shard["file"].endswith("auto_shard.cc")
    assert shard["body"].count("\n") == 67
    assert shard["body"].endswith("\n}")
    assert tensor["body"] == "[[0]\n [1]\n [2]]"
    assert tensor["time_ns"] is None


def test_devices_and_steps_behind_a_launcher(logs: Path) -> None:
    found = rows(logs / "tfjob_worker0.log")
    device = next(row for row in found if row["body"].startswith("Found device 1"))
    assert device["body"].split("\n")[2] == "pciBusID: 0000:00:19.0"
    assert device["line"] == 1064
    steps = [row["global_step"] for row in found if row["global_step"] is not None]
    assert steps == [1, *range(10, 101, 10)]
    # The launcher's time, where the line itself has none.
    assert all(row["time_ns"] is not None for row in found)


def test_ranks_and_steps_of_an_interleaved_log(logs: Path) -> None:
    found = rows(logs / "horovod_synthetic_interleaved.log")
    steps = Counter(row["global_step"] for row in found if row["global_step"] is not None)
    assert steps == dict.fromkeys([1, *range(10, 101, 10)], 8)
    # What rank 5 wrote before it said that it is rank 5.
    early = next(row for row in found if row["worker"] == "rank:5")
    assert early["body"] == "Failed to open libibverbs.so[.1]"
    assert early["pod"] == "tf-resnet50-horovod-job-worker-1"
    # Years that glog leaves out are those of the lines around.
    python = next(row for row in found if row["file"] == "tf_logging.py")
    assert datetime.datetime.fromtimestamp(python["time_ns"] / 1e9, tz=datetime.timezone.utc).year == 2019


def test_several_processes_of_one_stream(logs: Path) -> None:
    found = rows(logs / "tf221_pss_closure_assert.stderr.log")
    by_worker = {row["worker"]: row["body"] for row in found if row["body"].startswith("Creating")}
    assert {worker: body[-12:] for worker, body in by_worker.items()} == {
        "worker:0": "eplica:0/task:0"[-12:],
        "worker:1": "eplica:0/task:1"[-12:],
        "ps:0": "eplica:0/task:0"[-12:],
    }
    told = [row for row in found if row["logger"] == "tensorflow"]
    assert len(told) == 4
    assert all(row["body"].endswith("[Op:__inference_bad_70]") for row in told)


def test_three_processes_in_one_order(logs: Path) -> None:
    found, evidence = placed(*sorted(logs.glob("pss_stderr_*.log")))
    assert evidence == {"time": 31, "step": 0, "position": 80}
    times = [row["time_ns"] for row in found if row["time_ns"] is not None]
    assert times == sorted(times)
    # A tensor comes behind what its own process said last.
    worker = [row["body"] for row in found if row["worker"] == "worker:0"]
    assert worker[11:13] == ["[[0]\n [1]\n [2]]", "[[3]\n [4]\n [5]]"]


def test_a_task_that_is_told_and_compression(logs: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.log.gz"
    path.write_bytes(gzip.compress((logs / "tf221_mwms_survivor.stderr.log").read_bytes()))
    assert {row["worker"] for row in rows(f"worker:0={path}")} == {"worker:0"}


def test_bytes_that_are_no_text_and_progress_bars(tmp_path: Path) -> None:
    path = tmp_path / "odd.log"
    path.write_bytes(b"caf\xe9\nEpoch 2/2\n 1/10 [=]\r 2/10 [==]\r 3/10 [===]\nlast")
    found = rows(path)
    assert [row["body"] for row in found] == [
        "caf\N{REPLACEMENT CHARACTER}",
        "Epoch 2/2\n 3/10 [===]",
        "last",
    ]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.log: No such file"):
        rows(tmp_path / "nothing.log")
