"""A program that is killed and started again, by both commands, without a word of us in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from otel_tf import ids
from tests.spool import SpooledSpan, spans

SAVED_EVERY = 5
KILL_AT = 12
LAST = 15

TRAIN = f"""
import os, signal, time
import tensorflow as tf

weight = tf.Variable(1.0)
iterations = tf.Variable(0, dtype=tf.int64, trainable=False, name="iterations")
checkpoint = tf.train.Checkpoint(weight=weight, iterations=iterations)
manager = tf.train.CheckpointManager(checkpoint, "saved", max_to_keep=1)
restored = manager.restore_or_initialize()

@tf.function
def train_step():
    weight.assign_sub(0.1)
    iterations.assign_add(1)

for number in range(int(iterations) + 1, {LAST} + 1):
    train_step()
    if number % {SAVED_EVERY} == 0:
        manager.save()
    if number == {KILL_AT} and not restored:
        time.sleep(2.0)  # far more than it takes to spool what is done
        os.kill(os.getpid(), signal.SIGKILL)
"""


def start(folder: Path, *command: str) -> int:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    bin_folder = Path(sys.executable).parent
    done = subprocess.run(
        [str(bin_folder / command[0]), *command[1:], "train.py"],
        cwd=folder,
        env={
            **environment,
            "OTEL_TF_RUN_ID": "test",
            "OTEL_TF_RUN_DIR": "run",
            "OTEL_TF_TESTING": "true",
            "OTEL_TRACES_EXPORTER": "none",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
        },
        timeout=120,
        check=False,
    )
    return done.returncode


def values(found: list[SpooledSpan], name: str) -> list[Any]:
    return [span.attributes.get(f"tensorflow.{name}") for span in found]


def test_the_global_step_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    assert start(tmp_path, "otel-tf", "run") == -signal.SIGKILL
    assert start(tmp_path, "opentelemetry-instrument", sys.executable) == 0

    steps = sorted(spans(tmp_path / "run", "train_step"), key=lambda span: span.start_ns)
    first, second = steps[:KILL_AT], steps[KILL_AT:]
    assert values(first, "global_step") == list(range(1, KILL_AT + 1))
    # What was done since the last checkpoint is done again.
    assert values(second, "global_step") == list(range(KILL_AT // SAVED_EVERY * SAVED_EVERY + 1, LAST + 1))
    assert values(second, "local_step") == [1, 2, 3, 4, 5]
    assert len({step.resource["process.pid"] for step in first}) == 1
    assert len({step.resource["process.pid"] for step in steps}) == 2
    assert {step.resource["service.instance.id"] for step in steps} == {"test/local:0"}
    # The same step is in the same trace; no two spans are the same.
    for step in steps:
        number = step.attributes["tensorflow.global_step"]
        assert step.trace_id == f"{ids.trace_id('test', 'step', number):032x}"
    assert len({step.span_id for step in steps}) == len(steps)
    saves, (restore,) = (
        spans(tmp_path / "run", "checkpoint.save"),
        spans(tmp_path / "run", "checkpoint.restore"),
    )
    assert values(saves, "step.after") == [5, 10, 15]
    assert restore.attributes["tensorflow.checkpoint.path"].endswith("saved/ckpt-2")
    assert restore.resource["process.pid"] == second[0].resource["process.pid"]
