"""A peer that dies: the survivor's errors name it, and its own last words are in the merged log."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from otel_tf.demo.clocks import FalseClock, false_clocks
from tests.instrumentation.parameter_server.test_logs import COMMAND, _address, command

PROGRAM = Path(__file__).with_name("logs_program.py")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = false_clocks()
    if library.library is None:
        pytest.skip(f"platform: {library.problem}")
    folder = tmp_path_factory.mktemp("workers")
    workers = [_address(), _address()]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for index in (0, 1):
            environment = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
            with (folder / f"{index}.err").open("wb") as err:
                process = subprocess.Popen(
                    [COMMAND, "run", str(PROGRAM)],
                    cwd=folder,
                    env={
                        **environment,
                        "TF_CONFIG": json.dumps(
                            {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
                        ),
                        "OTEL_TF_RUN_ID": "job",
                        "OTEL_TF_RUN_DIR": str(folder / "run"),
                        "OTEL_TF_CLOCK_DOMAIN": f"clock-{index}",
                        "OTEL_TRACES_EXPORTER": "none",
                        "OTEL_TF_TESTING": "true",
                        **library.environment(FalseClock(20.0 * index, 0.0)),
                    },
                    stdout=subprocess.DEVNULL,
                    stderr=err,
                )
            started.append(process)
        assert started[1].wait(150) == -9, (folder / "1.err").read_text()
        assert started[0].wait(150) not in (0, -9)
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.wait()
    return folder / "run"


@pytest.mark.slow
def test_steps_are_in_order_though_a_clock_is_20_s_ahead(run_dir: Path) -> None:
    lines = [
        line
        for line in command("logs", str(run_dir), "--grep", "has done step")
        if line["stream"] is None and line["step"] is not None
    ]
    said = [line["body"] for line in lines]
    # What a killed process had not spooled yet is lost, of its records: less than half a second.
    assert len(said) > 60
    for number in range(1, 30):
        for mine, other in ((0, 1), (1, 0)):
            # Nobody ends the next step before everybody has begun this one's collective.
            assert said.index(f"worker {mine} has done step {number}") < said.index(
                f"worker {other} has done step {number + 1}"
            )
    for line in lines:
        assert line["step"] == int(line["body"].rpartition(" ")[2])
    # By the clocks as they were, one worker had ended before the other began.
    by_clock = [line["worker"] for line in sorted(lines, key=lambda line: int(line["time_ns"]))]
    assert by_clock == sorted(by_clock)


@pytest.mark.slow
def test_the_dead_ones_last_words_and_the_incident(run_dir: Path) -> None:
    lines = command("logs", str(run_dir))
    last = next(line for line in lines if line["body"] == "the last words of worker 1")
    assert last["worker"] == "worker:1"
    # As the survivor learns it: from the connection, or from the coordination service.
    told = ("Socket closed", "stopped sending heartbeats")
    noticed = [line["order"] for line in lines if any(text in line["body"] for text in told)]
    assert noticed and last["order"] < min(noticed)
    # The lines that went with its unspooled records are there, from stderr.
    assert any("worker 1 has done step 40" in line["body"] for line in lines)
    (report,) = command("incidents", str(run_dir))
    found: list[dict[str, Any]] = report["incidents"]
    assert len(found) == 1, [each["root"]["message"] for each in found]
    (one,) = found
    assert (one["root"]["worker"], one["root"]["error_type"]) == ("worker:1", "UNAVAILABLE")
    assert one["workers"] == ["worker:0", "worker:1"]
