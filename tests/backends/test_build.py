"""The builder of the servers that the tests use, run as make and pytest run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from otel_tf.jaeger import find_binary

BUILDER = Path(__file__).with_name("build.py")

# Says which Go it is, and builds by writing a program that takes a while: Jaeger where -o says, the
# Collector where its builder's configuration says. A sleep of its own is what `go run` leaves behind.
GO = """#!/bin/sh
case "$1" in
  version) echo "go version go{version} linux/amd64"; exit;;
  build) while [ "$1" != -o ]; do shift; done; to=$2;;
  run) mkdir collector; to=collector/otel-tf-collector;;
esac
echo build >> "{log}"
sleep {seconds} &
echo $! > "{log}.pid"
wait
printf '#!/bin/sh\\n' > "$to"; chmod +x "$to"
{then}
"""


def is_running(pid: int) -> bool:
    """Returns whether a process runs; one that ended and nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


SERVERS = {"jaeger": ("Jaeger", "5 minutes", "1.25"), "collector": ("the Collector", "3 minutes", "1.26")}


@pytest.fixture(params=list(SERVERS))
def server(request):
    """The server to build, and how the builder speaks of it."""
    return request.param


@pytest.fixture
def machine(tmp_path, server):
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

        def put_go(self, version: str = "1.26.0", seconds: float = 0, then: str = "exit 0") -> None:
            go = tmp_path / "bin" / "go"
            go.write_text(GO.format(version=version, seconds=seconds, log=self.builds, then=then))
            go.chmod(0o755)

        def start(self, **variables: str) -> subprocess.Popen[str]:
            return subprocess.Popen(
                [sys.executable, BUILDER, server],
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


def test_without_go_it_says_so_in_one_line_and_leaves_nothing(machine, server):
    code, out, err = machine.build(PATH="/nonexistent")
    title, _, go = SERVERS[server]
    assert (code, out) == (3, "")
    assert err == (
        f"No {title.split()[-1]} to test against: Go is not installed "
        f"({title} is built from source by Go >= {go}).\n"
    )
    assert not machine.cache.exists()


def test_an_older_go_is_named(machine):
    machine.put_go(version="1.19.8")
    code, out, err = machine.build()
    assert (code, out) == (3, "")
    assert "Go 1.19 is too old" in err


def test_a_binary_that_is_given_is_taken(machine, server, tmp_path):
    given = {f"OTEL_TF_{server.upper()}_BIN": str(tmp_path / "program")}
    code, out, _ = machine.build(PATH="/nonexistent", **given)
    assert (code, out) == (0, str(tmp_path / "program"))


def test_it_builds_once_and_says_how_long_that_takes(machine, server):
    machine.put_go()
    code, out, err = machine.build()
    assert code == 0
    assert f"about {SERVERS[server][1]}" in err
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


def test_a_build_that_is_stopped_leaves_no_half_of_one_and_no_process(machine, server):
    machine.put_go(seconds=60)
    with machine.start() as builder:
        assert f"about {SERVERS[server][1]}" in builder.stderr.readline()
        pid = machine.builds.with_name("builds.pid")
        deadline = time.monotonic() + 20
        while not (pid.exists() and pid.read_text().strip()):
            assert time.monotonic() < deadline, "go was not started"
            time.sleep(0.02)
        builder.terminate()
    assert builder.returncode == 1
    assert machine.left() == ["lock"]
    while is_running(int(pid.read_text())):
        assert time.monotonic() < deadline, "what go had started goes on"
        time.sleep(0.02)


def test_another_server_is_refused():
    command = [sys.executable, BUILDER, "zipkin"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "zipkin: no such server; there are jaeger and collector\n"


def test_the_collector_that_was_built_has_the_parts_that_are_listed(collector_binary):
    if "OTEL_TF_COLLECTOR_BIN" in os.environ:
        pytest.skip("OTEL_TF_COLLECTOR_BIN is set, so nothing was built")
    said = subprocess.check_output([collector_binary, "components"], text=True)
    listed = (BUILDER.parent / "collector" / "builder.yaml").read_text()
    for module in re.findall(r"gomod: (\S+) (v\S+)", listed):
        assert "module: {} {}".format(*module) in said
