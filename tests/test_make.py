"""What make says on a machine where it cannot work, and the virtual environment it makes where it can."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def clone(tmp_path):
    """A folder with what make reads first."""
    for name in ("Makefile", "pyproject.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    return tmp_path


def make(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    # This may itself run under make, whose variables must not reach the inner one.
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(
        command, cwd=folder, env=outside | variables, capture_output=True, text=True, check=False
    )


def python_without(module: str, folder: Path) -> str:
    """Returns a Python that lacks one module of the standard library, as Debian packages it."""
    (folder / "lacking").mkdir()
    (folder / "lacking" / f"{module}.py").write_text("raise ImportError('not packaged')\n")
    wrapper = folder / "lacking-python"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH={folder}/lacking exec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    return str(wrapper)


@pytest.mark.parametrize("goal", ["test", "demo"])
def test_a_python_without_ensurepip_is_told_what_to_install(clone, goal):
    python = python_without("ensurepip", clone)
    done = make(clone, goal, PYTHON=python, PATH="/usr/bin:/bin")
    assert done.returncode == 2
    assert f"{python} cannot make virtual environments; on Debian and Ubuntu: apt install" in done.stderr
    assert not (clone / ".venv").exists()


def test_a_python_that_is_too_old_is_refused(clone):
    done = make(clone, "test", PYTHON="false")
    assert done.returncode == 2
    assert "otel-tf needs Python 3.10 or newer" in done.stderr
    assert not (clone / ".venv").exists()


@pytest.mark.parametrize("how", ["variable", "argument"])
def test_the_python_that_is_named_is_used(clone, how):
    named = {"PYTHON": sys.executable}
    arguments = [] if how == "variable" else [f"PYTHON={sys.executable}"]
    done = make(
        clone, ".venv/bin/python", *arguments, **(named if how == "variable" else {"PYTHON": "false"})
    )
    assert done.returncode == 0, done.stderr
    asked = [clone / ".venv/bin/python", "-c", "import sys; print(sys.base_prefix); import pip"]
    assert subprocess.check_output(asked, text=True).strip() == sys.base_prefix


def test_help_names_every_command(clone):
    said = make(clone).stdout
    goals = (ROOT / "Makefile").read_text().partition(".PHONY:")[2].splitlines()[0].split()
    assert {line.split()[1] for line in said.splitlines()} == set(goals) - {"help"}
