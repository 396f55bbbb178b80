"""Log records with the step they belong to: its number, and the very ids of its span."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

import otel_tf
from otel_tf import _guard
from tests.instrumentation.conftest import Capture
from tests.telemetry.support import http_collector

LOGGER = logging.getLogger("tests.job")


@pytest.fixture(autouse=True)
def level() -> None:
    LOGGER.setLevel(logging.INFO)


def records(capture: Capture) -> dict[str, dict[str, Any]]:
    """Every record of this module's logger, by its text; ids under `traceId`, `spanId`."""
    assert capture.handle.flush(10)
    found = {}
    for path in sorted(capture.handle.run_dir.glob("*.logs.jsonl")):
        for line in path.read_text().splitlines():
            for scope in json.loads(line)["resourceLogs"][0]["scopeLogs"]:
                if scope["scope"]["name"] == "tests.job":
                    for record in scope["logRecords"]:
                        values = {
                            pair["key"]: next(iter(pair["value"].values())) for pair in record["attributes"]
                        }
                        found[record["body"]["stringValue"]] = {**record, **values}
    return found


def step_of(record: dict[str, Any]) -> int | None:
    number = record.get("tensorflow.global_step")
    return None if number is None else int(number)


def linked(capture: Capture, record: dict[str, Any]) -> int:
    """The step of the span that a record is linked to; fails where there is no such span."""
    (span,) = [
        span
        for span in capture.spans("train_step")
        if (span.trace_id, span.span_id) == (record["traceId"], record["spanId"])
    ]
    number: int = span.attributes["tensorflow.global_step"]
    return number


def test_in_declared_steps_and_between(capture: Capture) -> None:
    LOGGER.info("before")
    for number in (41206, 41207):
        with otel_tf.step(number):
            LOGGER.info("in %d", number)
        LOGGER.info("after %d", number)
    with otel_tf.step():
        LOGGER.info("counted")
    found = records(capture)
    assert {text: step_of(record) for text, record in found.items()} == {
        "before": None,
        "in 41206": 41206,
        "after 41206": 41206,
        "in 41207": 41207,
        "after 41207": 41207,
        "counted": 41208,
    }
    assert linked(capture, found["in 41207"]) == 41207
    assert linked(capture, found["counted"]) == 41208
    assert "spanId" not in found["after 41207"]
    assert found["in 41207"]["tensorflow.worker"] == "local:0"


def test_from_inside_of_a_function_whatever_thread_tensorflow_uses(capture: Capture) -> None:
    weight = tf.Variable(1.0)
    threads = set()

    def say(number: Any) -> Any:
        threads.add(threading.get_ident())
        LOGGER.info("inside %d", int(number))
        return np.int32(0)

    @tf.function
    def train_step(number: Any) -> Any:
        weight.assign_sub(0.1)
        return tf.numpy_function(say, [number], tf.int32)

    for number in range(1, 4):
        train_step(tf.constant(number))
    found = records(capture)
    for number in range(1, 4):
        record = found[f"inside {number}"]
        assert step_of(record) == linked(capture, record) == number


def test_a_step_that_fails_is_the_one_its_lines_belong_to(capture: Capture) -> None:
    weight = tf.Variable(1.0)

    def fail() -> Any:
        LOGGER.error("about to fail")
        raise ValueError("mine")

    @tf.function
    def train_step() -> Any:
        weight.assign_sub(0.1)
        return tf.numpy_function(fail, [], tf.int32)

    with pytest.raises(tf.errors.OpError):
        train_step()
    record = records(capture)["about to fail"]
    assert linked(capture, record) == step_of(record) == 1


def test_with_two_steps_at_once_a_third_thread_is_in_neither(capture: Capture) -> None:
    inside, end = threading.Barrier(3), threading.Barrier(3)

    def train(number: int) -> None:
        with otel_tf.step(number):
            inside.wait()
            LOGGER.info("in %d", number)
            end.wait()

    both = [threading.Thread(target=train, args=(number,)) for number in (1, 2)]
    for thread in both:
        thread.start()
    inside.wait()
    LOGGER.info("elsewhere")
    end.wait()
    for thread in both:
        thread.join()
    found = records(capture)
    assert (step_of(found["in 1"]), step_of(found["in 2"])) == (1, 2)
    assert "spanId" not in found["elsewhere"]


@pytest.mark.parametrize(("prefix", "expected"), [(True, "[local:0 step 7] hello\n"), (False, "hello\n")])
def test_handlers_get_what_they_always_got_unless_a_prefix_is_asked_for(
    tmp_path: Path, monkeypatch: Any, prefix: bool, expected: str
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    before = logging.Logger.callHandlers
    strict = _guard.strict(True)
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    LOGGER.addHandler(handler)
    try:
        with otel_tf.instrument(run_id="t", run_dir=tmp_path, log_prefix=prefix), otel_tf.step(7):
            LOGGER.info("hello")
    finally:
        LOGGER.removeHandler(handler)
        _guard.strict(strict)
    assert out.getvalue() == expected
    assert logging.Logger.callHandlers is before


def test_off(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    before = logging.Logger.callHandlers
    with otel_tf.instrument(run_id="t", run_dir=tmp_path, capture_logs=False):
        assert logging.Logger.callHandlers is before
        LOGGER.info("not taken")
    assert not list(tmp_path.glob("*.logs.jsonl"))


PROGRAM = """
import os, otel_tf
otel_tf.capture_native_logs()
import tensorflow
with otel_tf.instrument():
    with otel_tf.step(7):
        os.write(2, b"from C++\\n")
"""


def test_stderr_goes_over_otlp_too_where_logs_do(tmp_path: Path) -> None:
    with http_collector(ExportLogsServiceRequest) as collector:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={
                **{key: value for key, value in os.environ.items() if not key.startswith("OTEL_")},
                "OTEL_TF_RUN_DIR": str(tmp_path),
                "OTEL_TRACES_EXPORTER": "none",
                "OTEL_LOGS_EXPORTER": "otlp",
                "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
                "OTEL_TF_TESTING": "true",
                "OTEL_TF_EXIT_TIMEOUT": "10000",
            },
            capture_output=True,
            timeout=100,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    records = [
        (record.body.string_value, {pair.key: pair.value.string_value for pair in record.attributes})
        for request in collector.requests
        for of in request.resource_logs  # type: ignore[attr-defined]
        for scope in of.scope_logs
        for record in scope.log_records
    ]
    (attributes,) = [attributes for body, attributes in records if body == "from C++"]
    assert attributes["log.iostream"] == "stderr"
    # What TensorFlow said while it was imported, before there was anything of ours to send it.
    assert any("cpu_feature_guard.cc" in attributes.values() for _, attributes in records)


@pytest.mark.parametrize("package", ["keras", "tf_keras"])
def test_callbacks_of_keras_have_the_step_before_or_their_own(capture: Capture, package: str) -> None:
    keras = __import__(package)

    class Say(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            LOGGER.info("begin %d", batch)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            LOGGER.info("end %d", batch)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            LOGGER.info("epoch")

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones([8, 2]), np.ones([8, 1]), batch_size=2, verbose=0, callbacks=[Say()])
    found = records(capture)
    # The step is the training function: before it, the last one counts, behind it, its own.
    for batch in range(1, 4):
        assert step_of(found[f"begin {batch}"]) == batch
        assert step_of(found[f"end {batch}"]) == batch + 1
    assert step_of(found["begin 0"]) is None
    assert step_of(found["epoch"]) == 4
