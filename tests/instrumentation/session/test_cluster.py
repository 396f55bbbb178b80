"""Asynchronous TensorFlow 1 in real processes: two workers, a parameter server that dies and comes back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_tf import ids
from otel_tf.jaeger import die_with_parent
from tests.spool import SpooledSpan, spans

PROGRAM = Path(__file__).with_name("program.py")
STEPS = 200
#: So often the chief saves.
SAVED_EVERY = 60
#: Between two saves: what fails then is a step.
KILL_AT = 80


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class Cluster:
    def __init__(self, folder: Path, *arguments: str) -> None:
        self._folder = folder
        self._arguments = arguments
        self._spec = {"ps": [free_address()], "worker": [free_address(), free_address()]}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, task: str) -> None:
        kind, _, index = task.partition(":")
        variables = {
            **os.environ,
            "TF_CONFIG": json.dumps({"cluster": self._spec, "task": {"type": kind, "index": int(index)}}),
            "OTEL_TF_RUN_ID": "test",
            "OTEL_TF_RUN_DIR": str(self._folder / "run"),
            "OTEL_TF_TESTING": "true",
            "OTEL_TRACES_EXPORTER": "none",
            "TF_CPP_MIN_LOG_LEVEL": "1",
        }
        command = [sys.executable, str(PROGRAM), "--steps", str(STEPS), *self._arguments]
        command += ["--checkpoints", str(self._folder / "checkpoints")]
        if sys.platform == "linux":
            command = [sys.executable, "-I", "-S", str(die_with_parent.__file__), str(os.getpid()), *command]
        name = task.replace(":", "-")
        with (
            (self._folder / f"{name}.out").open("ab") as out,
            (self._folder / f"{name}.err").open("ab") as err,
        ):
            self.running[task] = subprocess.Popen(command, env=variables, stdout=out, stderr=err)

    def reached(self, task: str) -> int:
        """The last global step that a worker printed."""
        lines = (self._folder / f"{task.replace(':', '-')}.out").read_text().splitlines()
        return max((json.loads(line)["step"] for line in lines if line.endswith("}")), default=0)

    def tail(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}"
            for path in self._folder.glob("*.err")
        )


@contextlib.contextmanager
def started(folder: Path, *arguments: str) -> Iterator[Cluster]:
    cluster = Cluster(folder, *arguments)
    try:
        for task in ("ps:0", "worker:0", "worker:1"):
            cluster.start(task)
        yield cluster
    finally:
        for process in cluster.running.values():
            process.kill()
            process.wait()


def train(folder: Path, *arguments: str) -> list[SpooledSpan]:
    """Trains to the end, with a parameter server that dies and comes back on the way."""
    with started(folder, *arguments) as cluster:
        deadline = time.monotonic() + 120
        while any(cluster.reached(task) < KILL_AT for task in ("worker:0", "worker:1")):
            ended = [task for task, process in cluster.running.items() if process.poll() is not None]
            assert not ended and time.monotonic() < deadline, f"{ended}\n{cluster.tail()}"
            time.sleep(0.05)
        cluster.running["ps:0"].send_signal(signal.SIGKILL)
        cluster.running["ps:0"].wait()
        cluster.start("ps:0")
        for task in ("worker:0", "worker:1"):
            assert cluster.running[task].wait(120) == 0, cluster.tail()
    return spans(folder / "run")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[SpooledSpan]:
    return train(tmp_path_factory.mktemp("cluster"))


def of(recorded: list[SpooledSpan], worker: str, name: str) -> list[SpooledSpan]:
    found = [s for s in recorded if s.name == name and s.attributes["tensorflow.worker"] == worker]
    return sorted(found, key=lambda span: span.attributes["tensorflow.seq"])


def values(found: list[SpooledSpan], name: str) -> list[Any]:
    return [span.attributes.get(f"tensorflow.{name}") for span in found]


@pytest.mark.parametrize("worker", ["worker:0", "worker:1"])
def test_each_step_has_a_trace_of_its_own(recorded: list[SpooledSpan], worker: str) -> None:
    steps = of(recorded, worker, "train_step")
    assert values(steps, "local_step") == list(range(1, len(steps) + 1))
    for local, step in enumerate(steps, start=1):
        assert step.trace_id == f"{ids.trace_id('test', worker, local):032x}"
        assert (step.parent_id, step.kind) == ("", 1)
        assert step.resource["service.instance.id"] == f"test/{worker}"
        # The hooks of the session fetch the counter, so every run that came back tells it.
        assert ("tensorflow.global_step" in step.attributes) == ("code" not in step.status)
    assert not [span for span in recorded if span.name == "step"]


def test_the_workers_share_a_counter(recorded: list[SpooledSpan]) -> None:
    for worker in ("worker:0", "worker:1"):
        steps = of(recorded, worker, "train_step")
        numbers = [number for number in values(steps, "global_step") if number is not None]
        # Steps of the other worker lie between its own.
        assert max(numbers) >= STEPS - 2
        assert len(numbers) < STEPS


def test_a_step_fails_with_the_parameter_server(recorded: list[SpooledSpan]) -> None:
    """In at least one worker: the other may have been saving, or asking for the counter."""
    failed = [span for span in recorded if span.name == "train_step" and "code" in span.status]
    assert failed
    for step in failed:
        assert step.attributes["error.type"] in ("UNAVAILABLE", "ABORTED")
        assert [event["name"] for event in step.events].count("exception") == 1


def test_the_session_is_made_anew_and_the_counter_goes_back(recorded: list[SpooledSpan]) -> None:
    first_again = []
    for worker in ("worker:0", "worker:1"):
        last = of(recorded, worker, "session.recreate")[-1]
        assert last.trace_id == f"{ids.trace_id('test', 'run'):032x}"
        assert last.attributes["tensorflow.session.cause"] in ("UNAVAILABLE", "ABORTED")
        before, after = last.attributes["tensorflow.step.before"], last.attributes["tensorflow.step.after"]
        assert before >= KILL_AT - 10

        again = next(step for step in of(recorded, worker, "train_step") if step.start_ns >= last.end_ns)
        assert values([again], "global_step") == [after]
        # Unless the other worker has caught up meanwhile.
        assert values([again], "step.rewound_from") == [before if after < before else None]
        first_again.append(again)
    first = min(first_again, key=lambda step: step.start_ns)
    assert SAVED_EVERY <= first.attributes["tensorflow.global_step"] < KILL_AT
    assert first.attributes["tensorflow.step.rewound_from"] >= KILL_AT - 10


def test_the_chief_saves_and_restores(recorded: list[SpooledSpan]) -> None:
    assert not of(recorded, "worker:1", "checkpoint.save")
    assert of(recorded, "worker:0", "checkpoint.save")
    restore = of(recorded, "worker:0", "checkpoint.restore")[-1]
    recreated = {span.span_id for span in of(recorded, "worker:0", "session.recreate")}
    assert restore.parent_id in recreated
    saved_at = int(restore.attributes["tensorflow.checkpoint.path"].rpartition("-")[2])
    assert SAVED_EVERY <= saved_at < KILL_AT


@pytest.mark.slow
def test_the_hook_tells_the_same_of_a_cluster(tmp_path: Path) -> None:
    """But for the step that fails, of which no hook is told."""
    recorded = train(tmp_path, "--hook")
    went_back = []
    for worker in ("worker:0", "worker:1"):
        steps = of(recorded, worker, "train_step")
        assert values(steps, "local_step") == list(range(1, len(steps) + 1))
        assert [step.trace_id for step in steps] == [
            f"{ids.trace_id('test', worker, local):032x}" for local in range(1, len(steps) + 1)
        ]
        assert None not in values(steps, "global_step")
        assert max(values(steps, "global_step")) >= STEPS - 2
        last = of(recorded, worker, "session.recreate")[-1]
        assert last.attributes["tensorflow.step.before"] >= KILL_AT - 10
        again = next(step for step in steps if step.mono_ns[0] >= last.mono_ns[1])
        assert values([again], "global_step") == values([last], "step.after")
        went_back += [number for number in values(steps, "step.rewound_from") if number is not None]
    assert max(went_back) >= KILL_AT - 10
    assert {span.name for span in recorded} == {"train_step", "session.recreate"}
