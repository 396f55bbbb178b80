"""`otel_tf.watch` in one process: what is kept, when it is told, and that nothing else changes."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import otel_tf
from otel_tf import _guard
from otel_tf.diagnostics.summary import BOUNDS
from tests.instrumentation.conftest import Capture
from tests.instrumentation.failure.support import events, failures


def step_of(*, compiled: bool = False, keep: int = 4, histogram: bool = False) -> Any:
    weight = tf.Variable([1.0, 2.0], name="weight")

    @tf.function(jit_compile=compiled)
    def train_step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = otel_tf.watch("y", x * weight, histogram=histogram, keep=keep)
            loss = otel_tf.watch("loss", tf.reduce_sum(y), keep=keep)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss + tf.random.stateless_uniform([], [1, 2])

    return train_step


def at(*values: float) -> Any:
    return tf.constant(values, tf.float32)


def kept(spans: list[Any]) -> dict[str, list[dict[str, Any]]]:
    """The summaries of each watched tensor on some spans."""
    return {
        event["tensor.name"]: json.loads(event["watch.summaries"])
        for span in spans
        for event in events(span, "tensor.watch")
    }


@pytest.mark.parametrize("compiled", [False, True], ids=["graph", "xla"])
def test_the_last_summaries(capture: Capture, compiled: bool) -> None:
    step = step_of(compiled=compiled)
    for number in range(1, 8):
        step(at(number, 0.0))
    found = otel_tf.watched()
    assert [one.run for one in found["y"]] == [4, 5, 6, 7]
    assert [one.size for one in found["y"]] == [2, 2, 2, 2]
    first = found["y"][0]
    assert (first.min, first.nan, first.inf) == (0.0, 0, 0)
    assert first.max == pytest.approx(4 * (1 - 0.1 * (1 + 2 + 3)))
    assert first.norm == pytest.approx(first.max)
    assert found["loss"][0].mean == pytest.approx(first.max)
    assert first.device == "/job:localhost/replica:0/task:0/device:CPU:0"
    # XLA has no clock.
    assert (first.time_ns is None) == compiled
    # Nothing went wrong, so nothing left.
    assert kept(capture.spans()) == {}


@pytest.mark.parametrize("compiled", [False, True], ids=["graph", "xla"])
def test_a_histogram(capture: Capture, compiled: bool) -> None:
    step_of(compiled=compiled, histogram=True)(at(5.0, -0.02))
    (one,) = otel_tf.watched()["y"]
    assert sum(one.histogram) == 2
    (below, above) = [place for place, count in enumerate(one.histogram) if count]
    assert BOUNDS[below - 1] < -0.04 < BOUNDS[below]
    assert BOUNDS[above - 1] < 5.0 < BOUNDS[above]


@pytest.mark.parametrize("compiled", [False, True], ids=["graph", "xla"])
def test_results_are_the_same_to_the_bit(tmp_path: Path, compiled: bool) -> None:
    def run() -> list[str]:
        step = step_of(compiled=compiled)
        return [float(step(at(number, 0.1))).hex() for number in range(5)]

    bare = run()
    with otel_tf.instrument(run_dir=tmp_path):
        assert run() == bare


def test_what_was_there_before_a_nan(capture: Capture, caplog: pytest.LogCaptureFixture) -> None:
    """The run of the first NaN, and those that led there, stay; the steps go on."""
    step = step_of(keep=3)
    with caplog.at_level(logging.WARNING, "otel_tf"):
        for number in range(20):
            step(at(np.nan if number == 10 else 1.0, 1.0))
        told = kept(capture.spans("train_step"))
    assert [(one["run"], one["nan"]) for one in told["y"]][:3] == [(9, 0), (10, 0), (11, 1)]
    assert any("watched tensor y has NaN" in record.message for record in caplog.records)
    (noticed,) = [span for span in capture.spans("train_step") if kept([span])]
    # The stamp in the graph says which step it was.
    assert noticed.attributes["tensorflow.global_step"] == 11
    assert "code" not in noticed.status


def test_a_step_that_fails_tells_all(capture: Capture) -> None:
    weight = tf.Variable(1.0)

    @tf.function
    def train_step(x: Any) -> Any:
        x = otel_tf.watch("x", x, keep=3)
        with tf.control_dependencies([tf.debugging.assert_less(x, 5.0, message="too large")]):
            weight.assign_sub(x)
        return x

    for number in range(5):
        train_step(tf.constant(float(number)))
    with pytest.raises(tf.errors.InvalidArgumentError):
        train_step(tf.constant(7.0))
    *_, failed = capture.spans("train_step")
    # Its own summary is there: whatever consumes the tensor comes after it.
    assert [(one["run"], one["max"]) for one in kept([failed])["x"]] == [(4, 3.0), (5, 4.0), (6, 7.0)]
    assert [one["run"] for one in failures(failed)["watched"]] == [4, 5, 6]
    assert failed.attributes["tensorflow.error.label"] == "too large"


def test_each_replica_has_its_own(capture: Capture) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    @tf.function
    def replicas(x: Any) -> Any:
        def one(x: Any) -> Any:
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            return otel_tf.watch("x", tf.where(number == 1, x / 0.0, x))

        return strategy.run(one, args=(x,))

    replicas(tf.constant([1.0, 2.0]))
    found = otel_tf.watched()["x"]
    assert [(one.device.rpartition("/")[2], one.inf) for one in found] == [
        ("device:CPU:0", 0),
        ("device:CPU:1", 2),
    ]


def test_eager_tensors(capture: Capture) -> None:
    for value in (1.0, 2.0, 3.0, np.inf, 5.0):
        tensor = tf.constant([value, 1.0])
        assert otel_tf.watch("x", tensor, keep=2) is tensor
    assert [(one.run, one.inf) for one in otel_tf.watched()["x"]] == [(3, 0), (4, 1), (5, 0)]


def test_inside_of_a_keras_model(capture: Capture) -> None:
    """Keras compiles with XLA where it can."""

    class Watched(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return otel_tf.watch("hidden", x)

    model = keras.Sequential([keras.layers.Dense(3), Watched(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones([12, 2], "float32"), np.ones([12, 1], "float32"), batch_size=4, verbose=0)
    found = otel_tf.watched()["hidden"]
    assert [one.run for one in found] == [1, 2, 3]
    assert {one.size for one in found} == {12}


def test_loops_and_branches_in_a_graph(capture: Capture) -> None:
    @tf.function
    def looped(n: Any) -> Any:
        total = 0.0
        for number in tf.range(n):
            value = tf.cast(number, tf.float32)
            if number % 2 == 0:
                value = otel_tf.watch("even", value, keep=2)
            total += value
        return total

    assert float(looped(tf.constant(7))) == 21.0
    assert [one.mean for one in otel_tf.watched()["even"]][-2:] == [4.0, 6.0]


def test_threads_that_run_one_graph_never_wait(capture: Capture) -> None:
    step = step_of(keep=2)
    step(at(1.0, 1.0))
    threads = [
        threading.Thread(target=lambda: [step(at(1.0, 1.0)) for _ in range(200)], daemon=True)
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        otel_tf.watched()
        threads[0].join(0.01)
    assert len(otel_tf.watched()["y"]) >= 2


def test_a_saved_model_captures_nothing_of_it(capture: Capture, tmp_path: Path) -> None:
    class Model(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None])])
        def __call__(self, x: Any) -> Any:
            return otel_tf.watch("x", x) * 2.0

    tf.saved_model.save(Model(), str(tmp_path / "model"))
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    assert loaded(tf.constant([3.0])).numpy().tolist() == [6.0]


def test_checks_of_all_ops_leave_it_alone(capture: Capture) -> None:
    tf.debugging.enable_check_numerics()
    try:
        step = step_of()
        assert np.isfinite(float(step(at(1.0, 2.0))))
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            step(at(np.inf, 2.0))
    finally:
        tf.debugging.disable_check_numerics()
    # It is the program's op that is named.
    *_, failed = capture.spans("train_step")
    assert (failed.attributes["tensorflow.error.kind"], failed.attributes["tensorflow.error.op"]) == (
        "enable_check_numerics",
        "Mul",
    )
    assert "otel_tf/" not in str(caught.value)


def test_what_cannot_be_watched_comes_back(capture: Capture) -> None:
    for odd in ("text", None, 3.0, np.ones(3), tf.constant("text")):
        assert otel_tf.watch("odd", odd) is odd
    assert otel_tf.watched() == {}


def test_a_failure_of_ours_is_no_failure_of_the_graph(
    capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _guard.strict(False)
    try:
        monkeypatch.setattr(type(capture.handle.core.steps.watches), "_ring", None)
        assert float(tf.function(lambda x: otel_tf.watch("x", x))(tf.constant(2.0))) == 2.0
    finally:
        _guard.strict(before)


def test_without_instrument_it_is_the_tensor_and_nothing_is_imported() -> None:
    program = (
        "import sys, otel_tf\n"
        "tensor = object()\n"
        "assert otel_tf.watch('x', tensor) is tensor\n"
        "assert otel_tf.watched() == {}\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_graph_goes_on_after_uninstrument(capture: Capture) -> None:
    step = step_of()
    first = step(at(1.0, 1.0))
    capture.handle.uninstrument()
    assert float(step(at(1.0, 1.0))) < float(first)
    assert otel_tf.watched() == {}
