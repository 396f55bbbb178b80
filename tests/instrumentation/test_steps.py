"""Steps of custom loops beyond the plain one: declared, distributed, threaded, forked, restarted."""

from __future__ import annotations

import logging
import multiprocessing
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import otel_tf
from otel_tf import ids
from otel_tf.instrumentation.stream import Stream
from tests.instrumentation.conftest import Capture
from tests.spool import SpooledSpan, spans


class Job:
    """A weight, a step counter and a function that moves both."""

    def __init__(self, start: int = 0) -> None:
        self.weight = tf.Variable(1.0)
        self.iterations = tf.Variable(start, dtype=tf.int64, trainable=False, name="iterations")

        @tf.function
        def train_step() -> Any:
            self.weight.assign_sub(0.1)
            self.iterations.assign_add(1)
            return tf.identity(self.weight)

        self.train_step = train_step


def values(found: list[SpooledSpan], name: str) -> list[Any]:
    return [span.attributes.get(f"tensorflow.{name}") for span in found]


# -- declared ----------------------------------------------------------------------------


def test_a_declared_step(capture: Capture) -> None:
    for number in (10, 11):
        with otel_tf.step(number):
            time.sleep(0.01)
    with otel_tf.step():
        pass
    steps, roots = capture.spans("train_step"), capture.spans("step")
    assert values(steps, "global_step") == values(roots, "global_step") == [10, 11, 12]
    assert values(steps, "local_step") == [1, 2, 3]
    assert [step.parent_id for step in steps] == [root.span_id for root in roots]
    assert [step.trace_id for step in steps] == [
        f"{ids.trace_id('test', 'step', number):032x}" for number in (10, 11, 12)
    ]
    assert all(step.end_ns - step.start_ns >= 10_000_000 for step in steps[:2])


def test_what_trains_inside_is_the_same_step(capture: Capture) -> None:
    first, second = Job(), Job()
    first.train_step(), second.train_step()
    before = len(capture.spans("train_step"))
    for number in (7, 8):
        with otel_tf.step(number), otel_tf.step():
            time.sleep(0.01)
            first.train_step()
            time.sleep(0.01)
            second.train_step()
            time.sleep(0.01)
    steps, roots = capture.spans("train_step")[before:], capture.spans("step")[before:]
    assert values(steps, "global_step") == [7, 8]
    assert set(values(steps, "function.name")) == {"train_step"}
    for step, root in zip(steps, roots, strict=True):
        # The block is the root's, from the first to the last function that trains the worker's.
        assert step.start_ns - root.start_ns > 9_000_000
        assert 10_000_000 < step.end_ns - step.start_ns < root.end_ns - root.start_ns - 19_000_000


def test_a_declared_step_that_fails(capture: Capture) -> None:
    with pytest.raises(ValueError, match="mine"), otel_tf.step(3):
        raise ValueError("mine")
    (step,), (root,) = capture.spans("train_step"), capture.spans("step")
    assert step.attributes["error.type"] == root.attributes["error.type"] == "ValueError"
    assert [len(span.events) for span in (step, root)] == [1, 0]
    with otel_tf.step():
        pass
    assert values(capture.spans("train_step"), "global_step") == [3, 1]


def test_a_declared_step_without_data_is_none(capture: Capture) -> None:
    iterator = iter(tf.data.Dataset.range(1))
    for _ in range(2):
        try:
            with otel_tf.step():
                next(iterator)
        except StopIteration:
            break
    assert values(capture.spans("train_step"), "global_step") == [1]


def test_without_instrumentation_a_declared_step_does_nothing() -> None:
    otel_tf.uninstrument()
    with otel_tf.step(1):
        pass


# -- loops -----------------------------------------------------------------------------


