"""The `otel-tf jaeger` command, as a script or a person runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

DEADLINE_S = 20


def command(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "otel_tf", "jaeger", *arguments],
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/api/v3/services") as response:
            return isinstance(json.load(response), dict)  # an unknown path would answer with a page
    except urllib.error.URLError:
        return False


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_it_runs_until_it_is_told_to_end(jaeger_binary, signum):
    with command("--free-ports", "--format", "json", OTEL_TF_JAEGER_BIN=str(jaeger_binary)) as running:
        try:
            rows = json.loads(running.stdout.readline())
            assert rows.keys() >= {"ui", "otlp_grpc", "otlp_http"}
            assert is_up(rows["ui"])
        finally:
            running.send_signal(signum)
        out, err = running.communicate(timeout=DEADLINE_S)
    assert out == ""
    assert "Ctrl-C ends it" in err
    assert running.returncode == 0
    assert not is_up(rows["ui"])
    assert not Path(rows["log_file"]).exists()


def test_it_can_be_left_running_and_ended_as_it_says(jaeger_binary, tmp_path):
    variables = {"OTEL_TF_JAEGER_BIN": str(jaeger_binary), "TMPDIR": str(tmp_path)}
    with command("--free-ports", "--detach", **variables) as starter:
        out, err = starter.communicate(timeout=DEADLINE_S)
    assert starter.returncode == 0
    rows = dict(line.split(maxsplit=1) for line in out.splitlines())
    try:
        assert f"`kill {rows['pid']}` ends it" in err
        assert is_up(rows["ui"])
    finally:
        os.kill(int(rows["pid"]), signal.SIGTERM)


def test_a_port_in_use_ends_it_with_one_line(jaeger_binary, module_jaeger):
    variables = {"OTEL_TF_JAEGER_BIN": str(jaeger_binary)}
    with command("--free-ports", "--ui-port", str(module_jaeger.ports.ui), **variables) as failing:
        _, err = failing.communicate(timeout=DEADLINE_S)
    assert failing.returncode == 2
    assert f"otel-tf: port {module_jaeger.ports.ui} (ui) is in use" in err


def test_a_number_that_is_no_port_is_named():
    with command("--ui-port", "70000") as failing:
        _, err = failing.communicate(timeout=DEADLINE_S)
    assert failing.returncode == 2
    assert err == "otel-tf: --ui-port 70000: not a port (1 to 65535)\n"


def test_with_nothing_at_hand_it_says_what_to_do(tmp_path):
    nothing = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "OTEL_TF_JAEGER_BIN": ""}
    with command(**nothing) as failing:
        out, err = failing.communicate(timeout=DEADLINE_S)
    assert (failing.returncode, out) == (2, "")
    assert err.startswith("otel-tf: no Jaeger 2 binary and no running Docker engine here.")
    assert "make jaeger" in err
    assert "docker run --rm --name jaeger --publish 127.0.0.1:16686:16686" in err
    assert "OTEL_TF_JAEGER_BIN" in err
