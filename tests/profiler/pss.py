"""An asynchronous cluster's profiles, made up: what workers and parameter servers would leave."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

from tests.profiler.spaces import SpaceOf

MS = 1000  # in µs
STARTED_NS = 1_700_000_000_000_000_000
FUNCTION = "__inference_step_7"


@dataclasses.dataclass
class Call:
    """One step: which worker, when on which clock, in µs."""

    worker: int
    step_id: int
    start: float
    read: float
    apply: float
    end: float


@dataclasses.dataclass
class Cluster:
    """Profiles of workers and parameter servers; each variable lives on one server."""

    calls: list[Call]
    workers: int = 2
    variables: tuple[str, ...] = ("w", "b")
    skew_us: dict[str, float] = dataclasses.field(default_factory=dict)
    tracemes: bool = False

    def write(self, folder: Path) -> Path:
        """Writes a file a task; w's reads and applies are ``layer/w/…`` on ps:0, b's on ps:1."""
        session = folder / "plugins" / "profile" / "now"
        for number in range(self.workers):
            self._worker(number).write(session / f"worker-{number}.xplane.pb")
        for number, variable in enumerate(self.variables):
            self._server(number, variable).write(session / f"ps-{number}.xplane.pb")
        return session

    def at(self, task: str, time_us: float) -> float:
        return time_us + self.skew_us.get(task, 0.0) + 100 * MS  # nothing is before a profile's start

    def _worker(self, number: int) -> SpaceOf:
        space = SpaceOf(STARTED_NS)
        plane = space.plane()
        threads = [plane.line(f"tf_Compute/{n}", number=n) for n in range(3)]
        for place, call in enumerate(call for call in self.calls if call.worker == number):

            def at(time: float) -> float:
                return self.at(f"worker:{number}", time)

            main, ops, queue = threads
            if self.tracemes:
                main.add(
                    "train_step",
                    at(call.start - 1),
                    call.end - call.start + 2,
                    step_num=place,
                    otel_trace=f"t-{call.step_id:032x}",
                    otel_span=f"s-{call.step_id:016x}",
                )
            main.add(f"EagerLocalExecute: {FUNCTION}", at(call.start), call.end - call.start)
            main.add("FunctionRun", at(call.start) + 1, 2, id=call.step_id, _p=call.step_id)
            for n, variable in enumerate(self.variables):
                link = call.step_id * 100 + n
                ops.add("ExecutorState::Process", at(call.start + 4 + 3 * n), 2, id=call.step_id)
                ops.add(
                    "ExecutorState::ProcessAsync::Start",
                    at(call.start + 4.5 + 3 * n),
                    1,
                    x_name=f"layer/{variable}/Read/_{2 * n + 2}",
                    kernel_type="_Recv",
                    step_id=call.step_id,
                    _p=link,
                )
                queue.add(
                    "ExecutorState::ProcessAsync::Done",
                    at(call.read + 2 + n),
                    0.5,
                    x_name=f"layer/{variable}/Read/_{2 * n + 2}",
                    kernel_type="_Recv",
                    step_id=call.step_id,
                    _c=link,
                )
            ops.add("ExecutorState::Process", at(call.read + 10), 10, id=call.step_id)
            ops.add("layer/MatMul:MatMul", at(call.read + 11), 4)
            ops.add("gradient_tape/layer/MatMul:MatMul", at(call.read + 16), 1)
            for n, variable in enumerate(self.variables):
                ops.add(
                    f"gradient_tape/layer/{variable}/_{2 * n + 11}:_Send",
                    at(call.read + 17.5 + n),
                    0.5,
                    x_from=f"gradient_tape/layer/{variable}",
                    to=f"layer/{variable}/Assign",
                    key=f"/job:worker/replica:0/task:{number};1;/job:ps/replica:0/task:{n};edge_{n};0:0",
                )
        return space

    def _server(self, number: int, variable: str) -> SpaceOf:
        space = SpaceOf(STARTED_NS)
        plane = space.plane()
        readers, appliers, queue = (plane.line(f"tf_Compute/{n}", number=n) for n in range(3))
        for call in sorted(self.calls, key=lambda call: call.read):

            def at(time: float) -> float:
                return self.at(f"ps:{number}", time)

            about = {
                "x_name": f"gradient_tape/layer/{variable}/_{2 * number + 12}",
                "kernel_type": "_Recv",
                "step_id": call.step_id,
            }
            queue.add("ExecutorState::ProcessAsync::Start", at(call.read + 1), 0.1, **about, _p=call.step_id)
            queue.add("ExecutorState::ProcessAsync::Done", at(call.apply - 1), 0.3, **about, _c=call.step_id)
            for thread, begin, event in (
                (readers, call.read, f"layer/{variable}/Read:ReadVariableOp"),
                (appliers, call.apply, f"layer/{variable}/Assign:AssignSubVariableOp"),
            ):
                thread.add("ExecutorState::Process", at(begin) - 0.2, 1.5, id=call.step_id)
                thread.add(event, at(begin), 0.2)
                if begin == call.read:
                    end = 2 * number + 1
                    thread.add(
                        f"layer/{variable}/Read/_{end}:_Send",
                        at(begin) + 0.4,
                        0.3,
                        x_from=f"layer/{variable}/Read",
                        to="layer/MatMul",
                        key=f"/job:ps/replica:0/task:{number};1;/job:worker/replica:0/task:0;edge_{end};0:0",
                    )
        return space


def one_after_another(count: int, workers: int = 2) -> list[Call]:
    """Returns steps that overlap between workers, each with other times."""
    draw = random.Random(count)
    calls = []
    for n in range(count):
        start = n * 400.0 + draw.randrange(250)
        apply, long = start + 200 + draw.randrange(190), 420 + draw.randrange(130)
        calls.append(Call(n % workers, 1000 + n, start, start + 60, apply, start + long))
    return calls
