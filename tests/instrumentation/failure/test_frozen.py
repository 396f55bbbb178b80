"""A parameter server that does not answer must not hold up an exception."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from otel_tf.demo.clocks import FalseClock, FalseClocks
from otel_tf.demo.cluster import Cluster

PROGRAM = [str(Path(__file__).with_name("frozen_program.py"))]


@pytest.mark.slow
def test_a_parameter_server_that_is_frozen(tmp_path: Path) -> None:
    environment = {
        "OTEL_TF_RUN_ID": "test",
        "OTEL_TF_RUN_DIR": str(tmp_path),
        "OTEL_TF_TESTING": "true",
        "OTEL_TF_CLOCK_PROBE_INTERVAL": "0",
        "OTEL_TRACES_EXPORTER": "none",
        "TF_CPP_MIN_LOG_LEVEL": "1",
    }
    clocks = FalseClocks(None, "not wanted")
    cluster = Cluster(1, tmp_path, environment, clocks, lambda _: FalseClock(0.0, 0.0))
    frozen = tmp_path / "frozen"
    stopped: list[int] = []

    def freeze(_: int) -> None:
        stopped.append(cluster.servers["ps:0"].pid)
        os.kill(stopped[0], signal.SIGSTOP)
        frozen.touch()

    try:
        said = cluster.run([str(frozen)], freeze, PROGRAM)
    finally:
        for pid in stopped:
            if cluster.servers["ps:0"].poll() is None:
                os.kill(pid, signal.SIGCONT)
    # The batch was looked at; the variable could not be, and nobody waited longer than is allowed.
    assert said["tensorflow.failure.tensors"] == 1
    assert said["tensorflow.failure.left_out"] == 1
    assert 2.0 <= said["took_s"] < 10.0
    assert len(Path(said["tensorflow.failure.file"]).read_text().splitlines()) == 1
