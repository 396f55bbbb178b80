"""The configuration exists once, and says what the code and the documentation say."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest

from otel_tf.jaeger import DEFAULT_PORTS
from otel_tf.jaeger.docker import IMAGE, find_docker, run_command
from otel_tf.jaeger.process import CONFIG, UI_CONFIG

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("path", [CONFIG, UI_CONFIG], ids=lambda path: path.name)
def test_the_collector_configurations_show_the_packages_own_file(path):
    assert (ROOT / "collector-config" / path.name).resolve() == path.resolve()


def test_its_default_ports_are_ours():
    defaults = dict(re.findall(r"\$\{env:OTEL_TF_JAEGER_(\w+)_PORT:-(\d+)\}", CONFIG.read_text()))
    assert {name.lower(): int(port) for name, port in defaults.items()} == asdict(DEFAULT_PORTS)


def test_every_variable_it_reads_is_described_on_top():
    comment, _, body = CONFIG.read_text().partition("\nservice:")
    read = set(re.findall(r"\$\{env:(\w+)", body))
    assert read
    assert read == set(re.findall(r"OTEL_TF_JAEGER_\w+", comment))


def test_jaeger_accepts_it_without_any_variable(jaeger_binary, monkeypatch):
    for name in re.findall(r"\$\{env:(\w+)", CONFIG.read_text()):
        monkeypatch.delenv(name, raising=False)
    command = [jaeger_binary, "validate", "--config", CONFIG]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr


def test_links_are_made_of_the_tag_that_shows_them_and_its_neighbours():
    patterns = json.loads(UI_CONFIG.read_text())["linkPatterns"]
    for pattern in patterns:
        namespace = pattern["key"].rpartition(".")[0]
        used = re.findall(r"#\{([\w.]+)\}", pattern["url"])
        assert pattern["key"] in used
        assert all(name.startswith(namespace) for name in used)


def test_the_image_is_the_release_that_is_built_here():
    # Jaeger 2.<n> is tagged 1.<n + 63> as a Go module: v1.76.0 is 2.13.0.
    module = re.search(
        r"jaegertracing/jaeger v1\.(\d+)\.(\d+)", (ROOT / "tests/backends/jaeger/go.mod").read_text()
    )
    assert f"jaegertracing/jaeger:2.{int(module[1]) - 63}.{module[2]}" == IMAGE


def test_docker_publishes_on_this_machine_only():
    command = run_command("docker", DEFAULT_PORTS, "name")
    published = [value for option, value in itertools.pairwise(command) if option == "--publish"]
    assert sorted(published) == sorted(f"127.0.0.1:{port}:{port}" for port in asdict(DEFAULT_PORTS).values())
    assert command[command.index(IMAGE) + 1 :] == ["--config", "/etc/otel-tf/jaeger.yaml"]


def test_a_docker_client_without_an_engine_is_no_docker(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    assert find_docker() is None


def test_a_machine_without_docker(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_docker() is None
