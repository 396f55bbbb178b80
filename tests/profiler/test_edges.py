"""Sends meet their receives, collectives meet, applies follow one another; staleness is exact."""

from __future__ import annotations

import itertools
import json
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_tf.profiler import profile
from otel_tf.profiler._keys import dense, match, occurrence
from tests.profiler.pss import Call, Cluster, one_after_another
from tests.profiler.spaces import SpaceOf
from tests.profiler.test_link import write_run

GRAPH = {"layer/w/Read": "w", "layer/w/Assign": "w", "layer/b/Read": "b", "layer/b/Assign": "b"}


def ends(found, kind):
    """Returns edges as pairs of (task, run, op)."""
    tasks, ops, steps = (getattr(found, name).to_pylist() for name in ("hosts", "ops", "steps"))

    def end(row):
        op = ops[row]
        return tasks[op["host"]]["task"], steps[op["step"]]["step_id"], op["name"]

    return [(end(edge["src"]), end(edge["dst"])) for edge in found.edges.to_pylist() if edge["kind"] == kind]


def test_each_send_has_its_receive_on_the_other_machine(tmp_path):
    cluster = Cluster(one_after_another(12), skew_us={"worker:0": 3e6, "ps:1": -1e3})
    found = profile([cluster.write(tmp_path)])
    wanted = {
        (
            (f"ps:{n}", call.step_id, f"layer/{variable}/Read/_{2 * n + 1}"),
            (f"worker:{call.worker}", call.step_id, f"layer/{variable}/Read/_{2 * n + 2}"),
        )
        for call in cluster.calls
        for n, variable in enumerate(cluster.variables)
    } | {
        (
            (f"worker:{call.worker}", call.step_id, f"gradient_tape/layer/{variable}/_{2 * n + 11}"),
            (f"ps:{n}", call.step_id, f"gradient_tape/layer/{variable}/_{2 * n + 12}"),
        )
        for call in cluster.calls
        for n, variable in enumerate(cluster.variables)
    }
    assert sorted(ends(found, "send_recv")) == sorted(wanted)
    keys = {edge["key"] for edge in found.edges.to_pylist() if edge["kind"] == "send_recv"}
    assert all(key.startswith(("/job:ps/replica:0/task:", "/job:worker/replica:0/task:")) for key in keys)
    assert found.report["edges"]["send_recv"] == 48


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(times=st.integers(1, 5), seed=st.integers(0, 99))
def test_in_a_loop_the_nth_send_is_the_nth_receives(tmp_path, times, seed):
    """With the events of the file in any order."""
    space = SpaceOf()
    plane = space.plane()
    names = ["send", "compute", "queue"]
    random.Random(seed).shuffle(names)
    lines = {name: plane.line(name) for name in names}
    lines["send"].add("ExecutorState::Process", 0, 1000, id=1)
    lines["compute"].add("ExecutorState::Process", 0, 1000, id=1)
    for n in range(times):
        lines["send"].add("x/_1:_Send", 10 + 20 * n, 1, x_from="x", to="y", key=f"a;1;b;x;0:{n}")
        about = {"x_name": "x/_2", "kernel_type": "_Recv", "step_id": 1}
        lines["compute"].add("ExecutorState::ProcessAsync::Start", 5 + 20 * n, 1, **about, _p=n)
        lines["queue"].add("ExecutorState::ProcessAsync::Done", 18 + 20 * n, 1, **about, _c=n)
    found = profile([space.write(tmp_path / "vm.xplane.pb")])
    ops = found.ops.to_pylist()
    pairs = [(ops[edge["src"]], ops[edge["dst"]]) for edge in found.edges.to_pylist()]
    assert len(pairs) == times
    assert all(0 < receive["end_ns"] - send["start_ns"] < 20_000 for send, receive in pairs)


