"""Each run of a function is tied to the span of its step, whatever there is to tie it by."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_tf import ids
from otel_tf.errors import UserError
from otel_tf.profiler import linkage, profile
from otel_tf.profiler.run import read_cluster
from otel_tf.profiler.sequence import aligned
from tests.profiler.pss import STARTED_NS, Call, Cluster, one_after_another
from tests.profiler.spaces import SpaceOf

RUN = "r1"


def write_run(folder, cluster, *, source="worker", calls=None):
    """Writes the spans of a run: a train_step a call, by the worker's clock or by the coordinator's."""
    spans = []
    for number, call in enumerate(cluster.calls if calls is None else calls):
        task = f"worker:{call.worker}"
        begin, end = call.start + 1, call.end - 1
        if source == "coordinator":
            begin, end = call.start - 50 + (number * 7) % 23 + 7e6, call.end + 40 + 7e6  # another clock
        else:
            begin, end = cluster.at(task, begin), cluster.at(task, end)
        attributes = {"tensorflow.worker": task, "tensorflow.time.source": source}
        pairs = [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()]
        pairs.append({"key": "tensorflow.global_step", "value": {"intValue": str(number + 1)}})
        about = {
            "service.name": "mnist",
            "service.instance.id": f"{RUN}/{task}",
            "tensorflow.clock.domain": f"clock-{task}",
            "tensorflow.run.id": RUN,
        }
        spans.append(
            {
                "resource": {
                    "attributes": [
                        {"key": key, "value": {"stringValue": value}} for key, value in about.items()
                    ]
                },
                "scopeSpans": [
                    {
                        "spans": [
                            {
                                "traceId": f"{ids.trace_id(RUN, 'closure', number):032x}",
                                "spanId": f"{ids.span_id(RUN, call.step_id):016x}",
                                "name": "train_step",
                                "kind": 2,
                                "startTimeUnixNano": str(STARTED_NS + round(begin * 1000)),
                                "endTimeUnixNano": str(STARTED_NS + round(end * 1000)),
                                "attributes": pairs,
                            }
                        ]
                    }
                ],
            }
        )
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"resourceSpans": [span]}) for span in spans]
    (folder / "chief-0.1.traces.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def linked(found):
    """Returns (task, step id) → (how, span id, worker, global step)."""
    tasks = found.hosts["task"].to_pylist()
    return {
        (tasks[row["host"]], row["step_id"]): (
            row["linked"],
            int.from_bytes(row["span_id"], "big"),
            row["worker"],
            row["global_step"],
        )
        for row in found.steps.to_pylist()
    }


def expected(cluster, how, calls=None):
    wanted = {}
    for number, call in enumerate(cluster.calls):
        if calls is not None and call not in calls:
            continue
        span, worker = ids.span_id(RUN, call.step_id), f"worker:{call.worker}"
        step = (calls or cluster.calls).index(call) + 1
        assert calls or step == number + 1
        wanted[worker, call.step_id] = (how, span, worker, step)
        for server in range(len(cluster.variables)):
            wanted[f"ps:{server}", call.step_id] = ("step_id", span, worker, step)
    return wanted


@pytest.mark.parametrize("skew_us", [0, 30e6])
def test_by_the_workers_own_stamps(tmp_path, skew_us):
    cluster = Cluster(one_after_another(20), skew_us={"worker:0": skew_us, "ps:1": -7.0})
    found = profile([cluster.write(tmp_path)], run=[str(write_run(tmp_path / "run", cluster))])
    assert linked(found) == expected(cluster, "stamps")
    report = found.report
    assert (report["steps"], report["linked_steps"], report["absolute_time"]) == (20, 20, True)


def test_what_else_ran_during_a_step_is_none_of_its(tmp_path):
    """Functions of an input pipeline, in a process whose steps a TraceMe marks, and on a stamped worker."""
    calls = one_after_another(3, workers=1)
    for marked in (True, False):
        cluster = Cluster(calls, workers=1, tracemes=marked)
        session = cluster.write(tmp_path / str(marked))
        path = session / "worker-0.xplane.pb"
        space = SpaceOf()
        space.message.ParseFromString(path.read_bytes())
        pipeline = space.plane().line("tf_data", number=99)
        for n, call in enumerate(calls):
            pipeline.add("ExecutorState::Process", cluster.at("worker:0", call.start + 30), 9, id=77 + n)
        space.write(path)
        run = write_run(tmp_path / f"run-{marked}", cluster)
        found = linked(profile([session], run=[str(run)]))
        assert {found["worker:0", 77 + n][0] for n in range(3)} == {None}
        assert {found["worker:0", call.step_id][0] for call in calls} == {"traceme" if marked else "stamps"}


def test_a_step_may_be_around_runs_of_functions(tmp_path):
    """Where the steps are a program's own, and nothing in the profile marks them."""
    cluster = Cluster(one_after_another(4, workers=1), workers=1)
    longer = [dataclasses.replace(call, start=call.start - 30, end=call.end + 20) for call in cluster.calls]
    run = write_run(tmp_path / "run", cluster, calls=longer)
    found = linked(profile([cluster.write(tmp_path)], run=[str(run)]))
    assert [found["worker:0", call.step_id][3] for call in cluster.calls] == [1, 2, 3, 4]


