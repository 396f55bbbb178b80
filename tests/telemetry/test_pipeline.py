from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otel_tf import _guard, config
from otel_tf.identity import identify
from otel_tf.telemetry import Layout, SpanError, _pipeline, start
from tests.telemetry.support import (
    DEAD,
    attributes_of,
    record_step,
    spool_lines,
    spool_spans,
    step_layout,
    until,
)


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env={**os.environ, "OTEL_TF_TESTING": "true", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


#: What every test program begins with.
PROGRAM = """
import os, sys, time
from otel_tf import config, ids
from otel_tf.identity import identify
from otel_tf.telemetry import start
settings = config.resolve()
pipeline = start(settings, identify(settings))
layout = pipeline.layout("train_step", fields=("tensorflow.global_step", "tensorflow.seq"))
def step(n):
    seq, mono, wall = pipeline.now()
    pipeline.record(layout, ids.trace_id("r", n), ids.span_id("r", n), 0, wall, wall + 1, (n, seq))
"""


def program(rest: str) -> str:
    return textwrap.dedent(PROGRAM) + textwrap.dedent(rest)


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


# -- life and death ----------------------------------------------------------------------


def test_a_disabled_sdk_makes_it_a_no_op(
    pipeline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "True")
    threads = threading.active_count()
    one = pipeline()
    assert one.enabled is False
    layout = step_layout(one, resource=one.task_resource("worker", 1, clock_domain="c"))
    assert isinstance(layout, Layout)
    record_step(one, layout, 1, error=SpanError("X", "m", "E"))
    undo = one.every(0.001, lambda: pytest.fail("called"))
    time.sleep(0.02)
    undo()
    assert one.flush(1)
    assert one.shutdown(1)
    assert threading.active_count() == threads
    assert not (tmp_path / "run").exists()


def test_recording_after_shutdown_still_reaches_the_spool(pipeline: Any, tmp_path: Path) -> None:
    one = pipeline()
    layout = step_layout(one)
    assert one.shutdown(5)
    record_step(one, layout, 1)
    assert len(spool_spans(tmp_path / "run")) == 1


def test_at_exit_everything_is_spooled(tmp_path: Path) -> None:
    done = run_python(
        program("for n in range(100): step(n)"),
        OTEL_TF_RUN_DIR=str(tmp_path),
        OTEL_TF_FLUSH_INTERVAL="60000",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(spool_spans(tmp_path)) == 100


def test_what_runs_before_exit_may_still_record(tmp_path: Path) -> None:
    done = run_python(
        program("pipeline.before_exit(lambda timeout_s: step(int(0 < timeout_s <= 2)))"),
        OTEL_TF_RUN_DIR=str(tmp_path),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [attributes_of(span)["tensorflow.global_step"] for span in spool_spans(tmp_path)] == ["1"]


def test_a_killed_process_leaves_what_it_flushed(tmp_path: Path) -> None:
    code = program(
        """
        n = 0
        while True:
            step(n)
            n += 1
            if n % 100 == 0:
                assert pipeline.flush(5)
                print(n, flush=True)
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "OTEL_TF_RUN_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        flushed = 0
        for line in process.stdout:
            flushed = int(line)
            if flushed >= 1_000:
                process.send_signal(signal.SIGKILL)
                break
        assert process.wait(20) == -signal.SIGKILL
    (path,) = tmp_path.glob("*.traces.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    if not lines[-1].endswith(b"\n"):
        path.write_bytes(b"".join(lines[:-1]))
    steps = {int(attributes_of(span)["tensorflow.global_step"]) for span in spool_spans(tmp_path)}
    assert set(range(flushed)) <= steps


def test_a_forked_child_has_a_state_of_its_own(tmp_path: Path) -> None:
    done = run_python(
        program(
            """
            step(0)
            child = os.fork()
            if child == 0:
                step(1)
                assert pipeline.flush(5)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            print(child)
            step(2)
            """
        ),
        OTEL_TF_RUN_DIR=str(tmp_path),
        OTEL_TF_RUN_ID="r",
        OTEL_TF_FLUSH_INTERVAL="60000",
    )
    assert (done.returncode, done.stderr) == (0, "")
    child = done.stdout.strip()
    by_process = {}
    for line in spool_lines(tmp_path):
        (each,) = line["resourceSpans"]
        resource = attributes_of(each["resource"])
        by_process[resource["service.instance.id"]] = [
            (attributes_of(span)["tensorflow.global_step"], attributes_of(span)["tensorflow.seq"])
            for span in each["scopeSpans"][0]["spans"]
        ]
        if resource["service.instance.id"] != "r/local:0":
            assert resource["process.pid"] == child
    assert by_process == {"r/local:0": [("0", "1"), ("2", "2")], f"r/local:0.{child}": [("1", "1")]}
    assert len(list(tmp_path.glob(f"local-0.{child}.*"))) == 2


def test_a_multiprocessing_child_flushes_when_it_ends(tmp_path: Path) -> None:
    done = run_python(
        program(
            """
            import multiprocessing
            child = multiprocessing.get_context("fork").Process(target=step, args=(7,))
            child.start()
            child.join()
            """
        ),
        OTEL_TF_RUN_DIR=str(tmp_path),
        OTEL_TF_FLUSH_INTERVAL="60000",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [attributes_of(span)["tensorflow.global_step"] for span in spool_spans(tmp_path)] == ["7"]


# -- what the training must not notice ------------------------------------------------------


@pytest.mark.parametrize("endpoint", ["dead", "busy"])
def test_random_streams_are_untouched(endpoint: str, pipeline: Any, collector: Any, send_to: Any) -> None:
    """The official exporters' back-off draws from the global stream, on every request."""
    collector.answers = [(503, {"Retry-After": "0"}, b"")] * 2
    send_to(DEAD if endpoint == "dead" else collector.endpoint)
    random.seed(7)
    np.random.seed(7)
    expected = [random.random() for _ in range(10)], np.random.random(10).tolist()
    random.seed(7)
    np.random.seed(7)
    one = pipeline()
    layout = step_layout(one)
    for step in range(20):
        record_step(one, layout, step, error=SpanError("X", "m", "E"))
    assert one.flush(10) is (endpoint == "busy")
    assert ([random.random() for _ in range(10)], np.random.random(10).tolist()) == expected


def test_ids_of_a_run_are_the_same_in_two_processes(tmp_path: Path) -> None:
    for _ in range(2):
        done = run_python(program("step(41207)"), OTEL_TF_RUN_DIR=str(tmp_path), OTEL_TF_RUN_ID="r")
        assert done.returncode == 0, done.stderr
    first, second = spool_spans(tmp_path)
    assert first["traceId"] == second["traceId"]
    assert first["spanId"] == second["spanId"]


def test_importing_is_light() -> None:
    done = run_python(
        """
        import sys, otel_tf, otel_tf.telemetry, otel_tf.identity
        heavy = {"tensorflow", "opentelemetry", "numpy", "requests", "grpc", "google", "pyarrow", "duckdb"}
        print(sorted(heavy & {name.partition(".")[0] for name in sys.modules}))
        """
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_nothing_is_printed(tmp_path: Path) -> None:
    done = run_python(
        program("[step(n) for n in range(10)]; pipeline.flush(1)"), OTEL_TF_RUN_DIR=str(tmp_path)
    )
    assert (done.stdout, done.stderr) == ("", "")
