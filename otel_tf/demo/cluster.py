"""Starting, watching and ending the processes of the demo's cluster."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from otel_tf._local_ports import HOST, free_ports
from otel_tf.demo.clocks import FalseClock, FalseClocks
from otel_tf.errors import OtelTfError
from otel_tf.jaeger import die_with_parent

__all__ = ["Cluster", "DemoError", "demo_clock"]

_JOB = "otel_tf.instrumentation.demo_job"
_TAIL_LINES = 15
_STOP_WITHIN_S = 5.0

_CLOCKS = {
    "chief:0": FalseClock(-3.0, -40.0),
    "ps:0": FalseClock(5.0, 20.0),
    "worker:0": FalseClock(30.0, 100.0),
    "worker:1": FalseClock(-12.0, -60.0),
}


def demo_clock(task: str) -> FalseClock:
    """Returns the demo's false clock of a task such as ``worker:1``."""
    index = int(task.partition(":")[2])
    return _CLOCKS.get(task) or FalseClock(7.0 * index, (-30.0) ** (index % 2) * index)


class DemoError(OtelTfError):
    """A process of the demo's cluster ended before it should."""


class Cluster:
    """One coordinator, some workers, one parameter server; a worker that dies is started again.

    Args:
        workers: Number of workers.
        run_dir: Folder of the run; the tasks' output goes to ``logs/`` in it.
        environment: Variables for every task, beside this process's own.
        clocks: Where the false clocks come from.
        clock_of: The false clock of each task.
    """

    def __init__(
        self,
        workers: int,
        run_dir: Path,
        environment: dict[str, str],
        clocks: FalseClocks,
        clock_of: Callable[[str], FalseClock] = demo_clock,
    ) -> None:
        chief, ps, *others = [f"{HOST}:{port}" for port in free_ports(2 + workers)]
        self._spec = {"chief": [chief], "ps": [ps], "worker": others}
        self._logs = run_dir / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._environment = environment
        self._clocks = clocks
        self._clock_of = clock_of
        self.servers: dict[str, subprocess.Popen[bytes]] = {}
        self.restarts: dict[str, int] = {}

    def run(
        self,
        arguments: list[str],
        on_step: Callable[[int], None] = lambda _: None,
        program: list[str] | None = None,
    ) -> dict[str, Any]:
        """Runs the training to its end.

        Args:
            arguments: For the training program.
            on_step: Called with the number of steps scheduled and done so far.
            program: What the coordinator's interpreter runs; default: the demo's job.

        Returns:
            The result that the coordinator printed, its last JSON object.

        Raises:
            DemoError: The coordinator or the parameter server ended early; with the end of its log.
        """
        with contextlib.ExitStack() as stack:
            for task in self._tasks():
                self._serve(task)
            stack.callback(self._stop)
            log = stack.enter_context(self._log("chief:0").open("ab"))
            command = [*(program or ["-m", _JOB]), *arguments]
            coordinator = self._start("chief:0", command, subprocess.PIPE, log)
            stack.callback(_end, coordinator)
            result: dict[str, Any] = {}
            for said in self._lines(coordinator):
                if "step" in said:
                    on_step(int(said["step"]))
                else:
                    result = said
            if coordinator.wait() != 0 or not result:
                raise DemoError(
                    f"the coordinator ended with exit code {coordinator.returncode}; "
                    f"the end of {self._log('chief:0')}:\n{self._tail('chief:0')}"
                )
            return result

    def kill(self, task: str) -> None:
        """Kills a worker as a machine that goes away would, with SIGKILL; it comes back on its own."""
        self.servers[task].kill()

    def _tasks(self) -> list[str]:
        return ["ps:0", *(f"worker:{index}" for index in range(len(self._spec["worker"])))]

    def _serve(self, task: str) -> None:
        with self._log(task).open("ab") as log:
            self.servers[task] = self._start(task, ["-m", _JOB], log, log)

    def _start(
        self, task: str, arguments: list[str], stdout: IO[bytes] | int, stderr: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        kind, _, index = task.partition(":")
        variables = {
            **os.environ,
            **self._environment,
            **self._clocks.environment(self._clock_of(task)),
            "TF_CONFIG": json.dumps({"cluster": self._spec, "task": {"type": kind, "index": int(index)}}),
            # On one machine the boot id says that all tasks share a clock; these do not.
            "OTEL_TF_CLOCK_DOMAIN": task if self._clocks.library else "",
        }
        # Should this process be killed, none of its cluster stays behind.
        stub = [sys.executable, "-I", "-S", str(die_with_parent.__file__), str(os.getpid())]
        command = [sys.executable, *arguments]
        return subprocess.Popen(
            [*stub, *command] if sys.platform == "linux" else command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )

    def _lines(self, coordinator: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
        """Yields what the coordinator prints; in between looks after the servers."""
        assert coordinator.stdout is not None
        os.set_blocking(coordinator.stdout.fileno(), False)
        pending = b""
        while True:
            chunk = coordinator.stdout.read()
            if chunk:
                *lines, pending = (pending + chunk).split(b"\n")
                yield from (json.loads(line) for line in lines if line.startswith(b"{"))
            elif coordinator.poll() is not None:
                return
            self._look_after_servers()
            time.sleep(0.05)

    def _look_after_servers(self) -> None:
        for task, server in list(self.servers.items()):
            if server.poll() is None:
                continue
            if not task.startswith("worker") or self.restarts.get(task, 0) >= 3:
                raise DemoError(f"{task} ended early; the end of {self._log(task)}:\n{self._tail(task)}")
            self.restarts[task] = self.restarts.get(task, 0) + 1
            self._serve(task)

    def _stop(self) -> None:
        for server in self.servers.values():
            _end(server)

    def _log(self, task: str) -> Path:
        return self._logs / f"{task.replace(':', '-')}.log"

    def _tail(self, task: str) -> str:
        lines = self._log(task).read_text(errors="replace").splitlines()
        return "\n".join(lines[-_TAIL_LINES:])


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()
