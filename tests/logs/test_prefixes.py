"""What launchers put before a line."""

from __future__ import annotations

import pytest

from otel_tf.logs.heads import Clock
from otel_tf.logs.prefixes import Prefix, strip_prefix, task_in

T = 1_550_098_776_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1,0]<stderr>:hello", Prefix("hello", "rank 0 of job 1", "rank:0", "stderr")),
        ("[1,12]<stdout>: hello", Prefix("hello", "rank 12 of job 1", "rank:12", "stdout")),
        ("[prterun-host-17@1,3]<stdout>:x", Prefix("x", "rank 3 of job 1", "rank:3", "stdout")),
        ("[2]<stderr>:x", Prefix("x", "rank 2", "rank:2", "stderr")),
        ("[default3]:x", Prefix("x", "rank 3", "rank:3")),
        (
            "[pod/train-worker-1/tensorflow] x",
            Prefix("x", "train-worker-1/tensorflow", "worker:1", pod="train-worker-1"),
        ),
        ("(RayTrainWorker pid=123, ip=10.0.0.7) x", Prefix("x", "RayTrainWorker pid=123, ip=10.0.0.7", None)),
        ("(pid=9) x", Prefix("x", "ray pid=9", None)),
        ("worker-0  | x", Prefix("x", "worker-0", "worker:0")),
        ("train-ps-0 tensorflow x", Prefix("x", "train-ps-0/tensorflow", "ps:0", pod="train-ps-0")),
        (
            "2019-02-13T22:59:36.000000000Z stderr F x",
            Prefix("x", stream="stderr", time_ns=T),
        ),
        (
            "INFO|2019-02-13T22:59:36|/opt/launcher.py|27| x",
            Prefix("x", time_ns=T, severity=9, file="/opt/launcher.py", line=27),
        ),
        (
            "host-worker-0:17:538 [0] NCCL INFO rank 0 nranks 8",
            Prefix(
                "host-worker-0:17:538 [0] NCCL INFO rank 0 nranks 8",
                "host-worker-0:17",
                None,
                pod="host-worker-0",
            ),
        ),
    ],
)
def test_known_ones(text: str, expected: Prefix) -> None:
    assert strip_prefix(text, Clock(0)) == expected


@pytest.mark.parametrize(
    "text",
    ["", "hello", "[1, 2, 3]", "(a, b)", "[[0]", "a | b", "epoch 1 loss 2", "train-data loaded in 3 s"],
)
def test_what_is_none(text: str) -> None:
    assert strip_prefix(text, Clock(0)) is None


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("pss_stderr_worker_0.log", "worker:0"),
        ("tfjob_worker0.log", "worker:0"),
        ("train-ps-12", "ps:12"),
        ("chief-0.err", "chief:0"),
        ("worker_killed.log", None),
        ("maps-3.log", None),
        ("train.log", None),
    ],
)
def test_tasks_in_names(name: str, task: str | None) -> None:
    assert task_in(name) == task
