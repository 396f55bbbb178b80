"""Instrumenting the test's own process, and reading what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import otel_tf
from otel_tf import _guard
from tests.spool import SpooledSpan, spans


@pytest.fixture(autouse=True, scope="session")
def two_devices() -> None:
    """Splits the processor in two for MirroredStrategy; TensorFlow allows it only before it is used."""
    (processor,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * 2)


class Capture:
    """A running instrumentation whose spans can be read at any time."""

    def __init__(self, folder: Path) -> None:
        self.handle = otel_tf.instrument(run_id="test", run_dir=folder)

    def spans(self, name: str | None = None) -> list[SpooledSpan]:
        assert self.handle.flush(10.0)
        return spans(self.handle.run_dir, name)


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Capture]:
    """Instruments this process for one test, with every guard raising."""
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    before = _guard.strict(True)
    captured = Capture(tmp_path / "run")
    try:
        yield captured
    finally:
        captured.handle.uninstrument()
        _guard.strict(before)


def original_of(owner: Any, name: str) -> Any:
    """What stands behind a wrapped attribute; fails where it is not wrapped."""
    return vars(owner)[name].__wrapped__