def test_the_counter_is_not_asked_by_the_step_and_nothing_is_traced_again(
    capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    read = Stream.read

    def counted(stream: Stream) -> int | None:
        asked.append(stream)
        return read(stream)

    monkeypatch.setattr(Stream, "read", counted)
    job = Job(start=5)
    job.train_step()
    # Where it stands, and by how much one run moves it.
    assert len(asked) == 2
    for _ in range(299):
        job.train_step()
    assert len(asked) == 2
    assert job.train_step.experimental_get_tracing_count() == 1
    assert values(capture.spans("train_step"), "global_step") == list(range(6, 306))


def test_functions_that_run_eagerly_are_for_declared_steps(capture: Capture) -> None:
    job = Job()
    tf.config.run_functions_eagerly(True)
    try:
        job.train_step()
        for _ in range(2):
            with otel_tf.step():
                job.train_step()
    finally:
        tf.config.run_functions_eagerly(False)
    assert values(capture.spans("train_step"), "global_step") == [1, 2]
    assert float(job.weight.numpy()) == pytest.approx(0.7)


def test_gathered_gradients(capture: Capture) -> None:
    """Every micro-batch where one function does both; the applying one where there are two."""
    weight, gathered = tf.Variable(1.0), tf.Variable(0.0, trainable=False)
    batches = tf.Variable(0, trainable=False)

    @tf.function
    def both(x: Any) -> None:
        gathered.assign_add(x)
        batches.assign_add(1)
        if batches % 2 == 0:
            weight.assign_sub(0.1 * gathered)
            gathered.assign(0.0)

    @tf.function
    def gather(x: Any) -> None:
        gathered.assign_add(x)

    @tf.function
    def apply() -> None:
        weight.assign_sub(0.1 * gathered)

    for _ in range(4):
        both(tf.constant(1.0))
    for _ in range(2):
        gather(tf.constant(1.0))
        gather(tf.constant(1.0))
        apply()
    steps = capture.spans("train_step")
    assert values(steps, "function.name") == ["both"] * 4 + ["apply"] * 2
    assert values(steps, "global_step") == [1, 2, 3, 4, 5, 6]


def test_a_loop_inside_the_graph(capture: Capture) -> None:
    job = Job(start=100)

    @tf.function
    def train_epoch(steps: Any) -> None:
        for _ in tf.range(steps):
            job.weight.assign_sub(0.1)
            job.iterations.assign_add(1)

    for _ in range(3):
        train_epoch(tf.constant(5))
    found = capture.spans("train_step")
    # The counter tells, once, how many steps a run takes.
    assert values(found, "global_step") == [105, 110, 115]
    assert values(found, "steps_per_execution") == [5, 5, 5]


def test_a_concrete_function_and_xla(capture: Capture) -> None:
    job = Job()
    concrete = job.train_step.get_concrete_function()
    concrete()
    compiled = tf.function(job.train_step.python_function, jit_compile=True)
    compiled()
    assert values(capture.spans("train_step"), "global_step") == [1, 2]


def test_which_graph_runs_decides(capture: Capture) -> None:
    weight = tf.Variable(1.0)

    @tf.function
    def run(train: bool) -> Any:
        if train:
            weight.assign_sub(0.1)
        return weight * 2.0

    for train in (False, True, False, True):
        run(train)
    assert values(capture.spans("train_step"), "global_step") == [1, 2]


def test_making_variables_in_the_first_call_is_no_step(capture: Capture) -> None:
    made: list[Any] = []

    @tf.function
    def train_step() -> None:
        if not made:
            made.append(tf.Variable(1.0))
        made[0].assign_sub(0.1)

    train_step()
    train_step()
    assert values(capture.spans("train_step"), "global_step") == [1, 2]


def test_threads_train_side_by_side(capture: Capture) -> None:
    jobs = [Job(start=100 * number) for number in range(3)]
    barrier = threading.Barrier(3)

    def train(job: Job) -> None:
        barrier.wait()
        for _ in range(20):
            job.train_step()

    threads = [threading.Thread(target=train, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    steps = capture.spans("train_step")
    assert sorted(values(steps, "local_step")) == list(range(1, 61))
    by_stream: dict[Any, list[int]] = {}
    for step in steps:
        by_stream.setdefault(step.attributes.get("tensorflow.step.stream"), []).append(
            step.attributes["tensorflow.global_step"]
        )
    assert sorted(sorted(numbers) for numbers in by_stream.values()) == [
        list(range(100 * number + 1, 100 * number + 21)) for number in range(3)
    ]
    assert len({(span.trace_id, span.span_id) for span in steps}) == 60


def _child(folder: str) -> None:
    for number in (1, 2):
        with otel_tf.step(number):
            pass


def test_a_fork_has_spans_of_its_own(capture: Capture) -> None:
    with otel_tf.step(1):
        pass
    capture.handle.flush()
    child = multiprocessing.get_context("fork").Process(target=_child, args=("",))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    with otel_tf.step(2):
        pass
    steps = capture.spans("train_step")
    assert sorted(values(steps, "global_step")) == [1, 1, 2, 2]
    assert len({step.span_id for step in steps}) == 4
    assert len({step.resource["process.pid"] for step in steps}) == 2


# -- what surrounds steps --------------------------------------------------------------


def test_waiting_for_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")

    def slow() -> Any:
        for number in range(4):
            time.sleep(1.0 if number % 2 else 0.0)  # far more than a step, which runs beside it
            yield float(number)

    def dataset() -> Any:
        return tf.data.Dataset.from_generator(slow, output_signature=tf.TensorSpec([]))

    job = Job()
    job.train_step()
    with otel_tf.instrument(run_id="test", run_dir=tmp_path, data_wait_threshold_ms=200) as handle:
        look = tf.function(lambda x: x + 1.0)
        for x in dataset():  # an evaluation, whose waits are no step's
            look(x)
        for _ in dataset():
            job.train_step()
        handle.flush()
        steps, waits = spans(tmp_path, "train_step"), spans(tmp_path, "data_wait")
    assert values(steps, "global_step") == [2, 3, 4, 5]
    assert values(waits, "global_step") == [3, 5]
    roots = {span.span_id: span for span in spans(tmp_path, "step")}
    for wait in waits:
        root = roots[wait.parent_id]
        (step,) = [step for step in steps if step.parent_id == root.span_id]
        assert wait.trace_id == root.trace_id
        assert wait.end_ns - wait.start_ns > 200_000_000
        assert root.start_ns == wait.start_ns
        assert wait.end_ns <= step.start_ns <= step.end_ns == root.end_ns
        assert wait.attributes["tensorflow.worker"] == "local:0"
        assert root.attributes["tensorflow.seq"] < wait.attributes["tensorflow.seq"]


def test_tracings(capture: Capture, caplog: pytest.LogCaptureFixture) -> None:
    @tf.function
    def inner(x: Any) -> Any:
        return x * 2.0

    @tf.function
    def outer(x: Any) -> Any:
        return tf.reduce_sum(inner(x))

    with caplog.at_level(logging.WARNING, "otel_tf"):
        for length in range(1, 7):
            outer(tf.ones([length]))
    tracings = capture.spans("trace_function")
    outers = [span for span in tracings if span.attributes["tensorflow.function.name"] == "outer"]
    inners = [span for span in tracings if span.attributes["tensorflow.function.name"] == "inner"]
    assert values(outers, "function.tracing_count") == [1, 2, 3, 4, 5, 6]
    assert [span.parent_id for span in inners] == [span.span_id for span in outers]
    assert {span.parent_id for span in outers} == {""}
    assert {span.trace_id for span in tracings} == {f"{ids.trace_id('test', 'run'):032x}"}
    assert (
        outers[1]
        .attributes["tensorflow.function.signature"]
        .startswith("(x: TensorSpec(shape=(2,), dtype=tf.float32")
    )
    assert [len(span.events) for span in outers] == [0, 0, 0, 0, 1, 1]
    assert {event["name"] for span in outers for event in span.events} == {"retracing_storm"}
    assert [pair["value"]["intValue"] for pair in outers[4].events[0]["attributes"]] == ["5", "5"]
    assert int(outers[4].events[0]["timeUnixNano"]) == outers[4].start_ns
    assert [span.events for span in inners] == [[]] * 6
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "otel_tf"]
    assert "tf.function outer is traced over and over: 5 of its last 5 calls" in warning
    assert "shape=(4,), dtype=tf.float32, name=None)) then (x: TensorSpec(shape=(5,)" in warning


def test_now_and_then_a_new_shape_is_no_storm(capture: Capture, caplog: pytest.LogCaptureFixture) -> None:
    @tf.function
    def look(x: Any) -> Any:
        return tf.reduce_sum(x)

    for length in range(1, 7):
        for _ in range(6):
            look(tf.ones([length]))
    assert [span.events for span in capture.spans("trace_function")] == [[]] * 6
    assert not [record for record in caplog.records if record.name == "otel_tf"]


def test_checkpoints(capture: Capture, tmp_path: Path) -> None:
    job = Job()
    checkpoint = tf.train.Checkpoint(weight=job.weight, iterations=job.iterations)
    manager = tf.train.CheckpointManager(checkpoint, str(tmp_path / "saved"), max_to_keep=2)
    for _ in range(3):
        job.train_step()
    path = manager.save()
    for _ in range(4):
        job.train_step()
    checkpoint.restore(path)
    job.train_step()
    (save,), (restore,) = capture.spans("checkpoint.save"), capture.spans("checkpoint.restore")
    assert values([save], "step.before") == values([save], "step.after") == [3]
    assert values([restore], "step.before") == [7]
    assert values([restore], "step.after") == [3]
    assert save.attributes["tensorflow.checkpoint.path"] == str(tmp_path / "saved" / "ckpt-1")
    assert restore.attributes["tensorflow.checkpoint.path"] == path
    assert {save.trace_id, restore.trace_id} == {f"{ids.trace_id('test', 'run'):032x}"}
    steps = capture.spans("train_step")
    assert values(steps, "global_step") == [1, 2, 3, 4, 5, 6, 7, 4]
    assert values(steps, "step.rewound_from") == [None] * 7 + [7]
    # The same step again, in the same trace, is another span.
    assert steps[3].trace_id == steps[7].trace_id
    assert steps[3].span_id != steps[7].span_id
    with pytest.raises(tf.errors.NotFoundError):
        checkpoint.restore(str(tmp_path / "nowhere"))
    failed = capture.spans("checkpoint.restore")[-1]
    assert failed.attributes["error.type"] == "NOT_FOUND"
