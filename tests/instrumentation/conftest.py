"""Instrumenting the test's own process, and reading what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import otel_tf
from otel_tf import _guard
from tests.spool import SpooledSpan, spans


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
    captured = Capture(tmp_path)
    try:
        yield captured
    finally:
        captured.handle.uninstrument()
        _guard.strict(before)
