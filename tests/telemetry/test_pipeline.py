from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from otel_tf import _guard, config
from otel_tf.identity import identify
from otel_tf.telemetry import Record, SpanError, _pipeline, start
from tests.telemetry.support import (
    DEAD,
    attributes_of,
    program,
    record_step,
    run_python,
    spool_lines,
    spool_spans,
    step_layout,
    until,
)

# -- instants ------------------------------------------------------------------------


def test_now_counts_and_agrees_with_the_monotonic_clock_over_threads(pipeline: Any) -> None:
    one = pipeline()
    taken: list[list[tuple[int, int, int]]] = []

    def take() -> None:
        taken.append([one.now() for _ in range(20_000)])

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    instants = sorted(instant for each in taken for instant in each)
    first = instants[0][0]
    assert [seq for seq, _, _ in instants] == list(range(first, first + 80_000))
    monotonic = [mono for _, mono, _ in instants]
    assert monotonic == sorted(monotonic)
    assert abs(instants[-1][2] - time.time_ns()) < 60 * 10**9


def test_now_counts_from_one_and_on_over_pipelines_of_one_process(tmp_path: Path) -> None:
    done = run_python(
        program(
            """
            print(pipeline.now()[0])
            pipeline.shutdown(1)
            print(start(settings, identify(settings)).now()[0])
            """
        ),
        OTEL_TF_RUN_DIR=str(tmp_path),
    )
    assert done.stdout.split() == ["1", "2"], done.stderr


# -- the spool -----------------------------------------------------------------------


def test_spans_reach_the_spool_by_themselves(pipeline: Any, tmp_path: Path) -> None:
    one = pipeline()
    layout = step_layout(one)
    for step in range(5):
        record_step(one, layout, step)
    until(lambda: len(spool_spans(tmp_path / "run")) == 5)
    spans = spool_spans(tmp_path / "run")
    assert [attributes_of(span)["tensorflow.global_step"] for span in spans] == list("01234")
    sequence = [int(attributes_of(span)["tensorflow.seq"]) for span in spans]
    assert sequence == sorted(set(sequence))
    (path,) = (tmp_path / "run").glob("*.traces.jsonl")
    assert path.name == f"local-0.{os.getpid()}.traces.jsonl"


