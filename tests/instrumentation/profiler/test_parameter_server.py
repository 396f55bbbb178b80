"""A profile of two workers and two parameter servers, taken by the coordinator through their ports."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from otel_tf import ids
from otel_tf._local_ports import HOST, free_ports
from otel_tf.demo.clocks import FalseClocks
from otel_tf.demo.cluster import Cluster
from otel_tf.profiler import profile
from tests.instrumentation.profiler.xplane import events
from tests.spool import spans

PROGRAM = [str(Path(__file__).with_name("pss_program.py"))]
STEPS, EVERY, WANTED = 500, 300, 60
SERVERS = ("ps:0", "ps:1")
READS = {"ps:0": {"version", "first"}, "ps:1": {"second"}}
APPLIES = {"ps:0": {"version", "first", "tickets"}, "ps:1": {"second"}}


class TwoServers(Cluster):
    """The demo's cluster with a second parameter server."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        super().__init__(2, folder, environment, FalseClocks(None, "not wanted"))
        addresses = [f"{HOST}:{port}" for port in free_ports(5)]
        self._spec = {"chief": addresses[:1], "ps": addresses[1:3], "worker": addresses[3:]}

    def _tasks(self) -> list[str]:
        return [*SERVERS, "worker:0", "worker:1"]


class Job(NamedTuple):
    run_dir: Path
    spec: dict[str, list[str]]
    counted: list[list[int]]
    session: Path
    found: Any

    def rows(self, table: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = getattr(self.found, table).to_pylist()
        return rows


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("pss")
    cluster = TwoServers(
        folder,
        {
            "OTEL_TF_RUN_ID": "test",
            "OTEL_TF_RUN_DIR": str(folder),
            "OTEL_TF_TESTING": "true",
            "OTEL_TF_PROFILE": f"every={EVERY},steps={WANTED}",
            "OTEL_TRACES_EXPORTER": "none",
            "TF_CPP_MIN_LOG_LEVEL": "1",
        },
    )
    said = cluster.run(["--steps", str(STEPS)], program=PROGRAM)
    session = folder / "profiles" / "plugins" / "profile" / f"step-{EVERY}"
    return Job(folder, cluster._spec, said["counted"], session, profile([session], run=[str(folder)]))


@pytest.fixture(scope="module")
def window(job: Job) -> tuple[int, int]:
    """From when until when all tasks record ops, in ns."""
    begin, end = defaultdict(list), defaultdict(list)
    tasks = {host["host"]: host["task"] for host in job.rows("hosts")}
    for op in job.rows("ops"):
        begin[op["host"]].append(op["start_ns"])
        end[op["host"]].append(op["end_ns"])
    servers = [host for host, task in tasks.items() if task != "chief:0"]
    return max(min(begin[host]) for host in servers), min(max(end[host]) for host in servers)


class Closure(NamedTuple):
    number: int
    worker: str
    span_id: str

    @property
    def trace_id(self) -> bytes:
        return ids.trace_id("test", "closure", self.number).to_bytes(16, "big")


@pytest.fixture(scope="module")
def closures(job: Job, window: tuple[int, int]) -> list[Closure]:
    """Those whose dispatch lies wholly inside, by the coordinator's own events."""
    (chief,) = [host for host in job.rows("hosts") if host["task"] == "chief:0"]
    found = []
    for event in events(job.session / "chief-0.xplane.pb"):
        if "otel_closure" in event.stats:
            start_ns = chief["base_ns"] + event.start_ps // 1000
            end_ns = chief["base_ns"] + event.end_ps // 1000
            if window[0] <= start_ns and end_ns <= window[1]:
                worker = event.stats["otel_worker"].replace("-", ":")
                found.append(Closure(event.stats["otel_closure"], worker, event.stats["otel_span"]))
    assert len(found) >= WANTED
    return found


def test_every_task_is_there(job: Job) -> None:
    tasks = ["chief-0", "ps-0", "ps-1", "worker-0", "worker-1"]
    assert sorted(file.name for file in job.session.iterdir()) == [f"{task}.xplane.pb" for task in tasks]
    (span, *_) = spans(job.run_dir, "profile.capture")
    assert span.attributes["tensorflow.profiler.session"] == f"step-{EVERY}"
    assert span.attributes["tensorflow.profile.tasks"]["values"] == [{"stringValue": task} for task in tasks]
    assert {host["task"] for host in job.rows("hosts")} == {task.replace("-", ":") for task in tasks}
    # A closure's event carries the ids of the step that its worker took.
    steps = {span.span_id: span for span in spans(job.run_dir, "train_step")}
    for event in events(job.session / "chief-0.xplane.pb"):
        if "otel_closure" in event.stats:
            step = steps[event.stats["otel_span"][2:]]
            assert event.stats["otel_trace"] == f"t-{step.trace_id}"
            assert event.stats["otel_dispatch"] == f"s-{step.parent_id}"
            assert event.stats["otel_worker"].replace("-", ":") == step.attributes["tensorflow.worker"]
            assert event.stats["step_num"] == step.attributes["tensorflow.global_step"]


def test_the_program_sees_nothing_of_it(job: Job) -> None:
    """TensorFlow's own client would print to the standard output."""
    assert len(job.counted) == STEPS
    log = (job.run_dir / "logs" / "chief-0.log").read_text()
    assert "Traceback" not in log
    assert "otel_tf" not in "".join(line for line in log.splitlines() if "ERROR" in line)


def test_addresses_are_noted(job: Job) -> None:
    (file,) = job.run_dir.glob("chief-0.*.cluster.json")
    assert json.loads(file.read_text().splitlines()[-1]) == {
        address: f"{kind}:{index}"
        for kind, addresses in job.spec.items()
        for index, address in enumerate(addresses)
    }


def test_the_chain_is_complete(job: Job, closures: list[Closure]) -> None:
    """Closure → step on its worker → reads and applies on each parameter server, by one step id."""
    tasks = {host["host"]: host["task"] for host in job.rows("hosts")}
    steps, ops = job.rows("steps"), job.rows("ops")
    steps_of = defaultdict(list)
    for number, step in enumerate(steps):
        steps_of[step["trace_id"]].append((number, step))
    ops_of = defaultdict(list)
    for op in ops:
        ops_of[op["step"]].append(op)
    sends: dict[int, Counter[tuple[str, str]]] = defaultdict(Counter)
    for edge in job.rows("edges"):
        if edge["kind"] == "send_recv":
            ends = tuple(tasks[ops[edge[end]]["host"]] for end in ("src", "dst"))
            sends[edge["step_id"]][ends] += 1

    def complete(closure: Closure) -> bool:
        mine = steps_of[closure.trace_id]
        on = {tasks[step["host"]]: (number, step) for number, step in mine}
        if not {closure.worker, *SERVERS} <= on.keys():
            return False
        step_ids = {on[task][1]["step_id"] for task in (closure.worker, *SERVERS)}
        if len(step_ids) != 1 or {step["span_id"].hex() for _, step in mine} != {closure.span_id[2:]}:
            return False
        (step_id,) = step_ids
        for server in SERVERS:
            touched = ops_of[on[server][0]]
            reads = {op["variable"] for op in touched if op["type"] == "ReadVariableOp"}
            applies = {op["variable"] for op in touched if op["type"].startswith("Assign")}
            if not (reads >= READS[server] and applies >= APPLIES[server]):
                return False
            # What was read went to the worker, and its gradient came back.
            if not (sends[step_id][server, closure.worker] and sends[step_id][closure.worker, server]):
                return False
        return True

    share = sum(map(complete, closures)) / len(closures)
    assert share >= 0.95, f"{share:.1%} of {len(closures)}"


def test_staleness_is_what_the_program_counted(job: Job, closures: list[Closure]) -> None:
    numbers = {closure.trace_id: closure.number for closure in closures}
    steps = job.rows("steps")
    profiled: dict[int, dict[str, Any]] = {}
    for row in job.rows("staleness"):
        number = numbers.get(steps[row["step"]]["trace_id"])
        if number is not None and row["variable"] == "version":
            profiled[number] = row
    exact = {number: row for number, row in profiled.items() if row["staleness"] is not None}
    assert len(exact) >= 0.95 * len(closures)
    counted = {number: (job.counted[number][0], job.counted[number][1] - 1) for number in exact}
    assert {number: row["staleness"] for number, row in exact.items()} == {
        number: applied - read for number, (read, applied) in counted.items()
    }
    # Not all alike, or any constant would do.
    assert len({row["staleness"] for row in exact.values()}) > 1
    # And the versions themselves, but for those from before the profile.
    before = {counted[number][0] - row["read_version"] for number, row in exact.items()}
    before |= {counted[number][1] - row["applied_version"] for number, row in exact.items()}
    assert len(before) == 1


def test_a_region_has_its_ops_on_the_right_worker(job: Job, closures: list[Closure]) -> None:
    tasks = {host["host"]: host["task"] for host in job.rows("hosts")}
    steps, regions = job.rows("steps"), job.rows("region_spans")
    in_region = defaultdict(set)
    for op in job.rows("ops"):
        if op["region"] is not None and op["region"] >= 0:
            in_region[op["region"]].add(op["name"])
    on = defaultdict(list)
    for number, region in enumerate(regions):
        on[steps[region["step"]]["trace_id"], tasks[region["host"]], region["scope"]].append(number)
    complete = 0
    for closure in closures:
        outer = on[closure.trace_id, closure.worker, "attention"]
        inner = on[closure.trace_id, closure.worker, "attention/softmax"]
        if len(outer) != 1 or len(inner) != 1:
            continue
        names = in_region[outer[0]] | in_region[inner[0]]
        assert regions[inner[0]]["parent"] == outer[0]
        forward = any("/attention/" in name and "gradient_tape" not in name for name in names)
        backward = any("gradient_tape/attention/" in name for name in names)
        complete += forward and backward
    assert complete >= 0.95 * len(closures)
