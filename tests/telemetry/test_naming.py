"""A run whose name is still to be agreed: spans wait for it, and none is lost."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_tf import config, ids
from otel_tf.identity import identify
from otel_tf.telemetry import Pipeline, Record, start
from tests.telemetry.support import (
    attributes_of,
    program,
    record_step,
    run_python,
    spool_lines,
    spool_spans,
    step_layout,
    until,
)


@pytest.fixture
def provisional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    monkeypatch.chdir(tmp_path)
    settings = config.resolve(flush_interval_ms=20)
    one = start(settings, identify(settings), provisional=True)
    yield one
    one.shutdown(1)


def record_named_step(pipeline: Pipeline, step: int) -> None:
    """Records as the seams do: what depends on the run's name is made when it is written."""
    layout = step_layout(pipeline)

    def make(number: int) -> list[Record]:
        trace_id = ids.trace_id(pipeline.identity.run_id, "step", number)
        return [Record(layout, trace_id, number + 1, 0, 1, 2, (number, number, number), None, ())]

    pipeline.record_later(make, step)


def test_spans_wait_for_the_name(provisional: Pipeline, tmp_path: Path) -> None:
    record_step(provisional, step_layout(provisional), 1)
    record_named_step(provisional, 2)
    assert provisional.waiting
    time.sleep(0.1)  # several flushes' worth
    assert not provisional.flush(0.05)
    assert list(tmp_path.rglob("*.jsonl")) == []

    provisional.name(provisional.identity.named("agreed-run"))
    assert provisional.flush(5)
    assert not provisional.waiting
    assert provisional.run_dir == tmp_path / "otel-tf-runs" / "agreed-run"
    assert [path.name for path in (tmp_path / "otel-tf-runs").iterdir()] == ["agreed-run"]
    first, second = spool_spans(provisional.run_dir)
    assert attributes_of(first)["tensorflow.global_step"] == "1"
    assert second["traceId"] == f"{ids.trace_id('agreed-run', 'step', 2):032x}"
    for line in spool_lines(provisional.run_dir):
        (resource_spans,) = line["resourceSpans"]
        resource = attributes_of(resource_spans["resource"])
        assert resource["tensorflow.run.id"] == "agreed-run"
        assert resource["service.instance.id"] == "agreed-run/local:0"


def test_clocks_are_written_under_the_name(provisional: Pipeline) -> None:
    began_ns = time.monotonic_ns()
    provisional.name(provisional.identity.named("agreed-run"))
    until(lambda: len(spool_lines(provisional.run_dir, ".clocks.jsonl")) >= 2)
    early, late = spool_lines(provisional.run_dir, ".clocks.jsonl")[:2]
    assert early["mono_ns"] < began_ns < late["mono_ns"]
    assert {early["process"], late["process"]} == {"agreed-run/local:0"}


def test_a_name_comes_once(provisional: Pipeline) -> None:
    provisional.name(provisional.identity.named("first"))
    provisional.name(provisional.identity.named("second"))
    assert provisional.identity.run_id == "first"
    assert provisional.identity.run_origin == "agreed"


def test_nothing_is_lost_when_no_name_ever_comes(provisional: Pipeline, tmp_path: Path) -> None:
    record_named_step(provisional, 1)
    own = provisional.identity.run_id
    provisional.shutdown(5)
    (span,) = spool_spans(tmp_path / "otel-tf-runs" / own)
    assert span["traceId"] == f"{ids.trace_id(own, 'step', 1):032x}"
    assert provisional.identity.run_origin == "made"


def test_a_relative_folder_is_the_one_of_the_start(provisional: Pipeline, tmp_path: Path) -> None:
    os.chdir("/")
    provisional.name(provisional.identity.named("agreed-run"))
    assert provisional.run_dir == tmp_path / "otel-tf-runs" / "agreed-run"


def test_a_clock_named_after_the_run_is_renamed_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otel_tf.identity._boot_id", lambda: None)
    identity = identify(config.resolve())
    assert identity.clock_domain == f"{identity.run_id}/local:0"
    assert identity.named("agreed-run").clock_domain == "agreed-run/local:0"


def test_a_forked_child_does_not_wait(tmp_path: Path) -> None:
    done = run_python(
        program(
            """
            pipeline.shutdown(1)
            pipeline = start(settings, identify(settings), provisional=True)
            layout = pipeline.layout("train_step", fields=("tensorflow.global_step", "tensorflow.seq"))
            step(1)
            import warnings
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                step(2)
                pipeline.shutdown(5)
                os._exit(0)
            os.waitpid(child, 0)
            os._exit(0)  # the parent never hears the name
            """
        ),
        OTEL_TF_RUN_DIR=str(tmp_path),
        OTEL_TRACES_EXPORTER="none",
    )
    assert done.returncode == 0, done.stderr
    (span,) = spool_spans(tmp_path)
    assert attributes_of(span)["tensorflow.global_step"] == "2"
