"""`opentelemetry-instrument python train.py`, and the entry point behind it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

from otel_tf.instrumentation import attach
from otel_tf.instrumentation.instrumentor import TensorFlowInstrumentor
from tests.spool import spans

TRAIN = """
import keras, numpy as np
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones([6, 2]), np.ones([6, 1]), batch_size=2, verbose=0)
"""


def objects(text: str) -> list[dict[str, Any]]:
    """Every JSON object in a text, one after the other."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while (at := text.find("{", at)) >= 0:
        one, at = decoder.raw_decode(text, at)
        found.append(one)
    return found


def test_a_program_that_does_not_mention_us(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    done = subprocess.run(
        [str(Path(sys.executable).with_name("opentelemetry-instrument")), sys.executable, "train.py"],
        cwd=tmp_path,
        env={
            **environment,
            "OTEL_SERVICE_NAME": "theirs",
            "OTEL_TRACES_EXPORTER": "console",
            "OTEL_METRICS_EXPORTER": "console",
            "OTEL_LOGS_EXPORTER": "none",
            "OTEL_TF_RUN_DIR": str(tmp_path / "run"),
            "OTEL_TF_RUN_ID": "mine",
            "OTEL_TF_TESTING": "true",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = objects(done.stdout)
    steps = [one for one in said if one.get("name") == "train_step"]
    assert [step["attributes"]["tensorflow.global_step"] for step in steps] == [1, 2, 3]
    assert [step["attributes"]["tensorflow.batch"] for step in steps] == [0, 1, 2]
    assert steps[0]["resource"]["attributes"]["service.name"] == "theirs"
    assert {one["name"] for one in said if "context" in one} == {
        "step",
        "train_step",
        "epoch",
        "trace_function",
    }
    # The spool has the same spans.
    assert [step.span_id for step in spans(tmp_path / "run", "train_step")] == [
        step["context"]["span_id"].removeprefix("0x") for step in steps
    ]
    (metrics,) = [
        {metric["name"]: metric for metric in scope["metrics"]}
        for one in said
        for resource in one.get("resource_metrics", [])
        for scope in resource["scope_metrics"]
        if scope["scope"]["name"] == "otel_tf"
    ]
    (duration,) = metrics["tensorflow.step.duration"]["data"]["data_points"]
    assert metrics["tensorflow.step.duration"]["unit"] == "s"
    assert duration["count"] == 3
    assert duration["attributes"] == {"tensorflow.worker": "local:0"}
    assert 0 < duration["sum"] < 30
    assert duration["explicit_bounds"][:3] == [0.0005, 0.001, 0.002]
    assert sum(p["value"] for p in metrics["tensorflow.function.tracings"]["data"]["data_points"]) >= 2
    assert metrics["otel_tf.spool.size"]["data"]["data_points"][0]["value"] > 0
    assert {p["value"] for p in metrics["otel_tf.spans.dropped"]["data"]["data_points"]} == {0}


def test_the_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    (entry,) = entry_points(group="opentelemetry_instrumentor", name="tensorflow")
    assert entry.load() is TensorFlowInstrumentor
    original = vars(ConcreteFunction)["_call_flat"]
    TensorFlowInstrumentor().instrument(run_dir=tmp_path, run_id="mine")
    try:
        handle = attach.attached()
        assert handle is not None
        assert handle.run_id == "mine"
        assert vars(ConcreteFunction)["_call_flat"].__wrapped__ is original
        tf.function(lambda: tf.constant(1))()
    finally:
        TensorFlowInstrumentor().uninstrument()
    assert attach.attached() is None
    assert vars(ConcreteFunction)["_call_flat"] is original


def test_a_setting_that_cannot_be_does_not_stop_the_program(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    TensorFlowInstrumentor().instrument(run_id="no/folder")
    TensorFlowInstrumentor().uninstrument()
    assert "not instrumented: run_id='no/folder'" in caplog.text
