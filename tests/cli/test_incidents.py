"""`otel-tf incidents` as scripts and people see it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from otel_tf.cli.main import main
from tests.cli.test_logs import MS, logs_line, record, traces_line


def failed(worker: str, at: int, text: str) -> str:
    return logs_line(worker, record(at, text, 17))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    steps = [(number, number * 10 * MS, number * 10 * MS + 5 * MS) for number in range(1, 4)]
    for worker in ("worker:0", "worker:1"):
        (folder / f"{worker[-1]}.traces.jsonl").write_text(
            traces_line(worker, *steps[: 2 + (worker[-1] == "0")])
        )
    (folder / "1.logs.jsonl").write_text(
        failed("worker:1", 22 * MS, "failed with ResourceExhaustedError():no room")
    )
    (folder / "0.logs.jsonl").write_text(
        failed(
            "worker:0", 33 * MS, "Function was cancelled before it was started CancelledError(): cancelled"
        )
    )
    return folder


def report(capsys: Any, *arguments: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["incidents", *arguments, "--format", "json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["incidents"]
    return found


def test_the_keys_that_scripts_rely_on(run_dir: Path, capsys: Any) -> None:
    (one,) = report(capsys, str(run_dir))
    assert set(one) >= {"root", "derived", "workers"}
    assert set(one["root"]) >= {"worker", "op", "error_type", "message", "step"}
    root = one["root"]
    assert (root["worker"], root["error_type"], root["message"]) == (
        "worker:1",
        "RESOURCE_EXHAUSTED",
        "no room",
    )
    assert (root["step"], root["pod"]) == (2, "pod-1")
    assert root["trace_id"] == f"{3:032x}"
    assert [(item["worker"], item["error_type"], item["derived"]) for item in one["derived"]] == [
        ("worker:0", "CANCELLED", True)
    ]
    assert one["workers"] == ["worker:0", "worker:1"]


def test_a_failure_that_another_tells_of_has_the_place_of_its_own_task(run_dir: Path, capsys: Any) -> None:
    text = (
        "failed with UnavailableError():Socket closed\n"
        "Additional GRPC error information from remote target /job:worker/replica:0/task:1 while calling x:"
    )
    (run_dir / "0.logs.jsonl").write_text(failed("worker:0", 33 * MS, text))
    (run_dir / "1.logs.jsonl").write_text(logs_line("worker:1", record(5 * MS, "started")))
    (one,) = report(capsys, str(run_dir))
    assert (one["root"]["worker"], one["root"]["told_by"]) == ("worker:1", "worker:0")
    assert (one["root"]["pod"], one["root"]["host"]) == ("pod-1", "node-1")
    # worker:0 has taken three steps by then, the dead one two.
    assert one["behind"] == [{"worker": "worker:1", "step": 2, "behind": 1}]


def test_for_people_and_as_a_check(run_dir: Path, capsys: Any) -> None:
    assert main(["incidents", str(run_dir), "--check"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("1. RESOURCE_EXHAUSTED on worker:1, pod pod-1, host node-1, step 2\n   no room\n")
    assert "   - follows: worker:0: CANCELLED" in said


def test_a_run_without_failures(run_dir: Path, capsys: Any) -> None:
    for path in run_dir.glob("*.logs.jsonl"):
        path.unlink()
    assert main(["incidents", str(run_dir), "--check"]) == 0
    assert capsys.readouterr().out == "No incidents.\n"
    assert report(capsys, str(run_dir)) == []


def test_plain_logs(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "train-worker-1.log"
    path.write_text("step 4\nERROR:tensorflow:failed with InternalError():it broke\n")
    (one,) = report(capsys, "--import", str(path))
    assert (one["root"]["worker"], one["root"]["error_type"]) == ("worker:1", "INTERNAL")
    assert main(["incidents", "--import", str(tmp_path / "nothing.log")]) == 2