def test_by_the_order_of_dispatches(tmp_path):
    cluster = Cluster(one_after_another(30))
    run = write_run(tmp_path / "run", cluster, source="coordinator")
    assert linked(profile([cluster.write(tmp_path)], run=[str(run)])) == expected(cluster, "dispatch")


def test_by_the_order_of_dispatches_of_which_the_profile_has_some(tmp_path):
    everything = one_after_another(60)
    run = write_run(tmp_path / "run", Cluster(everything), source="coordinator")
    some = Cluster(everything[20:44])
    wanted = {
        key: (how, span, worker, step + 20)
        for key, (how, span, worker, step) in expected(some, "dispatch").items()
    }
    assert linked(profile([some.write(tmp_path)], run=[str(run)])) == wanted


def test_by_a_traceme_with_its_ids_and_no_run(tmp_path):
    cluster = Cluster(one_after_another(4), tracemes=True)
    found = profile([cluster.write(tmp_path)])
    for (task, step_id), (how, span, worker, step) in linked(found).items():
        call = next(call for call in cluster.calls if call.step_id == step_id)
        assert how == ("traceme" if task.startswith("worker") else "step_id")
        assert (span, worker) == (step_id, f"worker:{call.worker}")
        assert step == [c for c in cluster.calls if c.worker == call.worker].index(call)
    assert {int.from_bytes(row, "big") for row in found.steps["trace_id"].to_pylist()} == {
        call.step_id for call in cluster.calls
    }


def test_by_the_coordinators_profile(tmp_path):
    cluster = Cluster(one_after_another(20))
    session = cluster.write(tmp_path)
    space = SpaceOf(STARTED_NS - 12 * 10**9)  # another machine
    plane = space.plane()
    for worker in range(2):
        thread = plane.line(f"python/{worker}", number=worker)
        for place, call in enumerate(call for call in cluster.calls if call.worker == worker):
            stats = linkage(call.step_id, call.step_id + 5)
            stats |= {"otel_worker": f"worker-{worker}", "otel_dispatch": f"s-{call.step_id:016x}"}
            begin = call.start - 30 + (call.step_id * 7) % 11 + 10**6
            thread.add("train_step", begin, call.end - call.start + 50, step_num=place, **stats)
    space.write(session / "chief-0.xplane.pb")
    found = linked(profile([session]))
    for call in cluster.calls:
        how, span, worker, _ = found[f"worker:{call.worker}", call.step_id]
        assert (how, span, worker) == ("dispatch", call.step_id + 5, f"worker:{call.worker}")
        assert found["ps:0", call.step_id][:3] == ("step_id", call.step_id + 5, worker)


def test_what_belongs_to_no_span_has_the_same_ids_at_every_reading(tmp_path):
    session = Cluster(one_after_another(6)).write(tmp_path)
    first, again = profile([session]), profile([session])
    assert set(first.steps["linked"].to_pylist()) == {None}
    for table in ("steps", "ops"):
        assert getattr(first, table).equals(getattr(again, table))
    # One trace for a call, on all hosts, with its root on the worker.
    by_step = {}
    for row in first.steps.to_pylist():
        by_step.setdefault(row["step_id"], set()).add((row["trace_id"], row["span_id"], row["worker"]))
    assert all(len(spans) == 1 for spans in by_step.values())
    assert len(set().union(*by_step.values())) == 6
    assert len(set(first.ops["span_id"].to_pylist())) == first.ops.num_rows


