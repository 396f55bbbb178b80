"""`otel_tf.keras_callback`: the same spans without anything being wrapped, and none twice beside the seam."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import pytest
import tf_keras
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

import otel_tf
from otel_tf import _guard
from otel_tf.instrumentation import attach
from tests.instrumentation.conftest import Capture
from tests.spool import SpooledSpan, spans

X = np.arange(28, dtype="float32").reshape(14, 2) / 28
Y = X.sum(axis=1, keepdims=True)

both = pytest.mark.parametrize("kind", [keras, tf_keras], ids=["keras3", "tf_keras"])


def model(kind: ModuleType, **options: Any) -> Any:
    made = kind.Sequential([kind.layers.Dense(1)])
    made.compile("sgd", "mse", **options)
    return made


def values(found: list[SpooledSpan], name: str) -> list[Any]:
    return [span.attributes.get(f"tensorflow.{name}") for span in found]


@pytest.fixture
def callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    before = _guard.strict(True)
    yield otel_tf.keras_callback(run_id="test", run_dir=tmp_path)
    otel_tf.uninstrument()
    _guard.strict(before)


def recorded(folder: Path, name: str | None = None) -> list[SpooledSpan]:
    handle = attach.attached()
    assert handle is not None
    assert handle.flush(10.0)
    return spans(folder, name)


@both
def test_it_tells_what_the_seam_tells(callback: Any, kind: ModuleType, tmp_path: Path) -> None:
    trained = model(kind)
    trained.fit(X, Y, batch_size=2, epochs=2, verbose=0, validation_data=(X[:4], Y[:4]), callbacks=[callback])
    trained.predict(X, verbose=0, callbacks=[callback])
    assert not hasattr(vars(ConcreteFunction)["_call_flat"], "__wrapped__")
    steps, epochs = recorded(tmp_path, "train_step"), recorded(tmp_path, "epoch")
    assert values(steps, "global_step") == list(range(1, 15))
    assert values(steps, "epoch") == [0] * 7 + [1] * 7
    assert values(steps, "batch") == list(range(7)) * 2
    assert len(recorded(tmp_path, "step")) == 14
    assert values(epochs, "step.before") == [None, 7]
    assert values(epochs, "step.after") == [7, 14]
    evaluations = recorded(tmp_path, "evaluate")
    assert [span.parent_id for span in evaluations] == [span.span_id for span in epochs]
    (predict,) = recorded(tmp_path, "predict")
    assert predict.parent_id == ""
    assert {span.name for span in recorded(tmp_path)} == {
        "step",
        "train_step",
        "epoch",
        "evaluate",
        "predict",
    }


@both
def test_several_steps_in_a_run(callback: Any, kind: ModuleType, tmp_path: Path) -> None:
    model(kind, steps_per_execution=3).fit(X, Y, batch_size=2, verbose=0, callbacks=[callback])
    steps = recorded(tmp_path, "train_step")
    assert values(steps, "global_step") == [3, 6, 7]
    assert values(steps, "steps_per_execution") == [3, 3, None]


@both
def test_after_a_failure_it_goes_on(callback: Any, kind: ModuleType, tmp_path: Path) -> None:
    class Failing(kind.callbacks.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 2:
                raise RuntimeError("mine")

    trained = model(kind)
    with pytest.raises(RuntimeError, match="mine"):
        trained.fit(X, Y, batch_size=2, verbose=0, callbacks=[callback, Failing()])
    trained.fit(X, Y, batch_size=7, verbose=0, callbacks=[callback])
    assert values(recorded(tmp_path, "train_step"), "global_step") == [1, 2, 3, 4]
    assert values(recorded(tmp_path, "epoch"), "step.after") == [2, 4]


@both
def test_beside_instrument_nothing_is_told_twice(capture: Capture, kind: ModuleType) -> None:
    callback = otel_tf.keras_callback()
    model(kind).fit(X, Y, batch_size=2, verbose=0, validation_data=(X, Y), callbacks=[callback])
    assert values(capture.spans("train_step"), "global_step") == list(range(1, 8))
    assert [len(capture.spans(name)) for name in ("step", "epoch", "evaluate")] == [7, 1, 1]


def test_instrument_after_a_callback_attaches(callback: Any, tmp_path: Path) -> None:
    model(keras).fit(X, Y, batch_size=7, verbose=0, callbacks=[callback])
    handle = attach.attached()
    assert handle is not None
    assert not handle.sees_loops
    assert otel_tf.instrument() is handle
    assert handle.sees_loops
    model(keras).fit(X, Y, batch_size=7, verbose=0, callbacks=[callback])
    assert len(recorded(tmp_path, "train_step")) == 4
