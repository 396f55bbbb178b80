"""MultiWorkerMirroredStrategy in real processes: what is recorded, and what the user notices (nothing)."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from otel_tf import ids
from otel_tf.correlator import Result, correlate
from otel_tf.demo.clocks import FalseClock, false_clocks
from tests.instrumentation.failure.support import tensors
from tests.instrumentation.metrics import last, metrics_endpoint
from tests.instrumentation.multi_worker.workers import Worker, run
from tests.spool import SpooledSpan, spans
from tests.telemetry.support import Collector

STEPS = 30
KERAS_STEPS = 10
#: Gradients: one dense; lengths, values and indices of one sparse; the loss.
COLLECTIVES_A_STEP = 5
MS = 1_000_000
GROUP, INSTANCE = "tensorflow.collective.group_key", "tensorflow.collective.instance_key"


def problem(workers: Iterable[Worker]) -> str:
    return "\n".join(worker.stderr[-3000:] for worker in workers)


def by_worker(found: Iterable[SpooledSpan]) -> dict[str, list[SpooledSpan]]:
    sorted_out = defaultdict(list)
    for span in sorted(found, key=lambda span: span.start_ns):
        sorted_out[span.attributes["tensorflow.worker"]].append(span)
    return dict(sorted_out)


def barriers(found: Iterable[SpooledSpan]) -> dict[tuple[int, int], list[SpooledSpan]]:
    met = defaultdict(list)
    for span in found:
        met[span.attributes[GROUP], span.attributes[INSTANCE]].append(span)
    return dict(met)


#: What reached the endpoint of metrics, by run.
measured: dict[str, Collector] = {}

# -- a run without a name, whose chief comes late ------------------------------------------------------------


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Worker]]:
    folder = tmp_path_factory.mktemp("job")
    arguments = ("--steps", str(STEPS), "--fit")
    with metrics_endpoint() as (collector, variables):
        workers = run(folder, arguments, (*arguments, "--early"), chief_late_s=5.0, **variables)
    assert [worker.code for worker in workers] == [0, 0], problem(workers)
    measured[workers[0].said[0]["run_id"]] = collector
    return folder, workers


@pytest.fixture(scope="module")
def recorded(job: tuple[Path, list[Worker]]) -> list[SpooledSpan]:
    return spans(Path(job[1][0].said[0]["run_dir"]))


def test_workers_agree_on_a_name(job: tuple[Path, list[Worker]], recorded: list[SpooledSpan]) -> None:
    folder, (chief, other) = job
    name, second, third = names = [said["run_id"] for said in chief.said[:3]]
    assert [said["run_id"] for said in other.said[:3]] == names
    assert len({name, second, third}) == 3
    # Nothing was ever written under the names that the other had made for itself.
    assert {path.name for path in (folder / "otel-tf-runs").iterdir()} == {name, second, third}
    assert {span.resource["tensorflow.run.id"] for span in recorded} == {name}
    assert {span.resource["service.instance.id"] for span in recorded} == {
        f"{name}/worker:0",
        f"{name}/worker:1",
    }
    assert all("of their own" not in worker.stderr for worker in (chief, other))


def test_a_step_of_all_workers_is_one_trace(
    job: tuple[Path, list[Worker]], recorded: list[SpooledSpan]
) -> None:
    name = job[1][0].said[0]["run_id"]
    roots = {span.trace_id: span for span in recorded if span.name == "step"}
    steps = by_worker(span for span in recorded if span.name == "train_step")
    assert {worker: len(found) for worker, found in steps.items()} == {
        "worker:0": STEPS + KERAS_STEPS,
        "worker:1": STEPS + KERAS_STEPS,
    }
    assert len(roots) == STEPS + KERAS_STEPS
    assert {root.resource["service.instance.id"] for root in roots.values()} == {f"{name}/worker:0"}
    for ours, theirs in zip(*steps.values(), strict=True):
        assert ours.trace_id == theirs.trace_id
        assert ours.parent_id == theirs.parent_id == roots[ours.trace_id].span_id
        assert ours.attributes["tensorflow.global_step"] == theirs.attributes["tensorflow.global_step"]
    # The custom loop goes on from its counter's 40; each of its steps is where its number says.
    numbers = [step.attributes["tensorflow.global_step"] for step in steps["worker:1"][:STEPS]]
    assert numbers == list(range(41, 41 + STEPS))
    assert [step.trace_id for step in steps["worker:1"][:STEPS]] == [
        f"{ids.trace_id(name, 'step', number):032x}" for number in numbers
    ]


def test_batches_and_epochs_of_keras(recorded: list[SpooledSpan]) -> None:
    roots = {span.trace_id for span in recorded if span.name == "step"}
    for worker, found in by_worker(span for span in recorded if span.name == "train_step").items():
        steps = [step for step in found if "tensorflow.epoch" in step.attributes]
        assert [step.attributes["tensorflow.global_step"] for step in steps] == list(range(1, 11))
        assert [step.attributes["tensorflow.epoch"] for step in steps] == [0] * 5 + [1] * 5
        assert [step.attributes["tensorflow.batch"] for step in steps] == list(range(5)) * 2
        # Counted apart from the custom loop's steps, and on both workers alike.
        assert {step.attributes["tensorflow.step.stream"] for step in steps} == {1}
        assert {step.trace_id for step in steps} < roots
        mine = [span for span in recorded if span.attributes.get("tensorflow.worker") == worker]
        epochs, evaluations, (predict,) = (
            [span for span in mine if span.name == name] for name in ("epoch", "evaluate", "predict")
        )
        assert [span.attributes["tensorflow.epoch"] for span in epochs[:2]] == [0, 1]
        assert [span.attributes["tensorflow.step.after"] for span in epochs[:2]] == [5, 10]
        assert [span.parent_id for span in evaluations] == [*(span.span_id for span in epochs[:2]), ""]
        assert [span.attributes["tensorflow.step.before"] for span in evaluations] == [5, 10, 10]
        assert (predict.parent_id, predict.attributes["tensorflow.step.after"]) == ("", 10)
        assert {span.trace_id for span in (*epochs, *evaluations, predict)} == {epochs[0].trace_id}


def test_keras_3_says_what_it_cannot_do(job: tuple[Path, list[Worker]]) -> None:
    for worker in job[1]:
        assert worker.answers["keras_3"] != "no error"
        # By the one at attach, where it was told of the strategy; by the other when it came to it.
        said = "Keras 3 itself has no fit under CollectiveAllReduceStrategy; use tf_keras"
        assert worker.stderr.count(said) == 1


def test_collectives_belong_to_their_step(recorded: list[SpooledSpan]) -> None:
    steps = {span.span_id: span for span in recorded if span.name == "train_step"}
    collectives = [span for span in recorded if span.name == "collective"]
    of_step = defaultdict(int)
    for span in collectives:
        step = steps[span.parent_id]
        of_step[step.span_id] += 1
        assert span.kind == 1  # INTERNAL
        assert span.trace_id == step.trace_id
        assert span.resource == step.resource
        assert step.start_ns <= span.start_ns <= span.end_ns <= step.end_ns
        for same in ("tensorflow.global_step", "tensorflow.worker"):
            assert span.attributes[same] == step.attributes[same]
        # One clock, read in two ways.
        since = span.attributes["tensorflow.monotonic_ns"] - step.attributes["tensorflow.monotonic_ns"]
        assert since == span.start_ns - step.start_ns
    assert of_step.keys() == steps.keys()
    for step in steps.values():
        if "tensorflow.epoch" not in step.attributes:
            assert of_step[step.span_id] == COLLECTIVES_A_STEP


def test_collectives_are_the_same_on_both_sides(recorded: list[SpooledSpan]) -> None:
    met = barriers(span for span in recorded if span.name == "collective")
    assert len(met) > STEPS * COLLECTIVES_A_STEP
    for members in met.values():
        assert sorted(span.attributes["tensorflow.worker"] for span in members) == ["worker:0", "worker:1"]
        assert len({span.trace_id for span in members}) == 1
        # Nobody leaves before all have entered (one machine, one clock; a stamp rounds by 0.24 µs).
        assert max(span.start_ns for span in members) <= min(span.end_ns for span in members) + 500


def test_metrics_by_worker(job: tuple[Path, list[Worker]], recorded: list[SpooledSpan]) -> None:
    name = job[1][0].said[0]["run_id"]
    unit, waits = last(measured[name], "tensorflow.collective.wait", name)
    assert unit == "s"
    for worker, collectives in by_worker(span for span in recorded if span.name == "collective").items():
        steps = {span.parent_id for span in collectives}
        # One a step, unless a fetch met the step's very end.
        assert len(steps) <= waits[worker].count <= len(steps) + 2
        assert waits[worker].sum * 1e9 == pytest.approx(
            sum(span.end_ns - span.start_ns for span in collectives), rel=1e-6
        )
    _, durations = last(measured[name], "tensorflow.step.duration", name)
    assert {worker: point.count for worker, point in durations.items()} == {
        "worker:0": STEPS + KERAS_STEPS,
        "worker:1": STEPS + KERAS_STEPS,
    }


def test_clocks_are_compared_without_a_collective(
    job: tuple[Path, list[Worker]], recorded: list[SpooledSpan]
) -> None:
    name = job[1][0].said[0]["run_id"]
    by_id = {span.span_id: span for span in recorded}
    servers = [span for span in recorded if span.name == "clock.probe" and span.kind == 2]
    assert len(servers) >= 5
    assert len([span for span in recorded if span.name == "clock.probe" and span.kind == 3]) == len(servers)
    assert {span.resource["service.instance.id"] for span in servers} == {f"{name}/worker:1"}
    for number, server in enumerate(sorted(servers, key=lambda span: span.start_ns)):
        client = by_id[server.parent_id]
        assert client.resource["service.instance.id"] == f"{name}/worker:0"
        assert client.trace_id == server.trace_id
        assert client.trace_id == f"{ids.trace_id(name, 'probe', 'worker:0', 'worker:1', number):032x}"
        assert client.parent_id == ""
        assert (client.attributes["tensorflow.probe.peer"], server.attributes["tensorflow.probe.peer"]) == (
            "worker:1",
            "worker:0",
        )
        # One machine: what was asked before was answered after.
        assert client.start_ns <= server.start_ns <= server.end_ns <= client.end_ns


def test_everything_is_restored(job: tuple[Path, list[Worker]]) -> None:
    for worker in job[1]:
        assert worker.answers["restored"] == [True] * len(worker.answers["restored"])


def test_one_setting_turns_stamps_off(job: tuple[Path, list[Worker]]) -> None:
    for worker in job[1]:
        assert worker.said[0]["stamps"] > 0
        assert worker.said[1]["stamps"] == 0
    second = spans(Path(job[1][0].said[1]["run_dir"]))
    assert {span.name for span in second} >= {"step", "train_step"}
    assert not [span for span in second if span.name == "collective"]


def test_graphs_of_an_earlier_instrumentation_go_on(job: tuple[Path, list[Worker]]) -> None:
    third = by_worker(spans(Path(job[1][0].said[2]["run_dir"]), "collective"))
    assert {worker: len(found) for worker, found in third.items()} == {
        "worker:0": COLLECTIVES_A_STEP,
        "worker:1": COLLECTIVES_A_STEP,
    }


def test_under_xla_there_are_no_stamps_and_it_is_said_once(job: tuple[Path, list[Worker]]) -> None:
    for worker in job[1]:
        assert worker.said[0]["jitted_stamps"] == 0
        assert worker.stderr.count("collectives under jit_compile have no spans") == 1


def test_results_are_the_same_to_the_bit(tmp_path: Path, job: tuple[Path, list[Worker]]) -> None:
    """Losses, weights, tracings, random streams; custom loop and tf_keras."""
    arguments = ("--steps", str(STEPS), "--fit", "--bare")
    bare = run(tmp_path, arguments, arguments)
    assert [worker.code for worker in bare] == [0, 0], problem(bare)
    for ours, theirs in zip(job[1], bare, strict=True):
        assert ours.answers == theirs.answers
    assert bare[0].answers["tracings"] == 1


# -- a slow worker, and a wrong clock ------------------------------------------------------------------------

SLOW_STEPS = 300
LAG_MS = 4.0
WRONG_S = 20.0


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Result:
    library = false_clocks()
    if library.library is None:
        pytest.skip(f"platform: {library.problem}")
    folder = tmp_path_factory.mktemp("slow")
    arguments = ("--steps", str(SLOW_STEPS), "--slow-ms", str(LAG_MS), "--leave")
    workers = run(
        folder,
        arguments,
        arguments,
        clocks=(FalseClock(0.0, 0.0), FalseClock(WRONG_S, 0.0)),
        library=library,
        OTEL_TF_RUN_DIR=str(folder / "run"),
        OTEL_TF_CLOCK_PROBE_INTERVAL="500",
    )
    assert [worker.code for worker in workers] == [0, 0], problem(workers)
    return correlate(str(folder / "run"))


def test_a_program_that_just_ends_loses_nothing(slow: Result) -> None:
    found = Counter((row["name"], row["worker"]) for row in slow.spans.to_pylist())
    for worker in ("worker:0", "worker:1"):
        assert found["train_step", worker] == SLOW_STEPS
        assert found["collective", worker] == SLOW_STEPS * COLLECTIVES_A_STEP


def test_waits_alone_find_the_slow_worker(slow: Result) -> None:
    """And each wait once: the loss, ready long before, is reduced after what it waits for."""
    waited: dict[str, dict[int, int]] = {"worker:0": defaultdict(int), "worker:1": defaultdict(int)}
    for row in slow.spans.to_pylist():
        # The first steps are the set-up of the ring.
        if row["name"] == "collective" and row["global_step"] > 45:
            waited[row["worker"]][row["global_step"]] += row["wait_ns"]
    median_ms = {worker: statistics.median(found.values()) / MS for worker, found in waited.items()}
    assert median_ms["worker:1"] - median_ms["worker:0"] == pytest.approx(LAG_MS, rel=0.1)
    scores = {entry["worker"]: entry["score"] for entry in slow.report["stragglers"]}
    assert scores["worker:0"] > 0 > scores["worker:1"]


def test_the_wrong_clock_is_found_within_its_bar(slow: Result) -> None:
    offsets = {clock["domain"]: clock for clock in slow.report["clocks"]}
    apart_ns = offsets["worker:1"]["offset_ns"] - offsets["worker:0"]["offset_ns"]
    error_ns = offsets["worker:1"]["error_ns"] + offsets["worker:0"]["error_ns"]
    assert abs(apart_ns - WRONG_S * 1000 * MS) <= error_ns < 5 * MS
    assert slow.report["violations"] == 0
    assert slow.report["quarantined"] == []


# -- a worker that dies; each has several devices ------------------------------------------------------------

DEVICES = 2


@pytest.fixture(scope="module")
def survived(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Worker]]:
    folder = tmp_path_factory.mktemp("dead")
    arguments = ("--steps", str(STEPS), "--die-at", str(STEPS // 2), "--devices", str(DEVICES))
    workers = run(folder, arguments, arguments, OTEL_TF_RUN_DIR=str(folder / "run"))
    return folder / "run", workers


def test_the_survivors_error_is_the_users_own(survived: tuple[Path, list[Worker]]) -> None:
    survivor, dead = survived[1]
    assert dead.code == -9
    assert survivor.code == 1
    assert survivor.answers["step"] == STEPS // 2
    assert survivor.answers["error"] == "UnavailableError"
    assert survivor.answers["ours"] == []
    assert "otel_tf/instrumentation" not in survivor.stderr


def test_nothing_recorded_is_lost_with_a_worker(survived: tuple[Path, list[Worker]]) -> None:
    steps = by_worker(span for span in spans(survived[0]) if span.name == "train_step")
    collectives = by_worker(span for span in spans(survived[0]) if span.name == "collective")
    assert {worker: len(found) for worker, found in steps.items()} == {
        "worker:0": STEPS // 2 + 1,
        "worker:1": STEPS // 2,
    }
    assert {worker: len(found) for worker, found in collectives.items()} == {
        "worker:0": STEPS // 2 * COLLECTIVES_A_STEP * DEVICES,
        "worker:1": STEPS // 2 * COLLECTIVES_A_STEP * DEVICES,
    }


def test_every_device_takes_part(survived: tuple[Path, list[Worker]]) -> None:
    """They follow each other in the graph and wait for each other in the collective: none may hang."""
    met = barriers(span for span in spans(survived[0]) if span.name == "collective")
    assert len(met) == STEPS // 2 * COLLECTIVES_A_STEP
    for members in met.values():
        workers = [span.attributes["tensorflow.worker"] for span in members]
        assert sorted(workers) == ["worker:0"] * DEVICES + ["worker:1"] * DEVICES


def test_the_failing_step_says_why(survived: tuple[Path, list[Worker]]) -> None:
    found = spans(survived[0])
    last = max((span for span in found if span.name == "train_step"), key=lambda span: span.end_ns)
    (root,) = [span for span in found if span.span_id == last.parent_id]
    assert last.attributes["tensorflow.global_step"] == 40 + STEPS // 2 + 1
    for span in (root, last):
        assert span.status["code"] == 2
        assert span.attributes["error.type"] == "UNAVAILABLE"
        assert span.attributes["tensorflow.error.origin.worker"] == "worker:1"
        # It is the other one that failed.
        assert span.attributes["tensorflow.error.derived"]
    assert last.attributes["tensorflow.error.kind"] == "peer_lost"
    assert "worker:1 stopped answering" in last.attributes["tensorflow.error.explanation"]
    assert {"weight", "table", "iterations"} <= set(tensors(last))
    assert ([event["name"] for event in last.events].count("exception"), root.events) == (1, [])


# -- a chief that dies ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def orphaned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Worker]]:
    folder = tmp_path_factory.mktemp("orphan")
    arguments = ("--steps", str(STEPS), "--die-at", str(STEPS // 2), "--dies", "0")
    # No name is given: the other one has learnt it from the chief by then.
    return folder, run(folder, arguments, arguments)


def test_a_dead_chief_is_the_others_error_and_no_more(orphaned: tuple[Path, list[Worker]]) -> None:
    folder, (chief, other) = orphaned
    assert chief.code == -9
    # TensorFlow itself ends a process whose coordination service is gone, by an exception or by a signal.
    assert other.code not in (0, -9)
    (run_dir,) = (folder / "otel-tf-runs").iterdir()
    steps = by_worker(span for span in spans(run_dir) if span.name == "train_step")
    applied = {worker: [s for s in found if "code" not in s.status] for worker, found in steps.items()}
    assert {worker: len(found) for worker, found in applied.items()} == {
        "worker:0": STEPS // 2,
        "worker:1": STEPS // 2,
    }
    assert [a.trace_id for a in applied["worker:0"]] == [b.trace_id for b in applied["worker:1"]]
    assert "otel_tf/instrumentation" not in other.stderr
