"""What was acknowledged a moment ago is given time to be found."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from otel_tf.telemetry import _replay
from otel_tf.telemetry._spool import SENT_SUFFIX


@pytest.mark.parametrize(
    ("age_s", "waits_s"), [(0.0, 5.0), (3.0, 2.0), (60.0, 0.0), (-3600.0, 5.0), (None, 0.0)]
)
def test_only_for_what_was_acknowledged_a_moment_ago(
    age_s: float | None, waits_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    said: list[str] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    ledger = tmp_path / f"worker-0.7{SENT_SUFFIX}"
    if age_s is not None:
        ledger.touch()
        os.utime(ledger, (time.time() - age_s,) * 2)
    files = [tmp_path / "worker-0.7.traces.jsonl", tmp_path / "worker-1.8.traces.jsonl"]
    _replay.wait_until_stored(files, said.append)
    assert sum(slept) == pytest.approx(waits_s, abs=0.5)
    assert len(said) == (waits_s > 0)
