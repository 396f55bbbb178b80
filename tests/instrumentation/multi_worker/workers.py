"""Starting the processes of a MultiWorkerMirroredStrategy and reading what they said."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from otel_tf.demo.clocks import FalseClock, FalseClocks
from otel_tf.jaeger import die_with_parent

PROGRAM = Path(__file__).with_name("program.py")
ROOT = Path(__file__).resolve().parents[3]


@dataclasses.dataclass(frozen=True)
class Worker:
    """What became of one: its exit code, the JSON objects it printed, its stderr."""

    code: int
    said: list[dict[str, Any]]
    stderr: str

    @property
    def answers(self) -> dict[str, Any]:
        return self.said[-1]


def run(
    folder: Path,
    *arguments: tuple[str, ...],
    clocks: tuple[FalseClock, ...] = (),
    library: FalseClocks | None = None,
    chief_late_s: float = 0.0,
    timeout_s: float = 110.0,
    program: Path = PROGRAM,
    **variables: str,
) -> list[Worker]:
    """Runs one worker for each tuple of arguments, in ``folder``; returns when all have ended.

    Args:
        folder: Their working directory, where runs without a folder of their own go.
        *arguments: Of each worker's program.
        clocks: The false clock of each.
        library: What makes the clocks false.
        chief_late_s: How much later than the others the first one starts, in s.
        timeout_s: When those still running are killed, in s.
        program: What they run.
        **variables: Environment of all of them.
    """
    addresses = [_free_address() for _ in arguments]
    processes: dict[int, subprocess.Popen[bytes]] = {}
    with contextlib.ExitStack() as stack:
        for index in sorted(range(len(arguments)), reverse=bool(chief_late_s)):
            if index == 0:
                time.sleep(chief_late_s)
            environment = {
                **{name: value for name, value in os.environ.items() if not name.startswith("OTEL_")},
                "PYTHONPATH": str(ROOT),
                "OTEL_TF_TESTING": "true",
                "OTEL_TRACES_EXPORTER": "none",
                "TF_CPP_MIN_LOG_LEVEL": "2",
                **variables,
                "TF_CONFIG": json.dumps(
                    {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
                ),
            }
            if clocks and library is not None:
                environment |= library.environment(clocks[index])
                environment["OTEL_TF_CLOCK_DOMAIN"] = f"worker:{index}"
            out, err = (stack.enter_context(_log(folder, index, kind).open("wb")) for kind in ("out", "err"))
            # Should this process be killed, none of them stays behind.
            stub = [sys.executable, "-I", "-S", str(die_with_parent.__file__), str(os.getpid())]
            command = [sys.executable, str(program), *arguments[index]]
            process = subprocess.Popen(
                [*stub, *command] if sys.platform == "linux" else command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
            stack.callback(_end, process)
            processes[index] = process
        until = time.monotonic() + timeout_s
        for process in processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.1))
    return [_result(folder, index, processes[index]) for index in sorted(processes)]


def _result(folder: Path, index: int, process: subprocess.Popen[bytes]) -> Worker:
    lines = _log(folder, index, "out").read_text().splitlines()
    return Worker(
        process.returncode,
        [json.loads(line) for line in lines if line.startswith("{")],
        _log(folder, index, "err").read_text(errors="replace"),
    )


def _log(folder: Path, index: int, kind: str) -> Path:
    return folder / f"worker-{index}.{kind}"


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"
