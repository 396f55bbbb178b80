from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from otel_tf import _guard
from otel_tf._guard import Guard


@pytest.fixture(autouse=True)
def production(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_guard, "_reported", set())
    before = _guard.strict(False)
    yield
    _guard.strict(before)


def test_a_failure_is_logged_once_for_a_place(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        with Guard("here"):
            raise ValueError("broken")
    with Guard("there"):
        raise ValueError("broken too")
    assert [message.partition(" ")[0] for message in caplog.messages] == ["here", "there"]
    assert all(record.exc_info for record in caplog.records)
    assert {(record.name, record.levelno) for record in caplog.records} == {("otel_tf", logging.WARNING)}


def test_as_a_decorator() -> None:
    @Guard("a function")
    def divide(a: int, b: int) -> float:
        return a / b

    assert divide(1, 2) == 0.5
    assert divide(1, 0) is None


def test_under_test_it_raises() -> None:
    assert _guard.strict(True) is False
    assert _guard.is_strict()
    with pytest.raises(ValueError, match="broken"), Guard("here"):
        raise ValueError("broken")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_interrupts_pass(kind: type[BaseException]) -> None:
    with pytest.raises(kind), Guard("here"):
        raise kind


@pytest.mark.parametrize(("value", "expected"), [("true", "True"), ("", "False"), ("1", "False")])
def test_the_variable_for_child_processes(value: str, expected: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from otel_tf import _guard; print(_guard.is_strict())"],
        env={**os.environ, "OTEL_TF_TESTING": value},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == expected
