"""Which Jaeger is taken, of those that a machine may have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from otel_tf.errors import UserError
from otel_tf.jaeger import find_binary


def program(path: Path, text: str = "exit 1") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def empty_machine(tmp_path, monkeypatch):
    """Neither a variable nor a PATH nor a cache that knows of a Jaeger."""
    (tmp_path / "bin").mkdir()
    monkeypatch.delenv("OTEL_TF_JAEGER_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_a_machine_without_any():
    assert find_binary() is None


def test_the_variable_comes_first(tmp_path, monkeypatch, jaeger_binary):
    (tmp_path / "bin" / "jaeger").symlink_to(jaeger_binary)
    given = program(tmp_path / "given")
    monkeypatch.setenv("OTEL_TF_JAEGER_BIN", str(given))
    assert find_binary() == given


@pytest.mark.parametrize("kind", ["absent", "not executable", "folder"])
def test_a_variable_that_names_no_program_is_an_error(tmp_path, monkeypatch, kind):
    path = tmp_path / "given"
    if kind == "folder":
        path.mkdir()
    elif kind == "not executable":
        path.write_text("")
    monkeypatch.setenv("OTEL_TF_JAEGER_BIN", str(path))
    with pytest.raises(UserError, match=f"OTEL_TF_JAEGER_BIN={path}"):
        find_binary()


def test_an_empty_variable_counts_as_unset(monkeypatch):
    monkeypatch.setenv("OTEL_TF_JAEGER_BIN", "")
    assert find_binary() is None


def test_a_jaeger_2_on_the_path_comes_before_the_cache(tmp_path, jaeger_binary):
    program(tmp_path / "cache" / "otel-tf" / "jaeger-a" / "jaeger")
    (tmp_path / "bin" / "jaeger").symlink_to(jaeger_binary)
    assert find_binary() == tmp_path / "bin" / "jaeger"


@pytest.mark.parametrize("text", ["echo 'Jaeger all-in-one distribution'", "exit 1", "kill -KILL $$"])
def test_another_jaeger_on_the_path_is_passed_over(tmp_path, text):
    program(tmp_path / "bin" / "jaeger", text)
    assert find_binary() is None


def test_the_newest_of_the_cache_is_taken(tmp_path):
    cache = tmp_path / "cache" / "otel-tf"
    for age, name in enumerate(["jaeger-b", "jaeger-a", "jaeger-c"]):
        binary = program(cache / name / "jaeger")
        os.utime(binary, (1_700_000_000 - age, 1_700_000_000 - age))
    (cache / "jaeger-d").mkdir()  # a build that has not come to an end
    assert find_binary() == cache / "jaeger-b" / "jaeger"


def test_without_the_cache_variable_the_home_folder_has_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    binary = program(tmp_path / "home" / ".cache" / "otel-tf" / "jaeger-a" / "jaeger")
    assert find_binary() == binary
