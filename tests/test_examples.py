"""The examples run as they are, and what they leave behind is in order."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from otel_tf._local_ports import free_ports
from otel_tf.cli.main import main
from otel_tf.correlator import correlate
from otel_tf.jaeger import die_with_parent
from tests.spool import spans
from tests.telemetry.support import http_collector

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(folder: Path, command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in a session of its own; it has to end all that it starts, and is made to."""
    environment = {
        **os.environ,
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_TF_RUN_DIR": str(folder / "run"),
        "OTEL_TF_RUN_ID": "test",
        "OTEL_TF_TESTING": "true",
        "TF_CPP_MIN_LOG_LEVEL": "1",
        "PYTHON": sys.executable,
        **variables,
    }
    if sys.platform == "linux":
        command = [sys.executable, "-I", "-S", str(die_with_parent.__file__), str(os.getpid()), *command]
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        try:
            out, err = program.communicate(timeout=200)
            with pytest.raises(ProcessLookupError):
                os.killpg(program.pid, 0)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, program.returncode, out, err)


def ran(folder: Path, command: list[str], **variables: str) -> dict[str, Any]:
    """What the correlation of a run says, once it has ended well."""
    program = run(folder, command, **variables)
    assert program.returncode == 0, program.stderr
    return in_order(folder)


def in_order(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = correlate(str(folder / "run")).report
    assert report["violations"] == 0
    assert report["quarantined"] == []
    assert report["skipped"] == {}
    return report


def python(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(EXAMPLES / name), *arguments]


def ports(count: int) -> str:
    return " ".join(map(str, free_ports(count)))


def test_keras_fit_with_an_endpoint(tmp_path: Path) -> None:
    with http_collector() as collector:
        variables = {
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
        }
        report = ran(tmp_path, python("keras_fit.py"), **variables)
    assert len(collector.spans) == report["spans"]
    assert report["steps"] == {"local:0": {"count": 84, "first": 1, "last": 84}}


def test_custom_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = ran(tmp_path, python("custom_loop.py"))
    assert report["steps"] == {"local:0": {"count": 100, "first": 1, "last": 100}}
    assert main(["logs", str(tmp_path / "run"), "--grep", "step 40: loss"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert re.search(r"local:0 +40 INFO +step 40: loss", line)


def test_a_poisoned_batch_is_an_incident(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = run(tmp_path, python("custom_loop.py", "--poison"))
    assert program.returncode == 1
    assert "InvalidArgumentError" in program.stderr
    assert in_order(tmp_path)["steps"]["local:0"]["last"] == 60

    assert main(["incidents", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "1. INVALID_ARGUMENT on local:0, op CheckNumerics, step 60" in said
    assert "the loss is not finite" in said

    failed = [span for span in spans(tmp_path / "run", "train_step") if span.status.get("code") == 2]
    assert [span.attributes["tensorflow.global_step"] for span in failed] == [60]
    assert "tensor.watch" in [event["name"] for event in failed[0].events]
    (failures,) = (tmp_path / "run").glob("*.failures.jsonl")
    spoiled = [tensor["name"] for tensor in json.loads(failures.read_text())["tensors"] if tensor["nan"] == 1]
    assert spoiled == ["x"]


def test_tensorflow1_session_without_an_endpoint(tmp_path: Path) -> None:
    variables = {
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
    }
    program = run(tmp_path, python("tensorflow1_session.py"), **variables)
    assert program.returncode == 0, program.stderr
    assert program.stderr.count("spans cannot be sent to") == 1
    assert in_order(tmp_path)["steps"] == {"local:0": {"count": 100, "first": 1, "last": 100}}


@pytest.mark.slow
def test_parameter_server(tmp_path: Path) -> None:
    report = ran(tmp_path, [str(EXAMPLES / "parameter_server" / "run.sh")], PORTS=ports(4))
    assert sorted(report["steps"]) == ["worker:0", "worker:1"]
    assert sum(steps["count"] for steps in report["steps"].values()) == 200
    assert sorted(report["staleness"]) == ["worker:0", "worker:1"]


@pytest.mark.slow
def test_multi_worker(tmp_path: Path) -> None:
    report = ran(tmp_path, [str(EXAMPLES / "multi_worker" / "run.sh")], PORTS=ports(2))
    steps = {"count": 60, "first": 1, "last": 60}
    assert report["steps"] == {"worker:0": steps, "worker:1": steps}
    assert sorted(report["waits"]) == ["worker:0", "worker:1"]
