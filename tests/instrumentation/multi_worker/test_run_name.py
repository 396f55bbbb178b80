"""A worker and the run's name: when it waits for the chief, and what becomes of its spans if none speaks."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import otel_tf
from otel_tf import _guard, config
from otel_tf.identity import Identity, identify
from otel_tf.instrumentation.multi_worker.run_name import RunName, awaits_name
from otel_tf.telemetry import Pipeline, start
from tests.spool import spans
from tests.telemetry.support import record_step, step_layout, until

CLUSTER = {"worker": ["a:1", "b:1"], "evaluator": ["c:1"]}


def task(kind: str, index: int) -> dict[str, Any]:
    return {"cluster": CLUSTER, "task": {"type": kind, "index": index}}


def who(kind: str, index: int, strategy: str | None = None, **settings: Any) -> Identity:
    resolved = config.resolve(environ={}, **settings)
    return identify(resolved, environ={}, strategy=strategy, cluster=task(kind, index))


def test_only_a_worker_whose_run_nobody_named_waits() -> None:
    assert awaits_name(who("worker", 1))
    assert awaits_name(who("worker", 1, "CollectiveAllReduceStrategy"))
    assert not awaits_name(who("worker", 0))  # the chief: it names the run itself
    assert not awaits_name(who("evaluator", 0))  # not part of the coordination service
    assert not awaits_name(who("worker", 1, run_id="given"))
    assert not awaits_name(who("worker", 1, "MirroredStrategy"))
    assert not awaits_name(identify(config.resolve(environ={}), environ={}))


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.chdir(tmp_path)
    one = start(config.resolve(flush_interval_ms=20), who("worker", 1), provisional=True)
    yield one
    one.shutdown(1.0)


def test_patience_ends_once_spans_wait(waiting: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    name = RunName(waiting, waiting.identity, "0", patience_s=0.1)
    name.watch()
    assert not waiting.named.wait(2.5)  # nothing is lost by waiting as long as nothing is recorded
    record_step(waiting, step_layout(waiting), 1)
    until(waiting.named.is_set)
    until(lambda: len(spans(waiting.run_dir)) == 1)
    (said,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "the chief did not tell the run's name within 0.1 s" in said.message
    assert str(waiting.run_dir) in said.message
    assert "OTEL_TF_RUN_ID" in said.message


def test_a_cluster_that_takes_its_time_is_waited_for(waiting: Pipeline) -> None:
    name = RunName(waiting, waiting.identity, "0", patience_s=0.1)
    name.joining = True
    name.watch()
    record_step(waiting, step_layout(waiting), 1)
    assert not waiting.named.wait(2.5)


def test_a_process_that_ends_first_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The whole way: a worker that trains though no strategy was ever made."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.setenv("TF_CONFIG", json.dumps(task("worker", 1)))
    monkeypatch.delenv("OTEL_TF_RUN_ID", raising=False)
    monkeypatch.chdir(tmp_path)
    weight = tf.Variable(1.0)

    @tf.function
    def train_step() -> None:
        weight.assign_add(1.0)

    before = _guard.strict(True)
    handle = otel_tf.instrument()
    try:
        train_step()
        assert not handle.flush(0.2)
        assert not list(tmp_path.rglob("*.jsonl"))
    finally:
        handle.uninstrument()
        _guard.strict(before)
    (folder,) = (tmp_path / "otel-tf-runs").iterdir()
    assert folder == handle.run_dir
    assert [span.resource["tensorflow.run.id"] for span in spans(folder, "train_step")] == [handle.run_id]
    assert "before the chief had told" in caplog.text
