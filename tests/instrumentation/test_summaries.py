"""What a program writes with `tf.summary`, on its steps; and its own files, which are as they would be."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.util import event_pb2
from tensorflow.python.ops import gen_summary_ops

import otel_tf
from otel_tf.instrumentation.event_file import EventFile, Summary
from tests.instrumentation.conftest import Capture
from tests.instrumentation.test_steps import Job
from tests.spool import SpooledSpan, attributes


@pytest.fixture
def bridge(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Capture:
    monkeypatch.setenv("OTEL_TF_SUMMARIES", "true")
    capture: Capture = request.getfixturevalue("capture")
    return capture


def written(capture: Capture) -> list[tuple[SpooledSpan, dict[str, Any]]]:
    """Every summary with the `train_step` that it is on, in the order of writing."""
    found = capture.spans()
    steps = {span.span_id: span for span in found if span.name == "train_step"}
    events = []
    for span in found:
        if span.name == "summary":
            step = steps[span.parent_id]
            assert (span.trace_id, span.attributes["tensorflow.worker"]) == (step.trace_id, "local:0")
            assert step.start_ns <= span.start_ns <= span.end_ns <= step.end_ns
            assert span.attributes["tensorflow.global_step"] == step.attributes["tensorflow.global_step"]
            events += [(step, event) for event in span.events]
    return sorted(events, key=lambda pair: int(pair[1]["timeUnixNano"]))


def rows(capture: Capture) -> list[tuple[int, int, str, Any]]:
    """Step's number, summary's step, tag and value of every scalar."""
    found = []
    for step, event in written(capture):
        if event["name"] == "summary.scalar":
            told = attributes(event["attributes"])
            number = step.attributes["tensorflow.global_step"]
            own = (told[f"tensorflow.summary.{key}"] for key in ("step", "tag", "value"))
            found.append((number, *own))
    return found


def test_an_eager_loop(bridge: Capture, tmp_path: Path) -> None:
    job = Job()
    writer = tf.summary.create_file_writer(str(tmp_path / "logs"))
    with writer.as_default():
        for _ in range(25):
            job.train_step()
            tf.summary.scalar("loss", job.weight, step=job.iterations)
    expected = [(n, n, "loss", pytest.approx(1.0 - 0.1 * n, abs=1e-5)) for n in range(1, 26)]
    assert rows(bridge) == expected
    # Once each.
    assert rows(bridge) == expected
    (_, first), *_ = written(bridge)
    assert attributes(first["attributes"])["tensorflow.summary.logdir"] == str(tmp_path / "logs")


@pytest.mark.parametrize("begin", [0, 5])
def test_the_step_is_the_one_that_ran_whatever_the_program_calls_it(
    bridge: Capture, tmp_path: Path, begin: int
) -> None:
    job = Job()
    with tf.summary.create_file_writer(str(tmp_path / "logs")).as_default():
        for number in range(begin, begin + 3):
            job.train_step()
            tf.summary.scalar("loss", 1.0, step=number)
    assert [row[:2] for row in rows(bridge)] == [(1, begin), (2, begin + 1), (3, begin + 2)]


def test_a_function_writes_scalars_and_histograms(bridge: Capture, tmp_path: Path) -> None:
    weight, iterations = tf.Variable(1.0), tf.Variable(0, dtype=tf.int64, trainable=False, name="iterations")
    writer = tf.summary.create_file_writer(str(tmp_path / "logs"))

    @tf.function
    def train_step() -> None:
        weight.assign_sub(0.25)
        iterations.assign_add(1)
        with writer.as_default(step=iterations):
            with tf.name_scope("inner"):
                tf.summary.scalar("weight", weight)
            tf.summary.scalar("bad", tf.math.log(-weight))
            tf.summary.histogram("spread", tf.constant([0.0, 1.0, 1.0, 4.0]), buckets=4)
            tf.summary.write("neither", weight)
            tf.summary.image("picture", tf.random.uniform((1, 200, 200, 3)))

    for _ in range(3):
        train_step()
    found = rows(bridge)
    assert [row for row in found if row[2] == "inner/weight"] == [
        (n, n, "inner/weight", 1.0 - 0.25 * n) for n in (1, 2, 3)
    ]
    bad = [float(row[3]) for row in found if row[2] == "bad"]
    assert len(bad) == 3
    assert all(map(math.isnan, bad))
    histograms = [pair for pair in written(bridge) if pair[1]["name"] == "summary.histogram"]
    assert [step.attributes["tensorflow.global_step"] for step, _ in histograms] == [1, 2, 3]
    told = attributes(histograms[0][1]["attributes"])
    assert json.loads(told["tensorflow.summary.buckets"]) == [[0, 1, 1], [1, 2, 2], [2, 3, 0], [3, 4, 1]]
    assert len(written(bridge)) == 9
    assert train_step.experimental_get_tracing_count() == 1


def test_a_train_step_of_keras(bridge: Capture, tmp_path: Path) -> None:
    writer = tf.summary.create_file_writer(str(tmp_path / "logs"))

    class Model(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, data: Any) -> Any:
            told = super().train_step(data)
            with writer.as_default():
                tf.summary.scalar("loss", told["loss"], step=tf.cast(self.optimizer.iterations, tf.int64))
            return told

    model = Model()
    model.compile("sgd", "mse")
    model.fit(np.ones((12, 2)), np.ones((12, 1)), batch_size=4, epochs=2, verbose=0)
    assert [row[:3] for row in rows(bridge)] == [(n, n, "loss") for n in range(1, 7)]


def test_a_step_has_only_so_many(bridge: Capture, tmp_path: Path) -> None:
    job = Job()
    with tf.summary.create_file_writer(str(tmp_path / "logs")).as_default():
        for _ in range(2):
            job.train_step()
            for number in range(70):
                tf.summary.scalar(f"number {number}", 1.0, step=job.iterations)
    assert [row[0] for row in rows(bridge)] == [1] * 64 + [2] * 64
    left_out = [span.attributes.get("tensorflow.summary.left_out", 0) for span in bridge.spans("summary")]
    assert sum(left_out) == 12


def test_what_a_running_step_writes_waits_for_it(bridge: Capture, tmp_path: Path) -> None:
    writer = tf.summary.create_file_writer(str(tmp_path / "logs"))
    for number in (7, 8):
        with otel_tf.step(number), writer.as_default():
            tf.summary.scalar("loss", 1.0, step=number)
            assert [row[0] for row in rows(bridge)] == [*range(7, number)]
    assert [row[:2] for row in rows(bridge)] == [(7, 7), (8, 8)]


def test_what_a_writer_holds_back_is_there_after_a_flush(bridge: Capture, tmp_path: Path) -> None:
    job = Job()
    with tf.summary.create_file_writer(str(tmp_path / "logs")).as_default():
        for number in (1, 2):
            job.train_step()
            tf.summary.scalar("loss", 1.0, step=job.iterations)
            assert [row[0] for row in rows(bridge)] == [*range(1, number + 1)]


def test_a_writer_that_was_closed_or_forgotten(bridge: Capture, tmp_path: Path) -> None:
    job = Job()
    for name in ("closed", "forgotten"):
        writer = tf.summary.create_file_writer(str(tmp_path / name))
        job.train_step()
        with writer.as_default():
            tf.summary.scalar(name, 1.0, step=job.iterations)
        if name == "closed":
            writer.close()
        del writer
    assert [row[::2] for row in rows(bridge)] == [(1, "closed"), (2, "forgotten")]


def test_off_unless_asked_for(capture: Capture, tmp_path: Path) -> None:
    assert not hasattr(gen_summary_ops.create_summary_file_writer, "__wrapped__")
    job = Job()
    with tf.summary.create_file_writer(str(tmp_path / "logs")).as_default():
        job.train_step()
        tf.summary.scalar("loss", 1.0, step=job.iterations)
    assert capture.spans("train_step") != []
    assert capture.spans("summary") == []


def test_the_original_is_put_back(bridge: Capture) -> None:
    original = gen_summary_ops.create_summary_file_writer.__wrapped__
    bridge.handle.uninstrument()
    assert gen_summary_ops.create_summary_file_writer is original


# -- the program's files ---------------------------------------------------------------------


def _train(folder: Path) -> list[bytes]:
    """Trains and returns the records of what it has written, but for when."""
    tf.keras.backend.clear_session()
    job = Job()
    writer = tf.summary.create_file_writer(str(folder))

    @tf.function
    def inside() -> Any:
        with writer.as_default(step=job.iterations):
            tf.summary.histogram("weights", tf.linspace(0.0, 1.0, 50) * job.weight)
            return tf.summary.scalar("loss", job.weight)

    for number in range(30):
        job.train_step()
        assert bool(inside())
        with writer.as_default():
            tf.summary.scalar("eager", number / 2, step=number)
    writer.close()
    (path,) = folder.iterdir()
    records = []
    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        event = event_pb2.Event.FromString(record)
        event.wall_time = 0.0
        records.append(event.SerializeToString(deterministic=True))
    return records


def test_the_files_of_the_program_are_the_same(bridge: Capture, tmp_path: Path) -> None:
    with_us = _train(tmp_path / "with")
    assert len(rows(bridge)) == 60
    bridge.handle.uninstrument()
    assert with_us == _train(tmp_path / "without")
    assert len(with_us) == 91


@pytest.fixture
def file(tmp_path: Path) -> tuple[bytes, Path]:
    """The bytes of a file with ten scalars, and the place of another."""
    writer = tf.summary.create_file_writer(str(tmp_path / "logs"))
    with writer.as_default():
        for number in range(10):
            tf.summary.scalar("loss", float(number), step=number)
    writer.close()
    (path,) = (tmp_path / "logs").iterdir()
    assert f".{os.getpid()}." in path.name
    return path.read_bytes(), tmp_path / "growing"


def test_a_file_that_grows_is_read_once(file: tuple[bytes, Path]) -> None:
    content, path = file
    reader = EventFile(path, "logs")
    assert reader.read(100) == []
    found = list[Summary]()
    for size in range(0, len(content) + 1, 7):
        path.write_bytes(content[:size])
        found += reader.read(100)
    path.write_bytes(content)
    found += reader.read(100)
    assert [(one.tag, one.step, one.value) for one in found] == [("loss", n, float(n)) for n in range(10)]


def test_no_more_is_read_at_once_than_asked_for(file: tuple[bytes, Path]) -> None:
    content, path = file
    path.write_bytes(content)
    reader = EventFile(path, "logs")
    # The first record says the format's version.
    assert [len(reader.read(4)) for _ in range(4)] == [3, 4, 3, 0]