def test_a_region_of_eager_code_inside_a_step_has_its_ops(tmp_path):
    space = SpaceOf()
    thread = space.plane().line("python")
    thread.add("train_step", 0, 100, step_num=4, **linkage(7, 8))
    thread.add("attention", 10, 50, otel_span=f"s-{9:016x}")
    thread.add("EagerExecute", 12, 3, eager_op="MatMul", is_func=0)
    thread.add("EagerExecute", 70, 3, eager_op="Relu", is_func=0)
    found = profile([space.write(tmp_path / "vm.xplane.pb")])
    links, ops = found.links, found.whole.ops
    assert {
        found.whole.words[name]: (links.parent[step], links.step_span[step], links.global_step[step])
        for name, step in zip(ops.name, ops.step, strict=True)
    } == {"MatMul": (9, 8, 4), "Relu": (8, 8, 4)}


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_sequences_are_laid_against_each_other_or_not_at_all(data):
    """Whatever the clocks' difference and the part that was recorded: each run gets its own call or none."""
    count = data.draw(st.integers(8, 40))
    gaps = data.draw(st.lists(st.integers(100, 5000), min_size=count, max_size=count))
    lengths = data.draw(st.lists(st.integers(100, 3000), min_size=count, max_size=count))
    before = data.draw(st.lists(st.integers(1, 60), min_size=count, max_size=count))
    begin = np.cumsum(np.array(gaps) + np.array([0, *lengths[:-1]]))
    calls = begin - np.array(before), begin + np.array(lengths) + 10
    first = data.draw(st.integers(0, count - 5))
    last = data.draw(st.integers(first + 5, count))
    skew = data.draw(st.integers(-(10**12), 10**12))
    runs = begin[first:last] + skew, (begin + np.array(lengths))[first:last] + skew
    pairs = dict(aligned(*runs, *calls))
    assert not pairs or pairs == {run: run + first for run in range(last - first)} or len(set(lengths)) < 4


def test_calls_that_are_all_alike_are_not_guessed():
    at = np.arange(20) * 1000
    assert not list(aligned(at[3:12], at[3:12] + 500, at, at + 510))
    assert not list(aligned(at, at + 500, at - 7, at + 510))
    uneven = at + (at * at // 1000) % 317
    assert list(aligned(uneven, uneven + 500, at - 7 + (at * at // 1000) % 317, uneven + 510)) == [
        (n, n) for n in range(20)
    ]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"localhost:1": "worker:0"}', {"localhost:1": "worker:0"}),
        ('{"worker": ["a:1", "b:2"], "ps": ["c:3"]}', {"a:1": "worker:0", "b:2": "worker:1", "c:3": "ps:0"}),
        ('{"cluster": {"worker": {"3": "a:1"}}, "task": {}}', {"a:1": "worker:3"}),
        ('{"a:1": "worker:0"}\n{"b:1": "worker:0"}\n{"c:', {"b:1": "worker:0"}),
    ],
)
def test_a_cluster_spec_may_have_any_usual_form(tmp_path, text, wanted):
    path = tmp_path / "cluster.json"
    path.write_text(text)
    assert read_cluster(path) == wanted


@pytest.mark.parametrize("text", ["", "hello", "[]", "{}", '{"worker": 3}'])
def test_another_file_is_named(tmp_path, text):
    path = tmp_path / "cluster.json"
    path.write_text(text)
    with pytest.raises(UserError, match=r"cluster\.json: "):
        read_cluster(path)


def test_a_file_is_its_tasks_by_address(tmp_path):
    cluster = Cluster([dataclasses.replace(one_after_another(1)[0])])
    session = cluster.write(tmp_path)
    (session / "worker-0.xplane.pb").rename(session / "localhost_32101.xplane.pb")
    found = profile([session], cluster={"localhost:32101": "worker:0"})
    assert set(found.hosts["task"].to_pylist()) == {"worker:0", "worker:1", "ps:0", "ps:1"}
    assert isinstance(cluster.calls[0], Call)
