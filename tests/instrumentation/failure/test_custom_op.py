"""Errors from a C++ op of the program's own arrive as those of TensorFlow's ops do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import error_codes_pb2

from otel_tf.instrumentation.failure import capture as capturing
from tests.instrumentation.conftest import Capture
from tests.instrumentation.failure.support import tensors
from tests.spool import spans

HERE = Path(__file__).parent / "custom_op"
CODES = range(1, 17)
#: TensorFlow itself replaces this one, and drops its payload.
REPLACED = {14: "INTERNAL"}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not installed")
    built = tmp_path_factory.mktemp("op") / "fail_with.so"
    flags = [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
    command = [compiler, "-w", "-shared", "-fPIC", str(HERE / "fail_with.cc"), "-o", str(built), *flags]
    subprocess.run(command, check=True)
    return built


@pytest.mark.parametrize("payload", ["", "temperature=93"], ids=["plain", "with payload"])
def test_each_code(capture: Capture, library: Path, payload: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capturing, "_SHARE", 0)
    op = tf.load_op_library(str(library)).otel_tf_fail_with
    weight = tf.Variable(1.0, name="weight")

    def step_of(code: int) -> Any:
        @tf.function
        def train_step(x: Any) -> None:
            weight.assign_sub(op(x=x, code=code, payload=payload))

        return train_step

    for code in CODES:
        with pytest.raises(tf.errors.OpError):
            step_of(code)(tf.constant(1.0))
    steps = capture.spans("train_step")
    assert [step.attributes["error.type"] for step in steps] == [
        REPLACED.get(code, error_codes_pb2.Code.Name(code)) for code in CODES
    ]
    for code, step in zip(CODES, steps, strict=True):
        attributes = step.attributes
        assert attributes["tensorflow.error.text"] == "the extension says no"
        assert attributes["tensorflow.error.node"] == "OtelTfFailWith"
        assert attributes["tensorflow.error.op"] == "OtelTfFailWith"
        assert "test_custom_op.py" in attributes["tensorflow.error.stack"]
        sent = {"type.example.com/fail_with": payload} if payload and code not in REPLACED else {}
        assert json.loads(attributes.get("tensorflow.error.payloads", "{}")) == sent
        assert ("UNAVAILABLE" in attributes.get("tensorflow.error.explanation", "")) == (code in REPLACED)
        assert set(tensors(step)) == {"x", "weight"}


def test_an_eager_op(capture: Capture, library: Path) -> None:
    import otel_tf

    op = tf.load_op_library(str(library)).otel_tf_fail_with
    with pytest.raises(tf.errors.DataLossError), otel_tf.step(3):
        op(x=tf.constant(1.0), code=15, payload="p")
    (step,) = capture.spans("train_step")
    assert step.attributes["error.type"] == "DATA_LOSS"
    assert step.attributes["tensorflow.error.op"] == "OtelTfFailWith"
    assert step.attributes["tensorflow.error.device"].endswith("CPU:0")
    assert "fail_with" in step.attributes["tensorflow.error.payloads"]


def test_on_a_worker(library: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "OTEL_TF_RUN_ID": "test",
        "OTEL_TF_RUN_DIR": str(tmp_path),
        "OTEL_TF_TESTING": "true",
        "OTEL_TRACES_EXPORTER": "none",
    }
    command = [sys.executable, str(HERE / "remote_program.py"), str(library)]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (step,) = spans(tmp_path, "train_step")
    assert step.attributes["error.type"] == "FAILED_PRECONDITION"
    assert step.attributes["tensorflow.error.op"] == "OtelTfFailWith"
    assert step.attributes["tensorflow.error.origin.worker"] == "worker:0"
    assert step.attributes["tensorflow.error.text"] == "the extension says no"
    sent = json.loads(step.attributes["tensorflow.error.payloads"])
    assert sent == {"type.example.com/fail_with": "from afar"}
