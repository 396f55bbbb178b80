"""`otel_tf.testing`: spans in memory, nothing on disk, nothing sent, failures raised."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tensorflow as tf

import otel_tf
import otel_tf.testing
from otel_tf import _guard
from otel_tf.errors import OtelTfError


def train(steps: int) -> None:
    weight = tf.Variable(1.0)

    @tf.function
    def train_step() -> None:
        weight.assign_sub(0.1)

    for _ in range(steps):
        train_step()


def test_spans_are_there_while_training_and_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Would be refused at once, and be seen in the log; it is not even tried.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with otel_tf.testing.capture(run_id="mine") as spans:
        train(2)
        assert [span.attributes["tensorflow.global_step"] for span in spans.named("train_step")] == [1, 2]
        assert _guard.is_strict()
        train(1)
    assert len(spans.named("train_step")) == 3
    assert {span.name for span in spans} == {"step", "train_step", "trace_function"}
    assert spans[0] in spans
    assert spans.named("step")[0].resource.attributes["tensorflow.run.id"] == "mine"
    assert repr(spans).startswith("CapturedSpans(['trace_function', 'train_step', 'step'")
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - hidden files too


def test_captures_follow_each_other_and_do_not_mix() -> None:
    with otel_tf.testing.capture() as first:
        train(1)
    train(1)
    with otel_tf.testing.capture() as second:
        train(2)
    assert (len(first.named("train_step")), len(second.named("train_step"))) == (1, 2)
    assert not _guard.is_strict() or os.environ.get("OTEL_TF_TESTING") == "true"


def test_an_instrumented_process_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    with (
        otel_tf.instrument(run_dir=tmp_path),
        pytest.raises(OtelTfError, match="instrumented already"),
        otel_tf.testing.capture(),
    ):
        pass
