"""When this process takes its own profile, what becomes of it, and who comes first."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.profiler.internal import _pywrap_profiler

import otel_tf
from otel_tf import _guard
from otel_tf.errors import UserError
from otel_tf.instrumentation.profiler.sessions import profiles_in
from tests.instrumentation.conftest import Capture, original_of
from tests.instrumentation.profiler.xplane import events
from tests.spool import SpooledSpan

PATIENCE_S = 20.0


class Trainer:
    """Steps of a few ms each."""

    def __init__(self) -> None:
        self.weight = tf.Variable(1.0)
        self.pause_s = 0.002

        @tf.function
        def train() -> None:
            self.weight.assign_sub(0.001)

        self.train = train

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.train()
            time.sleep(self.pause_s)

    def until(self, done: Any) -> None:
        """Trains until something is the case."""
        limit = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < limit, "it never came"
            self.run(10)


@pytest.fixture
def trainer() -> Trainer:
    return Trainer()


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Instruments with settings of the test's own."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    before = _guard.strict(True)

    class Started(Capture):
        def __init__(self, **settings: Any) -> None:
            self.handle = otel_tf.instrument(run_id="test", run_dir=tmp_path / "run", **settings)

        @property
        def files(self) -> list[Path]:
            return profiles_in(self.handle.run_dir)

        @property
        def taken(self) -> list[SpooledSpan]:
            return self.spans("profile.capture")

        def profiling(self) -> bool:
            return any(thread.name == "otel-tf profile" for thread in threading.enumerate())

    try:
        yield Started
    finally:
        otel_tf.uninstrument()
        _guard.strict(before)


def numbers(profile: Path) -> list[int]:
    return [event.stats["step_num"] for event in events(profile) if "otel_span" in event.stats]


def test_by_number(start: Any, trainer: Trainer) -> None:
    started = start(profile="every=300,steps=5")
    trainer.run(1000)
    trainer.until(lambda: not started.profiling())
    spans = {span.attributes["tensorflow.profiler.session"]: span for span in started.taken}
    assert list(spans)[:3] == ["step-300", "step-600", "step-900"]
    for name, span in list(spans.items())[:3]:
        file = started.handle.run_dir / "profiles" / "plugins" / "profile" / name / "local-0.xplane.pb"
        wanted = int(name.partition("-")[2])
        assert set(range(wanted, wanted + 5)) <= set(numbers(file))
        # As few more as the time that it takes to begin.
        assert len(numbers(file)) < 250
        assert span.attributes["tensorflow.profile.reason"] == "every"
        assert span.attributes["tensorflow.profile.size"] == file.stat().st_size
        assert span.attributes["tensorflow.step.before"] < wanted
        assert span.attributes["tensorflow.step.after"] >= wanted + 4
    # Nothing but the profiles stays.
    left = [path.name for path in (started.handle.run_dir / "profiles").rglob("*") if path.is_file()]
    assert set(left) == {"local-0.xplane.pb"}


def test_by_default_none_is_taken(start: Any, trainer: Trainer) -> None:
    started = start()
    trainer.run(700)
    assert started.files == []
    assert not (started.handle.run_dir / "profiles").exists()


def test_on_demand_by_a_file(start: Any, trainer: Trainer) -> None:
    started = start()
    trainer.run(10)
    started.handle.flush(10)
    (started.handle.run_dir / "profile.request").touch()
    trainer.until(lambda: started.files)
    trainer.until(lambda: not started.profiling())
    (span,) = started.taken
    assert span.attributes["tensorflow.profile.reason"] == "request"
    assert span.attributes["tensorflow.profiler.session"].startswith("request-2")
    assert span.end_ns - span.start_ns >= 2_000_000_000
    assert len(numbers(started.files[0])) > 10
    trainer.run(600)
    assert len(started.files) == 1


def test_on_demand_by_a_signal_and_the_programs_own_handler(start: Any, trainer: Trainer) -> None:
    heard: list[int] = []

    def own(number: int, _: Any) -> None:
        heard.append(number)

    before = signal.signal(signal.SIGUSR2, own)
    try:
        started = start(profile_signal="USR2")
        trainer.run(10)
        signal.raise_signal(signal.SIGUSR2)
        trainer.until(lambda: started.files)
        assert heard == [signal.SIGUSR2]
        otel_tf.uninstrument()
        assert signal.getsignal(signal.SIGUSR2) is own
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_when_steps_become_slow(start: Any, trainer: Trainer) -> None:
    started = start(profile="on-slow")
    trainer.run(200)
    assert not started.profiling()

    @tf.function
    def slow() -> None:
        trainer.weight.assign_sub(0.001)
        tf.py_function(lambda: time.sleep(0.02), [], [])

    trainer.train = slow
    trainer.until(lambda: started.files)
    trainer.until(lambda: not started.profiling())
    (span,) = started.taken
    assert span.attributes["tensorflow.profile.reason"] == "slow"


def test_a_profile_of_the_programs_own_is_left_alone(start: Any, trainer: Trainer, tmp_path: Path) -> None:
    started = start(profile="every=100")
    tf.profiler.experimental.start(str(tmp_path / "own"))
    trainer.run(400)
    tf.profiler.experimental.stop()
    assert started.files == []
    assert started.taken == []
    assert numbers(next((tmp_path / "own").rglob("*.pb"))) == list(range(1, 401))
    trainer.until(lambda: started.files)


def test_ours_ends_when_the_program_begins_one(start: Any, trainer: Trainer, tmp_path: Path) -> None:
    started = start()
    trainer.run(10)
    started.handle.flush(10)
    (started.handle.run_dir / "profile.request").touch()
    trainer.until(started.profiling)
    time.sleep(0.3)
    tf.profiler.experimental.start(str(tmp_path / "own"))
    trainer.run(50)
    tf.profiler.experimental.stop()
    assert len(numbers(next((tmp_path / "own").rglob("*.pb")))) == 50
    trainer.until(lambda: not started.profiling())
    assert started.files == []
    assert started.taken == []
    assert list((started.handle.run_dir / "profiles").rglob("*/.*")) == []


def test_the_time_of_one_is_limited(start: Any, trainer: Trainer) -> None:
    started = start(profile="every=100,steps=100000", profile_limit_ms=700)
    trainer.run(100)
    trainer.until(lambda: started.files)
    otel_tf.uninstrument()
    (span, *_) = [span for span in read(started) if span.name == "profile.capture"]
    assert 600 < (span.end_ns - span.start_ns) / 1e6 < 3000


def read(started: Any) -> list[SpooledSpan]:
    from tests.spool import spans

    return spans(started.handle.run_dir)


def test_the_size_of_all_is_limited(start: Any, trainer: Trainer, caplog: pytest.LogCaptureFixture) -> None:
    started = start(profile="every=50", profile_max_size_mb=0)
    with caplog.at_level(logging.WARNING, logger="otel_tf"):
        trainer.run(300)
    assert started.files == []
    assert caplog.text.count("OTEL_TF_PROFILE_MAX_SIZE") == 1


def test_an_exit_keeps_what_was_taken(start: Any, trainer: Trainer) -> None:
    started = start()
    trainer.run(10)
    started.handle.flush(10)
    (started.handle.run_dir / "profile.request").touch()
    trainer.until(started.profiling)
    trainer.run(100)
    otel_tf.uninstrument()
    assert len(started.files) == 1
    assert [span.name for span in read(started)].count("profile.capture") == 1


def test_another_life_of_the_process_overwrites_nothing(start: Any, trainer: Trainer) -> None:
    first = start(profile="every=100,steps=1")
    trainer.until(lambda: first.files)
    otel_tf.uninstrument()
    kept = {file: file.read_bytes() for file in first.files}
    second = start(profile="every=100,steps=1")
    # Its steps are counted from 1 again.
    trainer.until(lambda: any(file.parent.name.endswith("00-2") for file in second.files))
    assert {file: file.read_bytes() for file in kept} == kept


def test_a_bad_policy_is_named(start: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    with pytest.raises(UserError, match=r"profile='often' \(OTEL_TF_PROFILE\) cannot be used"):
        start(profile="often")
    with pytest.raises(UserError, match=r"profile_signal='x' \(OTEL_TF_PROFILE_SIGNAL\)"):
        start(profile_signal="x")
    monkeypatch.setenv("OTEL_TF_PROFILE", "often")
    start()
    assert "OTEL_TF_PROFILE='often' is ignored" in caplog.text


def test_it_is_undone(start: Any) -> None:
    before = _pywrap_profiler.ProfilerSession
    start()
    assert original_of(_pywrap_profiler, "ProfilerSession") is before
    otel_tf.uninstrument()
    assert _pywrap_profiler.ProfilerSession is before
