"""A real cluster under `otel-tf run`, servers too: lines of all of them in one log, the failure explained."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("logs_program.py")
COMMAND = str(Path(sys.executable).with_name("otel-tf"))


def _address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cluster")
    cluster = {"chief": [_address()], "worker": [_address()], "ps": [_address()]}
    started: list[subprocess.Popen[bytes]] = []
    try:
        for kind in ("ps", "worker", "chief"):
            environment = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
            with (folder / f"{kind}.err").open("wb") as err:
                process = subprocess.Popen(
                    [COMMAND, "run", str(PROGRAM), "chief" if kind == "chief" else "server"],
                    cwd=folder,
                    env={
                        **environment,
                        "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": 0}}),
                        "OTEL_TF_RUN_ID": "job",
                        "OTEL_TF_RUN_DIR": str(folder / "run"),
                        "OTEL_TRACES_EXPORTER": "none",
                        "OTEL_TF_TESTING": "true",
                    },
                    stderr=err,
                )
            started.append(process)
        assert started[-1].wait(120) == 0, (folder / "chief.err").read_text()
    finally:
        # Servers never end by themselves; their last lines are in the run directory all the same.
        for process in started:
            process.kill()
            process.wait()
    return folder / "run"


def command(*arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [COMMAND, *arguments, "--format", "json"], capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_lines_of_servers_are_there_with_their_tasks(run_dir: Path) -> None:
    lines = command("logs", str(run_dir))
    started = {line["worker"] for line in lines if line["body"].startswith("Started server with target")}
    assert started == {"chief:0", "worker:0", "ps:0"}
    printed = next(line for line in lines if line["body"] == "seen by the worker")
    assert (printed["worker"], printed["stream"]) == ("worker:0", "stderr")
    bodies = [line["body"] for line in lines]
    # Servers record nothing themselves, yet their lines are placed among the steps.
    assert bodies.index("now it will fail") < bodies.index("seen by the worker") < bodies.index("it failed")
    assert all(line["error_ns"] is not None for line in lines if line["worker"] == "worker:0")


def test_a_record_of_python_is_there_once_and_knows_its_dispatch(run_dir: Path) -> None:
    lines = command("logs", str(run_dir))
    assert [line["stream"] for line in lines if "now it will fail" in line["body"]] == [None]
    told = [
        line for line in lines if "encountered the following error when processing closure" in line["body"]
    ]
    assert told
    assert all(line["trace_id"] is not None for line in told if line["stream"] is None)


def test_the_incidents_have_the_worker_as_their_root(run_dir: Path) -> None:
    (report,) = command("incidents", str(run_dir))
    one, other = report["incidents"]
    root = one["root"]
    assert (root["worker"], root["error_type"]) == ("worker:0", "INVALID_ARGUMENT")
    assert "boom" in root["message"]
    assert root["op"].endswith("Assert")
    assert "chief:0" in one["workers"]
    root = other["root"]
    assert (root["worker"], root["error_type"]) == ("worker:0", "RESOURCE_EXHAUSTED")
    assert root["device"] == "/job:worker/replica:0/task:0/device:CPU:0"
    assert "OOM when allocating tensor with shape[4398046511" in root["message"]
    assert one["root"]["corrected_ns"] < root["corrected_ns"]
