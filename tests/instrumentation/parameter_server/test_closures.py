"""ParameterServerStrategy in real processes: what is recorded, and what the user notices (nothing)."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from otel_tf import ids
from otel_tf.correlator import Result, correlate
from otel_tf.demo.clocks import FalseClock, FalseClocks, false_clocks
from otel_tf.demo.cluster import Cluster
from tests.instrumentation.metrics import last, metrics_endpoint
from tests.spool import SpooledSpan, spans

PROGRAM = [str(Path(__file__).with_name("program.py"))]
STEPS = 200
TRUE_CLOCKS = FalseClocks(None, "not wanted")
CLOCKS = {
    "chief:0": FalseClock(0.0, 0.0),
    "ps:0": FalseClock(0.0, 0.0),
    "worker:0": FalseClock(30.0, 100.0),
    "worker:1": FalseClock(-12.0, 0.0),
}
MS = 1_000_000


def run(
    folder: Path, clocks: FalseClocks, *arguments: str, workers: int = 2, **variables: str
) -> dict[str, Any]:
    environment = {
        "OTEL_TF_RUN_ID": "test",
        "OTEL_TF_RUN_DIR": str(folder),
        "OTEL_TF_TESTING": "true",
        "OTEL_TF_DRAIN_INTERVAL": "200",
        "OTEL_TF_CLOCK_PROBE_INTERVAL": "500",
        "OTEL_TRACES_EXPORTER": "none",
        "TF_CPP_MIN_LOG_LEVEL": "1",
        **variables,
    }
    cluster = Cluster(workers, folder, environment, clocks, CLOCKS.__getitem__)
    return cluster.run(list(arguments), program=PROGRAM)


@pytest.fixture(scope="module")
def clocks() -> FalseClocks:
    found = false_clocks()
    if found.library is None:
        pytest.skip(f"platform: {found.problem}")
    return found


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory, clocks: FalseClocks) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("job")
    with metrics_endpoint() as (collector, variables):
        answers = run(folder, clocks, "--steps", str(STEPS), **variables)
    return folder, {**answers, "metrics": collector}


@pytest.fixture(scope="module")
def recorded(job: tuple[Path, dict[str, Any]]) -> list[SpooledSpan]:
    return spans(job[0])


@pytest.fixture(scope="module")
def result(job: tuple[Path, dict[str, Any]]) -> Result:
    return correlate(str(job[0]))


def named(recorded: list[SpooledSpan], name: str, **attributes: Any) -> list[SpooledSpan]:
    wanted = {f"tensorflow.{key.replace('__', '.')}": value for key, value in attributes.items()}
    return [
        span
        for span in recorded
        if span.name == name and all(span.attributes.get(key) == value for key, value in wanted.items())
    ]


def test_user_sees_what_is_there_without_us(job: tuple[Path, dict[str, Any]]) -> None:
    _, answers = job
    assert answers["tracings"] == 1
    # One by schedule, one by get_concrete_function(): as without us (compared to the bit below).
    assert answers["signed_tracings"] == 2
    assert answers["signed"] == [2.0, 4.0, 6.0, 10.0]
    assert answers["pair"] == [8, 2]
    assert answers["iterations"] == 40 + STEPS
    assert answers["failure"].startswith("InvalidArgumentError")
    assert "too large on purpose" in answers["failure"]
    assert "otel_tf/" not in answers["failure"]
    assert answers["after_failure"] == "no error"
    assert answers["untraceable"].startswith("TypeError: Binding inputs to tf.function failed")


def test_what_keras_3_cannot_do_is_said_at_once(job: tuple[Path, dict[str, Any]]) -> None:
    said = (job[0] / "logs" / "chief-0.log").read_text(errors="replace")
    assert said.count("Keras 3 itself has no fit under ParameterServerStrategyV2; use tf_keras") == 1


def test_everything_is_restored(job: tuple[Path, dict[str, Any]]) -> None:
    _, answers = job
    assert answers["restored"] == [True] * len(answers["restored"])
    assert answers["after_uninstrument"] == "no error"


def test_every_closure_has_its_span(recorded: list[SpooledSpan]) -> None:
    functions = Counter(span.attributes["tensorflow.function.name"] for span in named(recorded, "closure"))
    assert functions == {"train_step": STEPS + 1, "evaluate": 3, "signed": 4, "failing": 1}
    for span in named(recorded, "closure"):
        number = span.attributes["tensorflow.closure.id"]
        assert span.trace_id == f"{ids.trace_id('test', 'closure', number):032x}"
        assert span.kind == 4  # PRODUCER
        assert span.parent_id == ""
        assert isinstance(span.attributes["tensorflow.closure.queue_time"], float)
        assert span.attributes["tensorflow.closure.attempts"] == 1
        assert span.resource["service.instance.id"] == "test/chief:0"
        assert span.resource["tensorflow.strategy"] == "ParameterServerStrategyV2"


def test_chain_from_closure_to_worker(recorded: list[SpooledSpan]) -> None:
    by_id = {span.span_id: span for span in recorded}
    steps = named(recorded, "train_step")
    assert len(steps) == STEPS + 2  # the step after the failure, and the one that failed
    for step in steps:
        dispatch = by_id[step.parent_id]
        closure = by_id[dispatch.parent_id]
        assert (step.kind, dispatch.kind) == (2, 3)  # SERVER, CLIENT
        assert step.trace_id == dispatch.trace_id == closure.trace_id
        assert step.attributes["tensorflow.worker"] == dispatch.attributes["tensorflow.worker"]
        assert closure.start_ns <= dispatch.start_ns <= dispatch.end_ns <= closure.end_ns
        assert step.resource["service.instance.id"] == f"test/{step.attributes['tensorflow.worker']}"


def test_step_numbers(recorded: list[SpooledSpan]) -> None:
    applied = [step for step in named(recorded, "train_step") if "code" not in step.status]
    # It goes on from the variable's 40, every number once, and each worker counts its own.
    assert sorted(step.attributes["tensorflow.global_step"] for step in applied) == list(
        range(41, 41 + STEPS + 1)
    )
    for worker in ("worker:0", "worker:1"):
        mine = [step for step in applied if step.attributes["tensorflow.worker"] == worker]
        assert [step.attributes["tensorflow.local_step"] for step in mine] == list(range(1, len(mine) + 1))
        assert [step.attributes["tensorflow.seq"] for step in mine] == sorted(
            {step.attributes["tensorflow.seq"] for step in mine}
        )


def test_staleness_is_who_came_back_meanwhile(recorded: list[SpooledSpan]) -> None:
    """To the nanosecond: a step may be overtaken by any number of others on a busy machine."""
    by_id = {span.span_id: span for span in recorded}
    applied = [step for step in named(recorded, "train_step") if "code" not in step.status]
    runs = []
    for step in applied:
        dispatch = by_id[step.parent_id]
        start_ns = dispatch.attributes["tensorflow.monotonic_ns"]
        runs.append((start_ns + dispatch.end_ns - dispatch.start_ns, start_ns, step))
    runs.sort(key=lambda one: one[:2])
    assert [step.attributes["tensorflow.global_step"] for _, _, step in runs] == list(range(41, 42 + STEPS))
    for end_ns, start_ns, step in runs:
        overtaken_by = [other_ns for other_ns, _, _ in runs if start_ns < other_ns < end_ns]
        assert step.attributes["tensorflow.staleness"] == len(overtaken_by)
        assert step.attributes["tensorflow.staleness.source"] == "coordinator"
    assert any(step.attributes["tensorflow.staleness"] for step in applied)


def test_metrics_by_worker(job: tuple[Path, dict[str, Any]], recorded: list[SpooledSpan]) -> None:
    collector = job[1]["metrics"]
    found = {
        name: last(collector, f"tensorflow.{name}", "test")
        for name in ("step.duration", "staleness", "worker.lag")
    }
    assert [unit for unit, _ in found.values()] == ["s", "{step}", "{step}"]
    applied = [step for step in named(recorded, "train_step") if "code" not in step.status]
    most = {"worker:0": 0, "worker:1": 0}
    lag = dict(most)
    for step in sorted(applied, key=lambda step: step.attributes["tensorflow.global_step"]):
        worker = step.attributes["tensorflow.worker"]
        most[worker] = step.attributes["tensorflow.local_step"]
        lag[worker] += max(most.values()) - most[worker]
    for worker in most:
        mine = [step for step in applied if step.attributes["tensorflow.worker"] == worker]
        staleness, behind = found["staleness"][1][worker], found["worker.lag"][1][worker]
        assert staleness.count == behind.count == len(mine)
        assert staleness.sum == sum(step.attributes["tensorflow.staleness"] for step in mine)
        # Two that come back in the same instant may be counted in either order.
        assert abs(behind.sum - lag[worker]) <= len(mine) / 10
        # The one that failed took its time as well.
        assert len(mine) <= found["step.duration"][1][worker].count <= len(mine) + 1


def test_what_trains_nothing_is_no_step(recorded: list[SpooledSpan]) -> None:
    assert {span.attributes["tensorflow.function.name"] for span in named(recorded, "train_step")} == {
        "train_step",
        "failing",
    }
    executed = named(recorded, "execute")
    assert len(executed) == 3 + 4
    assert not any("tensorflow.global_step" in span.attributes for span in executed)


def test_failure_is_on_its_spans_once(recorded: list[SpooledSpan]) -> None:
    (closure,) = named(recorded, "closure", function__name="failing")
    family = [span for span in recorded if span.trace_id == closure.trace_id]
    assert sorted(span.name for span in family) == ["closure", "dispatch", "train_step"]
    for span in family:
        assert span.status["code"] == 2
        assert span.attributes["error.type"] == "INVALID_ARGUMENT"
        assert re.fullmatch(r"worker:[01]", span.attributes["tensorflow.error.origin.worker"])
    events = {span.name: [event["name"] for event in span.events] for span in family}
    assert events["closure"] == events["dispatch"] == []
    assert events["train_step"].count("exception") == 1


def test_workers_stamp_with_their_own_clock(recorded: list[SpooledSpan]) -> None:
    by_id = {span.span_id: span for span in recorded}
    for worker, offset_s in (("worker:0", 30), ("worker:1", -12)):
        steps = [
            step
            for step in named(recorded, "train_step", worker=worker, time__source="worker")
            if step.resource["tensorflow.clock.domain"] == worker
        ]
        assert len(steps) > STEPS / 4
        for step in steps:
            dispatch = by_id[step.parent_id]
            # Raw, the step is off by the clock's error, far outside its dispatch …
            late_ns = step.start_ns - offset_s * 1000 * MS - dispatch.start_ns
            assert -100 * MS < late_ns < dispatch.end_ns - dispatch.start_ns + 100 * MS
            assert step.end_ns - step.start_ns <= (dispatch.end_ns - dispatch.start_ns) + 10_000


def test_corrected_steps_lie_inside_their_dispatch(recorded: list[SpooledSpan], result: Result) -> None:
    rows = {row["span_id"]: row for row in result.spans.to_pylist()}
    steps = [rows[step.span_id] for step in named(recorded, "train_step", time__source="worker")]
    assert len(steps) == STEPS + 1  # all but the one that failed
    for step in steps:
        dispatch = rows[step["parent_span_id"]]
        # … and corrected it lies inside.
        assert dispatch["corrected_start_ns"] < step["corrected_start_ns"]
        assert step["corrected_start_ns"] <= step["corrected_end_ns"]
        assert step["corrected_end_ns"] < dispatch["corrected_end_ns"]
    assert result.report["violations"] == 0
    assert result.report["wall_clock_inversions"] > STEPS / 2


def test_clocks_are_found_within_their_bars(result: Result) -> None:
    offsets = {clock["domain"]: clock for clock in result.report["clocks"]}
    assert set(offsets) == set(CLOCKS)
    reference = next(domain for domain, clock in offsets.items() if clock["error_ns"] == 0)
    # Drift since the process began adds at most 100 ppm of the minute that this takes.
    for domain, clock in offsets.items():
        true_ns = (CLOCKS[domain].offset_s - CLOCKS[reference].offset_s) * 1e9
        assert abs(clock["offset_ns"] - true_ns) <= clock["error_ns"] + 100e-6 * 60e9, domain


def test_parameter_server_is_probed(recorded: list[SpooledSpan]) -> None:
    by_id = {span.span_id: span for span in recorded}
    servers = [span for span in named(recorded, "clock.probe") if span.kind == 2]
    assert {span.resource["service.instance.id"] for span in servers} == {"test/ps:0"}
    workers = set()
    for server in servers:
        client = by_id[server.parent_id]
        workers.add(client.resource["service.instance.id"])
        assert client.trace_id == server.trace_id
        assert client.start_ns < client.end_ns
    assert workers == {"test/worker:0", "test/worker:1"}


def test_results_are_the_same_to_the_bit(tmp_path: Path) -> None:
    """One worker, so that the training itself repeats: losses, weights, random streams, the error."""
    ours = run(tmp_path / "ours", TRUE_CLOCKS, workers=1)
    bare = run(tmp_path / "bare", TRUE_CLOCKS, "--bare", workers=1)
    # Text that TensorFlow itself words by timing: function numbers, and whether the other half of a
    # distributed function had begun when the first failed.
    for answers in (ours, bare):
        answers["failure"] = re.findall(r"^(\w+):|(assertion failed: .*?)\\?\n", answers.pop("failure"))[:2]
    del ours["run_dir"]
    assert ours == bare


def test_without_stamps_the_coordinator_times(tmp_path: Path) -> None:
    run(tmp_path, TRUE_CLOCKS, "--steps", "10", OTEL_TF_WORKER_STAMPS="false")
    steps = spans(tmp_path, "train_step")
    assert len(steps) == 12
    assert {step.attributes["tensorflow.time.source"] for step in steps} == {"coordinator"}
    by_id = {span.span_id: span for span in spans(tmp_path)}
    assert all(step.start_ns == by_id[step.parent_id].start_ns for step in steps)
