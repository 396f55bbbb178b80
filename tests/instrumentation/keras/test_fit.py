"""Keras 3 and tf_keras: `fit`, `evaluate` and `predict` on the default strategy and on Mirrored."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import otel_tf
from otel_tf import ids
from tests.instrumentation.conftest import Capture, original_of
from tests.spool import SpooledSpan

X = np.arange(28, dtype="float32").reshape(14, 2) / 28
Y = X.sum(axis=1, keepdims=True)
BATCHES = 7

both = pytest.mark.parametrize("kind", [keras, tf_keras], ids=["keras3", "tf_keras"])

STRATEGIES: dict[str, Any] = {
    "default": tf.distribute.get_strategy,
    "one_device": lambda: tf.distribute.OneDeviceStrategy("CPU:0"),
    "mirrored": lambda: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
}


def model(kind: ModuleType, **options: Any) -> Any:
    made = kind.Sequential([kind.layers.Dense(1)])
    made.compile("sgd", "mse", **options)
    return made


def batches(last: int = BATCHES) -> Iterator[tuple[Any, Any]]:
    for number in range(last):
        yield X[2 * number : 2 * number + 2], Y[2 * number : 2 * number + 2]


def dataset(limit: float) -> Any:
    """Batches of two; those with an x of ``limit`` or more fail."""

    def check(x: Any, y: Any) -> Any:
        return tf.debugging.check_numerics(tf.where(x >= limit, np.nan, x), "spoiled"), y

    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(2).map(check)


def values(spans: list[SpooledSpan], name: str) -> list[Any]:
    return [span.attributes.get(f"tensorflow.{name}") for span in spans]


@both
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_fit(capture: Capture, kind: ModuleType, strategy: str) -> None:
    with STRATEGIES[strategy]().scope():
        trained = model(kind)
    trained.fit(X, Y, batch_size=2, epochs=2, verbose=0, validation_data=(X[:4], Y[:4]))

    steps = capture.spans("train_step")
    assert values(steps, "global_step") == list(range(1, 15))
    assert values(steps, "local_step") == list(range(1, 15))
    assert values(steps, "epoch") == [0] * 7 + [1] * 7
    assert values(steps, "batch") == list(range(7)) * 2
    assert set(values(steps, "worker")) == {"local:0"}
    function = "multi_step_on_iterator" if kind is keras else "train_function"
    assert set(values(steps, "function.name")) == {function}
    assert set(values(steps, "steps_per_execution")) == {None}
    roots = {span.span_id: span for span in capture.spans("step")}
    assert len(roots) == len(steps)
    for number, step in enumerate(steps, start=1):
        root = roots[step.parent_id]
        assert step.trace_id == root.trace_id == f"{ids.trace_id('test', 'step', number):032x}"
        assert root.parent_id == ""
        assert root.start_ns <= step.start_ns <= step.end_ns <= root.end_ns

    epochs, evaluations = capture.spans("epoch"), capture.spans("evaluate")
    assert values(epochs, "epoch") == values(evaluations, "epoch") == [0, 1]
    assert values(epochs, "step.before") == [0, 7]
    assert values(epochs, "step.after") == values(evaluations, "step.before") == [7, 14]
    assert [span.parent_id for span in evaluations] == [span.span_id for span in epochs]
    assert {span.trace_id for span in (*epochs, *evaluations)} == {f"{ids.trace_id('test', 'run'):032x}"}
    for epoch, evaluation in zip(epochs, evaluations, strict=True):
        assert epoch.parent_id == ""
        assert epoch.mono_ns[0] < evaluation.mono_ns[0] < evaluation.mono_ns[1] < epoch.mono_ns[1]
    inside = [step for step in steps if epochs[0].mono_ns[0] < step.mono_ns[0] < epochs[0].mono_ns[1]]
    assert values(inside, "epoch") == [0] * 7
    assert int(trained.optimizer.iterations.numpy()) == 14


@both
def test_tracing_is_no_part_of_the_first_step(capture: Capture, kind: ModuleType) -> None:
    model(kind).fit(X, Y, batch_size=2, verbose=0)
    first = capture.spans("train_step")[0]
    (epoch,) = capture.spans("epoch")
    name = first.attributes["tensorflow.function.name"]
    # Where the first tracing makes variables there is a second one.
    tracing, *more = [
        span for span in capture.spans("trace_function") if values([span], "function.name") == [name]
    ]
    assert max(span.mono_ns[1] for span in (tracing, *more)) <= first.mono_ns[0]
    assert tracing.parent_id == epoch.span_id
    assert tracing.trace_id == epoch.trace_id
    assert tracing.attributes["tensorflow.function.tracing_count"] == 1
    assert "TensorSpec(shape=(2, 2), dtype=tf.float32" in tracing.attributes["tensorflow.function.signature"]


@both
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_evaluate_and_predict(capture: Capture, kind: ModuleType, strategy: str) -> None:
    with STRATEGIES[strategy]().scope():
        trained = model(kind)
    trained.fit(X, Y, batch_size=2, verbose=0)
    trained.evaluate(X, Y, batch_size=2, verbose=0)
    trained.predict(X, batch_size=2, verbose=0)
    # What is evaluated or predicted is no step.
    assert len(capture.spans("train_step")) == BATCHES
    (evaluate,), (predict,) = capture.spans("evaluate"), capture.spans("predict")
    for span in (evaluate, predict):
        assert span.kind == 1
        assert span.parent_id == ""
        assert values([span], "step.before") == values([span], "step.after") == [BATCHES]
        assert span.attributes["tensorflow.worker"] == "local:0"
        assert "tensorflow.epoch" not in span.attributes
    with pytest.raises(Exception, match="spoiled"):
        trained.evaluate(dataset(0.5), verbose=0)
    failed = capture.spans("evaluate")[-1]
    assert failed.attributes["error.type"] == "INVALID_ARGUMENT"
    assert [event["name"] for event in failed.events].count("exception") == 1


@both
def test_steps_per_execution(capture: Capture, kind: ModuleType) -> None:
    trained = model(kind, steps_per_execution=3)
    trained.fit(X, Y, batch_size=2, epochs=2, verbose=0)
    steps = capture.spans("train_step")
    # Seven batches are 3 + 3 + 1 steps; the number is the counter's after the run.
    assert values(steps, "global_step") == [3, 6, 7, 10, 13, 14]
    assert values(steps, "local_step") == [3, 6, 7, 10, 13, 14]
    assert values(steps, "steps_per_execution") == [3, 3, None] * 2
    assert values(steps, "batch") == [0, 3, 6] * 2
    assert int(trained.optimizer.iterations.numpy()) == 14


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_steps_per_execution_of_unknown_length(capture: Capture) -> None:
    trained = model(keras, steps_per_execution=3)
    trained.fit(batches(), verbose=0)
    steps = capture.spans("train_step")
    assert values(steps, "global_step") == [3, 6, 7]
    assert values(steps, "steps_per_execution") == [3, 3, None]
    trained.fit(batches(6), verbose=0)
    # After the sixth batch Keras tries once more; nothing runs then.
    assert values(capture.spans("train_step"), "global_step")[3:] == [10, 13]
    assert {span.status.get("code") for span in capture.spans()} == {None}


@both
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_generator_that_ends_is_no_failure(capture: Capture, kind: ModuleType) -> None:
    model(kind).fit(batches(), verbose=0)
    assert values(capture.spans("train_step"), "global_step") == list(range(1, BATCHES + 1))
    assert {span.status.get("code") for span in capture.spans()} == {None}


@both
def test_running_eagerly(capture: Capture, kind: ModuleType) -> None:
    model(kind, run_eagerly=True).fit(X, Y, batch_size=2, verbose=0)
    steps = capture.spans("train_step")
    assert values(steps, "global_step") == list(range(1, BATCHES + 1))
    assert values(steps, "batch") == list(range(BATCHES))
    assert values(steps, "epoch") == [0] * BATCHES
    assert set(values(steps, "function.name")) == {None}
    assert [span.parent_id for span in steps] == [span.span_id for span in capture.spans("step")]


@both
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("eagerly", [False, True], ids=["graph", "eagerly"])
def test_the_step_that_fails(capture: Capture, kind: ModuleType, eagerly: bool) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="spoiled"):
        model(kind, run_eagerly=eagerly).fit(dataset(0.5), verbose=0)
    *good, failed = capture.spans("train_step")
    assert values(good, "global_step") == [1, 2, 3]
    assert values([failed], "global_step") == [4]
    assert values([failed], "batch") == [3]
    (root,) = [span for span in capture.spans("step") if span.span_id == failed.parent_id]
    (epoch,) = capture.spans("epoch")
    for span in (failed, root, epoch):
        assert span.status["code"] == 2
        assert span.attributes["error.type"] == "INVALID_ARGUMENT"
    events = [[event["name"] for event in span.events] for span in (failed, root, epoch)]
    assert [names.count("exception") for names in events] == [1, 0, 0]
    assert events[1:] == [[], []]


@both
def test_a_callback_that_fails_is_the_epochs_failure(capture: Capture, kind: ModuleType) -> None:
    class Failing(kind.callbacks.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 2:
                raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        model(kind).fit(X, Y, batch_size=2, verbose=0, callbacks=[Failing()])
    assert [span.status.get("code") for span in capture.spans("train_step")] == [None] * 3
    (epoch,) = capture.spans("epoch")
    assert epoch.attributes["error.type"] == "RuntimeError"
    assert [event["name"] for event in epoch.events] == ["exception"]
    assert epoch.attributes["tensorflow.step.after"] == 3


@both
def test_train_on_batch(capture: Capture, kind: ModuleType) -> None:
    trained = model(kind)
    for x, y in batches(3):
        trained.train_on_batch(x, y)
    steps = capture.spans("train_step")
    assert values(steps, "global_step") == [1, 2, 3]
    assert set(values(steps, "batch")) == set(values(steps, "epoch")) == {None}


@both
def test_models_side_by_side_have_numbers_of_their_own(capture: Capture, kind: ModuleType) -> None:
    first, second = model(kind), model(kind)
    for x, y in batches(2):
        first.train_on_batch(x, y)
        second.train_on_batch(x, y)
    first.fit(X, Y, batch_size=7, verbose=0)
    steps = capture.spans("train_step")
    assert values(steps, "global_step") == [1, 1, 2, 2, 3, 4]
    assert values(steps, "step.stream") == [None, 1, None, 1, None, None]
    assert values(steps, "local_step") == [1, 2, 3, 4, 5, 6]
    assert steps[1].trace_id == f"{ids.trace_id('test', 'step', 1, 'stream', 1):032x}"
    assert len({step.trace_id for step in steps}) == 6


@both
def test_what_makes_a_step_unusual(capture: Capture, kind: ModuleType) -> None:
    """XLA, loss scaling that skips steps, accumulated gradients: one run is one step."""
    model(kind, jit_compile=True).fit(X, Y, batch_size=7, verbose=0)
    scaled = kind.Sequential([kind.layers.Dense(1)])
    wrapper = kind.optimizers.LossScaleOptimizer if kind is keras else kind.mixed_precision.LossScaleOptimizer
    scaled.compile(wrapper(kind.optimizers.SGD(), initial_scale=3e38), "mse")
    scaled.fit(X * 1e9, Y, batch_size=7, epochs=2, verbose=0)
    # Keras 3's counter stands still while the scale is found; tf_keras counts such steps too.
    assert int(scaled.optimizer.iterations.numpy()) < (4 if kind is keras else 5)
    steps = capture.spans("train_step")
    assert values(steps, "global_step") == [1, 2, 1, 2, 3, 4]
    assert values(steps, "step.stream") == [None, None, 1, 1, 1, 1]
    if kind is keras:
        gathered = model(keras)
        gathered.optimizer.gradient_accumulation_steps = 2
        gathered.fit(X, Y, batch_size=2, verbose=0)
        assert values(capture.spans("train_step")[6:], "global_step") == list(range(1, 8))


@both
def test_a_second_fit_goes_on(capture: Capture, kind: ModuleType) -> None:
    trained = model(kind)
    trained.fit(X, Y, batch_size=7, verbose=0)
    trained.optimizer.iterations.assign(100)
    trained.fit(X, Y, batch_size=7, initial_epoch=1, epochs=2, verbose=0)
    steps = capture.spans("train_step")
    assert values(steps, "global_step") == [1, 2, 101, 102]
    assert values(steps, "epoch") == [0, 0, 1, 1]


@both
def test_saving_and_going_back(capture: Capture, kind: ModuleType, tmp_path: Path) -> None:
    suffix = ".weights.h5" if kind is keras else ".tf"
    path = str(tmp_path / f"saved{suffix}")
    trained = model(kind)
    trained.fit(X, Y, batch_size=2, verbose=0)
    trained.save_weights(path)
    trained.fit(X, Y, batch_size=2, verbose=0)
    trained.load_weights(path)
    trained.train_on_batch(X, Y)
    (save,), (restore,) = capture.spans("checkpoint.save"), capture.spans("checkpoint.restore")
    assert save.attributes["tensorflow.checkpoint.path"] == path
    assert restore.attributes["tensorflow.checkpoint.path"] == path
    assert values([save], "step.before") == values([save], "step.after") == [7]
    assert values([restore], "step.before") == [14]
    assert values([restore], "step.after") == [7]
    again = capture.spans("train_step")[-1]
    assert values([again], "global_step") == [8]
    assert values([again], "step.rewound_from") == [14]
    assert (
        len([step for step in capture.spans("train_step") if values([step], "step.rewound_from") != [None]])
        == 1
    )


@both
def test_a_restarted_process_goes_on(capture: Capture, kind: ModuleType, tmp_path: Path) -> None:
    path = str(tmp_path / "model.keras")
    trained = model(kind)
    trained.fit(X, Y, batch_size=2, verbose=0)
    trained.save(path)
    del trained
    loaded = kind.models.load_model(path)
    loaded.fit(X, Y, batch_size=7, verbose=0)
    assert values(capture.spans("train_step")[7:], "global_step") == [8, 9]


@both
def test_results_are_the_same_to_the_bit(kind: ModuleType, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")

    def train() -> list[Any]:
        kind.utils.set_random_seed(7)
        made = kind.Sequential([kind.layers.Dense(4, "relu"), kind.layers.Dropout(0.5), kind.layers.Dense(1)])
        made.compile("adam", "mse", steps_per_execution=2)
        history = made.fit(X, Y, batch_size=2, epochs=3, verbose=0, validation_split=0.25)
        return [
            [float(loss).hex() for loss in history.history["loss"] + history.history["val_loss"]],
            [weight.tobytes() for weight in made.get_weights()],
            made.predict(X, verbose=0).tobytes(),
            random.random(),
            float(np.random.random()),
            float(tf.random.uniform([])),
        ]

    bare = train()
    with otel_tf.instrument(run_dir=tmp_path):
        watched = train()
    assert watched == bare


@both
def test_originals_are_restored(capture: Capture, kind: ModuleType) -> None:
    if kind is keras:
        from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
        from keras.src.utils import traceback_utils

        trainer = TensorFlowTrainer
    else:
        from tf_keras.src.utils import traceback_utils

        trainer = kind.Model
    patched: list[tuple[Any, str]] = [
        *((trainer, name) for name in ("fit", "evaluate", "predict", "train_on_batch")),
        *((kind.Model, name) for name in ("save", "save_weights", "load_weights")),
        *(
            (kind.callbacks.CallbackList, f"on_{name}")
            for name in ("epoch_begin", "epoch_end", "train_batch_begin", "train_batch_end")
        ),
    ]
    originals = [original_of(owner, name) for owner, name in patched]
    paths = traceback_utils._EXCLUDED_PATHS
    capture.handle.uninstrument()
    assert [vars(owner)[name] for owner, name in patched] == originals
    assert len(traceback_utils._EXCLUDED_PATHS) < len(paths)
    model(kind).fit(X, Y, verbose=0)
    assert capture.spans() == []


def test_one_worker_alone_is_within_keras_3(capture: Capture, caplog: pytest.LogCaptureFixture) -> None:
    """The message about what it cannot do is for clusters: tests of those see it."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    assert otel_tf.instrument(strategy) is capture.handle
    with strategy.scope():
        trained = model(keras)
    trained.fit(X, Y, batch_size=2, verbose=0)
    assert "Keras 3 itself" not in caplog.text
    assert values(capture.spans("train_step"), "global_step") == list(range(1, BATCHES + 1))