def collectives(task, shift, count=4, devices=1):
    space = SpaceOf(hostname=task)
    plane = space.plane()
    for device in range(devices):
        compute, queue = plane.line(f"tf_Compute/{device}"), plane.line(f"collective_ops/{device}")
        for n in range(count):
            at = 100 * n + shift + device
            about = {"x_name": "sum", "kernel_type": "CollectiveReduceV2", "step_id": 7 + n}
            compute.add("ExecutorState::Process", at, 9, id=7 + n)
            compute.add("ExecutorState::ProcessAsync::Start", at + 1, 2, **about, _p=100 * device + n)
            kernel = {"step_id": 7 + n, "group_key": 1, "instance_key": 40 + n // 2}
            queue.add("sum:CollectiveReduceV2", at + 20, 30, **kernel)
            queue.add("ExecutorState::ProcessAsync::Done", at + 48, 1, **about, _c=100 * device + n)
    return space


def test_collectives_of_all_hosts_meet(tmp_path):
    for number, shift in enumerate((0, 33, 5)):
        collectives(f"host{number}", shift).write(tmp_path / f"worker-{number}.xplane.pb")
    found = profile([tmp_path])
    edges = [edge for edge in found.edges.to_pylist() if edge["kind"] == "collective"]
    keys = ["1/40/0", "1/40/0", "1/40/1", "1/40/1", "1/41/0", "1/41/0", "1/41/1", "1/41/1"]
    assert sorted(edge["key"] for edge in edges) == keys
    ops, hosts = found.ops.to_pylist(), found.hosts.to_pylist()
    for edge in edges:
        assert hosts[ops[edge["src"]]["host"]]["task"] == "worker:0"
        assert hosts[ops[edge["dst"]]["host"]]["task"] != "worker:0"
        assert ops[edge["src"]]["start_ns"] < ops[edge["dst"]]["end_ns"]


def brute_force(cluster):
    """Returns (worker's step) → staleness, by replaying the server's events one at a time."""
    events = sorted(
        [(call.read, 0, call.step_id) for call in cluster.calls]
        + [(call.apply, 1, call.step_id) for call in cluster.calls]
    )
    version, read, stale = 0, {}, {}
    for _, applies, step in events:
        if applies:
            stale[step] = version - read[step]
            version += 1
        else:
            read[step] = version
    return stale


workers = st.lists(st.integers(0, 2), min_size=1, max_size=25)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=workers, graph=st.booleans(), skew=st.sampled_from([0, 10**7]))
def test_staleness_is_that_of_a_replay(tmp_path, drawn, graph, skew):
    moments = iter(random.Random(len(drawn)).sample(range(100, 100 + 20 * len(drawn)), 2 * len(drawn)))
    steps = []
    for number, worker in enumerate(drawn):
        read, apply = sorted((next(moments) * 5.0, next(moments) * 5.0))
        steps.append(Call(worker, 50 + number, read - 20, read, apply, apply + 40))
    cluster = Cluster(steps, workers=3, skew_us={"ps:0": skew})
    session = cluster.write(tmp_path)
    run = []
    if graph:
        folder = write_run(tmp_path / "run", cluster)
        noted = {"function": "__inference_step_7", "variables": GRAPH}
        (folder / "chief-0.graph.json").write_text(json.dumps(noted))
        run = [str(folder)]
    found = profile([session], run=run)
    ops, hosts, rows = found.ops.to_pylist(), found.hosts.to_pylist(), found.steps.to_pylist()
    told = {
        (hosts[ops[row["op"]]["host"]]["task"], rows[row["step"]]["step_id"]): row
        for row in found.staleness.to_pylist()
    }
    for server in ("ps:0", "ps:1"):
        wanted = brute_force(cluster)
        assert {step: told[server, step]["staleness"] for step in wanted} == wanted
        for step in wanted:
            row = told[server, step]
            assert row["applied_version"] - row["read_version"] == row["staleness"]
    assert len(told) == 2 * len(steps)
    if graph:
        assert {row["variable"] for row in told.values()} == {"w", "b"}


def test_what_may_be_one_or_another_version_is_not_guessed(tmp_path):
    """A read while another step applies: nobody knows which it got."""
    steps = [
        Call(0, 50, 80, 100, 400, 450),
        Call(1, 51, 180, 200, 300.1, 350),
        Call(0, 52, 290, 300.2, 600, 650),
    ]
    found = profile([Cluster(steps).write(tmp_path)])
    rows = {found.steps["step_id"][row["step"]].as_py(): row for row in found.staleness.to_pylist()}
    assert rows[50]["staleness"] == 1
    assert rows[51]["staleness"] == 0
    assert rows[52]["staleness"] is None
    assert found.report["staleness"] == {"exact": 4, "not_exact": 2, "max": 1}


def test_an_apply_without_a_read_has_no_staleness(tmp_path):
    space = SpaceOf()
    thread = space.plane().line("tf_Compute/1")
    thread.add("ExecutorState::Process", 0, 90, id=1).add("count:AssignAddVariableOp", 10, 1)
    found = profile([space.write(tmp_path / "ps-0.xplane.pb")])
    assert found.staleness.num_rows == 0
    assert found.report["staleness"] == {"exact": 0, "not_exact": 0, "max": None}


def test_applies_to_a_variable_follow_one_another(tmp_path):
    cluster = Cluster(one_after_another(9))
    found = profile([cluster.write(tmp_path)])
    order = [call.step_id for call in sorted(cluster.calls, key=lambda call: call.apply)]
    for server in ("ps:0", "ps:1"):
        pairs = [(a[1], b[1]) for a, b in ends(found, "apply") if a[0] == server]
        assert pairs == list(itertools.pairwise(order))


numbers = st.lists(
    st.tuples(st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 3), st.integers(0, 3)), max_size=30
)


@settings(max_examples=200, deadline=None)
@given(left=numbers, right=numbers)
def test_joins_by_several_keys(left, right):
    def columns(rows):
        return tuple(np.array(rows, np.int64).reshape(-1, 2).T)

    number = dense(*columns(left))
    assert [left[i] == left[j] for i in range(len(left)) for j in range(i)] == [
        bool(number[i] == number[j]) for i in range(len(left)) for j in range(i)
    ]
    assert match(columns(left), columns(right)).tolist() == [
        right.index(key) if key in right else -1 for key in left
    ]
    times = occurrence(number)
    assert times.tolist() == [left[:row].count(key) for row, key in enumerate(left)]


@pytest.mark.parametrize("missing", ["ps-0", "ps-1", "worker-1"])
def test_without_one_hosts_file_the_others_are_as_before(tmp_path, missing):
    cluster = Cluster(one_after_another(10))
    session = cluster.write(tmp_path)
    whole = sorted(ends(profile([session]), "send_recv"))
    (session / f"{missing}.xplane.pb").unlink()
    task = missing.replace("-", ":")
    assert sorted(ends(profile([session]), "send_recv")) == [
        pair for pair in whole if task not in (pair[0][0], pair[1][0])
    ]