def test_the_run_directory_is_made_below_the_working_directory(
    pipeline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    resolved = config.resolve(run_id="a-run")
    one = start(resolved, identify(resolved))
    try:
        # A program that changes its directory later does not scatter its run.
        monkeypatch.chdir("/")
        assert one.run_dir == tmp_path / "otel-tf-runs" / "a-run"
        record_step(one, step_layout(one), 1)
        assert one.flush(5)
        assert len(spool_spans(one.run_dir)) == 1
    finally:
        one.shutdown(1)


def test_clocks_are_written_at_the_start(pipeline: Any, tmp_path: Path) -> None:
    before = time.monotonic_ns()
    one = pipeline(clock_domain="clock a")
    (entry,) = spool_lines(tmp_path / "run", ".clocks.jsonl")
    assert set(entry) == {"domain", "process", "mono_ns", "wall_ns", "max_error_ns"}
    assert (entry["domain"], entry["process"]) == ("clock a", one.resource.process)
    assert before <= entry["mono_ns"] <= time.monotonic_ns()
    offset = entry["wall_ns"] - entry["mono_ns"]
    assert abs(offset - (time.time_ns() - time.monotonic_ns())) < 10**9
    assert 0 < entry["max_error_ns"] < 10**9


def test_clocks_are_written_again_and_again(
    pipeline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_pipeline, "_CLOCKS_INTERVAL_S", 0.02)
    pipeline()
    until(lambda: len(spool_lines(tmp_path / "run", ".clocks.jsonl")) >= 3)


def test_a_folder_that_cannot_be_written_is_said_once_and_training_goes_on(
    pipeline: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    one = pipeline(run_dir=tmp_path / "file" / "run")
    layout = step_layout(one)
    for step in range(3):
        record_step(one, layout, step)
        assert one.flush(1) is False
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == 1
    assert str(tmp_path / "file" / "run") in said[0]
    assert "OTEL_TF_RUN_DIR" in said[0]


def test_without_a_spool_nothing_is_written(pipeline: Any, tmp_path: Path) -> None:
    one = pipeline(spool=False)
    record_step(one, step_layout(one), 1)
    assert one.flush(1)
    assert not (tmp_path / "run").exists()


def test_long_runs_are_cut_into_lines(pipeline: Any, tmp_path: Path) -> None:
    one = pipeline(flush_interval_ms=60_000)
    layout = step_layout(one)
    for step in range(4_500):
        record_step(one, layout, step)
    assert one.flush(20)
    sizes = [
        sum(len(scope["spans"]) for each in line["resourceSpans"] for scope in each["scopeSpans"])
        for line in spool_lines(tmp_path / "run")
    ]
    assert sizes == [2_000, 2_000, 500]


def test_two_pipelines_of_one_process_do_not_share_files(pipeline: Any, tmp_path: Path) -> None:
    for _ in range(2):
        one = pipeline()
        record_step(one, step_layout(one), 1)
        one.shutdown(1)
    assert len(list((tmp_path / "run").glob("*.traces.jsonl"))) == 2
    assert len(spool_spans(tmp_path / "run")) == 2


# -- threads, broken records, callbacks ------------------------------------------------


def test_many_threads_record_at_once(pipeline: Any, tmp_path: Path) -> None:
    one = pipeline(flush_interval_ms=1)
    layout = step_layout(one)

    def work(first: int) -> None:
        for step in range(first, first + 1_000):
            record_step(one, layout, step)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(0, 8_000, 1_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert one.flush(20)
    steps = sorted(
        int(attributes_of(span)["tensorflow.global_step"]) for span in spool_spans(tmp_path / "run")
    )
    assert steps == list(range(8_000))


def test_one_broken_record_does_not_take_others_with_it(
    pipeline: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_guard, "_reported", set())
    _guard.strict(False)
    one = pipeline(flush_interval_ms=60_000)
    layout = step_layout(one)
    record_step(one, layout, 1)
    one.record(layout, 1, 2, 0, 1, 2, ("too few",))
    record_step(one, layout, 2)
    one.flush(5)
    steps = [attributes_of(span)["tensorflow.global_step"] for span in spool_spans(tmp_path / "run")]
    assert steps == ["1", "2"]
    assert one.dropped == 1
    assert "the telemetry pipeline failed" in caplog.text


def test_spans_are_made_later_on_another_thread(pipeline: Any, tmp_path: Path) -> None:
    one = pipeline()
    layout = step_layout(one)
    made_on: list[str] = []

    def make(step: int) -> list[Record]:
        made_on.append(threading.current_thread().name)
        ids_ = (step, 100 + step, 0)
        return [Record(layout, *ids_, 5, 6, (step, None, None), None, ()) for _ in range(2)]

    record_step(one, layout, 1)
    one.record_later(make, 2)
    one.record_later(make, 3)
    until(lambda: len(spool_spans(tmp_path / "run")) == 5)
    steps = [attributes_of(span)["tensorflow.global_step"] for span in spool_spans(tmp_path / "run")]
    assert steps == list("12233")
    assert set(made_on) == {"otel-tf flusher"}


def test_what_cannot_be_made_is_dropped_alone(
    pipeline: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_guard, "_reported", set())
    _guard.strict(False)
    one = pipeline()
    layout = step_layout(one)

    def make(step: int) -> list[Record]:
        raise IndexError(f"no step {step}")

    record_step(one, layout, 1)
    one.record_later(make, 2)
    record_step(one, layout, 3)
    assert one.flush(5.0)
    assert len(spool_spans(tmp_path / "run")) == 2
    assert one.dropped == 1
    assert "no step 2" in caplog.text


def test_a_full_queue_drops_and_counts(
    pipeline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_pipeline, "_MAX_WAITING", 3)
    one = pipeline(flush_interval_ms=60_000)
    layout = step_layout(one)
    for step in range(5):
        record_step(one, layout, step)
    assert one.flush(5)
    assert (len(spool_spans(tmp_path / "run")), one.dropped) == (3, 2)


def test_callbacks_run_until_undone(pipeline: Any) -> None:
    one = pipeline()
    calls: list[str] = []
    undo = one.every(0.01, lambda: calls.append(threading.current_thread().name))
    until(lambda: len(calls) >= 3)
    assert threading.current_thread().name not in calls
    undo()
    time.sleep(0.05)
    count = len(calls)
    time.sleep(0.05)
    assert len(calls) == count


def test_a_callback_that_hangs_does_not_hold_the_spool_up(pipeline: Any, tmp_path: Path) -> None:
    one = pipeline()
    release = threading.Event()
    entered = threading.Event()

    def hang() -> None:
        entered.set()
        release.wait(30)

    one.every(0.01, hang)
    assert entered.wait(10)
    record_step(one, step_layout(one), 1)
    until(lambda: len(spool_spans(tmp_path / "run")) == 1)
    release.set()


def test_a_callback_that_fails_is_called_again(
    pipeline: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_guard, "_reported", set())
    _guard.strict(False)
    one = pipeline()
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise RuntimeError("worker gone")

    one.every(0.01, fail)
    until(lambda: len(calls) >= 3)
    assert len([record for record in caplog.records if record.exc_info]) == 1


def test_layouts_of_other_tasks_carry_their_resource(pipeline: Any, tmp_path: Path) -> None:
    one = pipeline()
    worker = one.task_resource("worker", 1, clock_domain="clock w", host_name="host-w")
    record_step(one, step_layout(one), 1)
    record_step(one, step_layout(one, resource=worker), 1)
    assert one.flush(5)
    found = {}
    for line in spool_lines(tmp_path / "run"):
        for each in line["resourceSpans"]:
            attributes = attributes_of(each["resource"])
            found[attributes["service.instance.id"]] = attributes
    assert set(found) == {"r1/local:0", "r1/worker:1"}
    assert found["r1/worker:1"]["tensorflow.clock.domain"] == "clock w"
    assert found["r1/worker:1"]["host.name"] == "host-w"
    assert "process.pid" not in found["r1/worker:1"]


def test_an_error_is_spooled_at_once(pipeline: Any, tmp_path: Path) -> None:
    one = pipeline(flush_interval_ms=600_000)
    layout = step_layout(one)
    record_step(one, layout, 1)
    record_step(one, layout, 2, error=SpanError("INTERNAL", "about to die", "InternalError"))
    until(lambda: len(spool_spans(tmp_path / "run")) == 2)


def test_metrics_of_the_pipeline_itself(
    pipeline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, send_to: Any
) -> None:
    reader = InMemoryMetricReader()
    monkeypatch.setattr(metrics, "get_meter", MeterProvider([reader], shutdown_on_exit=False).get_meter)
    monkeypatch.setattr(_pipeline, "_MAX_WAITING", 2)
    send_to(DEAD)
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "1")
    one = pipeline(flush_interval_ms=60_000)
    layout = step_layout(one)
    for step in range(3):
        record_step(one, layout, step)
    one.shutdown(5)
    found = {}
    data = reader.get_metrics_data()
    assert data is not None
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            found[metric.name, point.attributes.get("error.type")] = point.value
    (path,) = (tmp_path / "run").glob("*.traces.jsonl")
    assert found == {
        ("otel_tf.spans.dropped", "queue_full"): 1,
        ("otel_tf.spans.dropped", "not_sent"): 2,
        ("otel_tf.spool.size", None): path.stat().st_size,
    }
