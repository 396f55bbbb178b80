"""Worker and step in a text."""

from __future__ import annotations

import re

import pytest

from otel_tf.logs.hints import Patterns, Progress


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("global step 52335: loss 2.1 (0.1 sec/step)", 52335),
        ("loss = 0.34, step = 100 (0.3 sec)", 100),
        ("Saving checkpoints for 600 into /m/model.ckpt.", 600),
        ("Restoring parameters from /m/model.ckpt-1234", 1234),
        ("Step 300: loss", 300),
        ("10\timages/sec: 215.8 +/- 3.1 (jitter = 2.6)\t8.493", 10),
        ("assertion failed: [boom step] [3] [v] [7]", 3),
        ("global_step/sec: 12.5", None),
        ("12 steps per epoch", None),
        ("Step\tImg/sec\tloss", None),
        ("stepping out", None),
        ("", None),
    ],
)
def test_steps(text: str, step: int | None) -> None:
    assert Patterns().step(text) == step


@pytest.mark.parametrize(
    ("text", "worker"),
    [
        ("[worker:1 step 41207] hello", "worker:1"),
        ("Worker 3: step 5", "worker:3"),
        ("rank 4 nranks 8", "rank:4"),
        (
            "Creating sync eager service context with rendezvous_id on host vm /job:ps/replica:0/task:2",
            "ps:2",
        ),
        ("/job:worker/replica:0/task:1 has connected to coordination service.", None),
        ("workers 3 are there", None),
        ("waiting for worker 3", None),
    ],
)
def test_workers(text: str, worker: str | None) -> None:
    assert Patterns().worker(text) == worker


def test_patterns_of_the_users_own_come_first() -> None:
    patterns = Patterns(re.compile(r"it=(\d+)"), re.compile(r"node(\d+)"))
    assert patterns.step("step 5 it=7") == 7
    assert patterns.step("step 5") == 5
    assert patterns.worker("on node12: x") == "12"


def test_keras_batches_count_over_epochs() -> None:
    progress = Progress()
    lines = [
        "  7/100 [=>....]",
        "Epoch 1/3",
        " 12/100 [==>...........] - ETA: 1s - loss: 0.3",
        "100/100 [======] - 1s",
        "Epoch 3/3",
        "\x1b[1m 5/100\x1b[0m \x1b[32m━━\x1b[0m 3s",
        "Epoch timing",
    ]
    assert [progress.step(line) for line in lines] == [None, None, 12, 100, None, 205, None]
