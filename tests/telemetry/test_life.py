"""Exit, death, fork, and what the training must not notice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otel_tf.telemetry import Layout, SpanError
from tests.telemetry.support import (
    DEAD,
    attributes_of,
    program,
    record_step,
    run_python,
    spool_lines,
    spool_spans,
    step_layout,
)

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
