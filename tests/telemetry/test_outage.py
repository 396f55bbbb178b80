"""A real process sends to a real Jaeger that is not always there; afterwards nothing lacks or is double."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from otel_tf.cli.main import main
from otel_tf.correlator import sources
from otel_tf.errors import UserError
from otel_tf.jaeger.ports import free_ports
from tests.telemetry.support import program, spool_spans, until

BADGER = Path(__file__).parents[1] / "correlator" / "sources" / "jaeger-badger.yaml"
STEPS_A_SECOND = 200


def training(folder: Path, endpoint: str, seconds: float) -> subprocess.Popen[str]:
    """Starts a process that takes steps for a while, as a training would."""
    code = program(
        f"""
        for n in range({int(seconds * STEPS_A_SECOND)}):
            step(n)
            time.sleep(1 / {STEPS_A_SECOND})
        """
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code],
        env={
            **environment,
            "OTEL_TF_TESTING": "true",
            "OTEL_TF_RUN_ID": "r",
            "OTEL_TF_RUN_DIR": str(folder),
            "OTEL_TF_FLUSH_INTERVAL": "200",
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        },
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> str:
    """Returns what a process that ends well says."""
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 0, said
    return said


def replayed(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> dict[str, int]:
    capsys.readouterr()
    assert main(["replay", str(folder), "--format", "json", *arguments]) == 0
    found: dict[str, int] = json.loads(capsys.readouterr().out)
    return found


def in_jaeger(jaeger: Any) -> tuple[list[int], dict[str, int]]:
    """Returns the ids of all spans that are there, and what was double."""
    with contextlib.suppress(UserError):
        found = sources.read([f"jaeger+{jaeger.ui}?grpc={jaeger.query_grpc}"])
        return sorted(found.spans["span_id"].to_pylist()), found.skipped
    return [], {}


def ids_of(folder: Path) -> list[int]:
    ids = [bytes.fromhex(span["spanId"]) for span in spool_spans(folder)]
    return sorted(int.from_bytes(span_id, "big", signed=True) for span_id in ids)


@pytest.mark.parametrize(
    ("storage", "seconds"),
    [("memory", 6), pytest.param("badger", 20, marks=pytest.mark.slow)],
)
def test_a_jaeger_that_is_killed_and_comes_back(
    storage: str,
    seconds: float,
    tmp_path: Path,
    jaeger: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, ports = tmp_path / "run", free_ports()
    (tmp_path / "storage").mkdir()
    monkeypatch.setenv("OTEL_TF_JAEGER_DIR", str(tmp_path / "storage"))
    options = {"ports": ports} if storage == "memory" else {"ports": ports, "config": BADGER}
    first = jaeger(**options)
    process = training(folder, first.otlp_http, seconds)
    until(lambda: len(in_jaeger(first)[0]) > STEPS_A_SECOND)
    first.process.kill()
    first.process.wait()
    time.sleep(seconds / 5)
    second = jaeger(**options)
    ended(process)
    expected = ids_of(folder)
    assert len(expected) == seconds * STEPS_A_SECOND
    # What was sent to the one that was killed may be lost, and what lacks is known to the other alone.
    asked = ["--endpoint", second.otlp_http, "--query", f"{second.ui}?grpc={second.query_grpc}"]
    found = replayed(capsys, folder, *asked)
    assert found["sent"] + found["already_there"] == len(expected)
    assert found["sent"] > 0 or storage == "badger"
    until(lambda: len(in_jaeger(second)[0]) == len(expected))
    assert in_jaeger(second) == (expected, {})
    found = replayed(capsys, folder, *asked)
    assert (found["sent"], found["already_there"]) == (0, len(expected))


def test_a_jaeger_that_is_not_there_at_first(
    tmp_path: Path, jaeger: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, ports = tmp_path / "run", free_ports()
    endpoint = f"http://127.0.0.1:{ports.otlp_http}"
    process = training(folder, endpoint, 6)
    time.sleep(3)
    running = jaeger(ports=ports)
    ended(process)
    found = replayed(capsys, folder, "--endpoint", endpoint)
    expected = ids_of(folder)
    assert found["sent"] + found["already_there"] == len(expected) == 6 * STEPS_A_SECOND
    until(lambda: len(in_jaeger(running)[0]) == len(expected))
    assert in_jaeger(running) == (expected, {})


def test_a_jaeger_that_is_there_only_afterwards(
    tmp_path: Path, jaeger: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, ports = tmp_path / "run", free_ports()
    endpoint = f"http://127.0.0.1:{ports.otlp_http}"
    said = ended(training(folder, endpoint, 2))
    (line,) = said.splitlines()
    # The line says what to do, and that does it.
    command = line.partition("otel-tf ")[2].split()
    assert command == ["replay", str(folder), "--endpoint", f"{endpoint}/v1/traces"]
    running = jaeger(ports=ports)
    found = replayed(capsys, Path(command[1]), *command[2:])
    expected = ids_of(folder)
    assert (found["sent"], found["already_there"]) == (len(expected), 0) == (2 * STEPS_A_SECOND, 0)
    until(lambda: len(in_jaeger(running)[0]) == len(expected))
    assert in_jaeger(running) == (expected, {})
