"""The builder of the Jaeger that the tests use, run as make and pytest run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from otel_tf.jaeger import find_binary

BUILDER = Path(__file__).with_name("build.py")

# Says which Go it is, and builds by writing a program that takes a while.
GO = """#!/bin/sh
case "$1" in
  version) echo "go version go{version} linux/amd64";;
  build)
    echo build >> "{log}"
    sleep {seconds}
    while [ "$1" != -o ]; do shift; done
    printf '#!/bin/sh\\n' > "$2"; chmod +x "$2"
    {then};;
esac
"""


@pytest.fixture
def machine(tmp_path):
    """A machine with an empty cache; `go` is put onto it by a test."""
    (tmp_path / "bin").mkdir()
    environment = {
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HOME": str(tmp_path),
    }

    class Machine:
        builds = tmp_path / "builds"
        cache = tmp_path / "cache" / "otel-tf"

        def put_go(self, version: str = "1.25.0", seconds: float = 0, then: str = "exit 0") -> None:
            go = tmp_path / "bin" / "go"
            go.write_text(GO.format(version=version, seconds=seconds, log=self.builds, then=then))
            go.chmod(0o755)

        def start(self, **variables: str) -> subprocess.Popen[str]:
            return subprocess.Popen(
                [sys.executable, BUILDER],
                env=environment | variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )

        def build(self, **variables: str) -> tuple[int, str, str]:
            with self.start(**variables) as builder:
                out, err = builder.communicate()
            return builder.returncode, out.strip(), err

        def left(self) -> list[str]:
            return sorted(path.name for path in self.cache.rglob("*") if path.is_file())

    return Machine()


def test_what_it_built_is_what_the_package_finds(jaeger_binary, monkeypatch):
    if "OTEL_TF_JAEGER_BIN" in os.environ:
        pytest.skip("OTEL_TF_JAEGER_BIN is set, so nothing was built")
    monkeypatch.setenv("PATH", "/nonexistent")
    found = find_binary()
    assert found.parent.parent == jaeger_binary.parent.parent
    assert jaeger_binary.name == found.name


def test_without_go_it_says_so_in_one_line_and_leaves_nothing(machine):
    code, out, err = machine.build(PATH="/nonexistent")
    assert (code, out) == (3, "")
    assert err == (
        "No Jaeger to test against: Go is not installed (Jaeger is built from source by Go >= 1.25).\n"
    )
    assert not machine.cache.exists()


def test_an_older_go_is_named(machine):
    machine.put_go(version="1.19.8")
    code, out, err = machine.build()
    assert (code, out) == (3, "")
    assert "Go 1.19 is too old" in err


def test_a_binary_that_is_given_is_taken(machine, tmp_path):
    code, out, _ = machine.build(PATH="/nonexistent", OTEL_TF_JAEGER_BIN=str(tmp_path / "jaeger"))
    assert (code, out) == (0, str(tmp_path / "jaeger"))


def test_it_builds_once_and_says_how_long_that_takes(machine):
    machine.put_go()
    code, out, err = machine.build()
    assert code == 0
    assert "about 5 minutes" in err
    assert Path(out).parent.parent == machine.cache
    assert os.access(out, os.X_OK)
    assert machine.build() == (0, out, "")
    assert machine.builds.read_text().splitlines() == ["build"]


def test_two_at_once_build_once(machine):
    machine.put_go(seconds=1)
    with machine.start() as one, machine.start() as two:
        answers = [builder.communicate() for builder in (one, two)]
    assert (one.returncode, two.returncode) == (0, 0)
    assert answers[0][0] == answers[1][0]
    assert any("waiting for it" in err for _, err in answers)
    assert machine.builds.read_text().splitlines() == ["build"]


def test_a_build_that_fails_is_told_and_leaves_no_binary(machine):
    machine.put_go(then="echo 'no space left' >&2; exit 1")
    code, out, err = machine.build()
    assert (code, out) == (1, "")
    assert "no space left" in err
    assert machine.left() == ["lock"]


def test_a_build_that_is_stopped_leaves_no_half_of_one(machine):
    machine.put_go(seconds=60)
    with machine.start() as builder:
        assert "about 5 minutes" in builder.stderr.readline()
        builder.terminate()
    assert builder.returncode == 1
    assert machine.left() == ["lock"]
