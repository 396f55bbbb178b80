"""docker-compose.yml: what Docker Compose says of it, and the same services run as processes."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from otel_tf.correlator import correlate
from otel_tf.errors import UserError
from otel_tf.jaeger.docker import IMAGE
from tests.collector.compose import COMPOSE_FILE, Stack, resolved
from tests.collector.support import HOST, ROOT, get, samples, spans_in_files, until

STEPS = 300
DOCKERFILE = ROOT / "docker" / "Dockerfile"

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="platform: PyPI has the real docker-compose for x86-64 Linux only",
)


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    return resolved()


def test_compose_refuses_a_file_that_is_wrong(tmp_path, monkeypatch):
    wrong = tmp_path / "docker-compose.yml"
    wrong.write_text(COMPOSE_FILE.read_text().replace("    healthcheck:\n", "    healthchecks:\n"))
    monkeypatch.setattr("tests.collector.compose.COMPOSE_FILE", wrong)
    with pytest.raises(subprocess.CalledProcessError) as refused:
        resolved()
    assert "healthchecks" in refused.value.stderr


def test_images_are_the_releases_that_are_tested(config):
    images = {service["image"] for service in config["services"].values()}
    builder = (ROOT / "tests/backends/collector/builder.yaml").read_text()
    (release,) = set(re.findall(r"gomod: \S+ v(0\S+)", builder))
    assert images == {IMAGE, f"otel/opentelemetry-collector-contrib:{release}", "otel-tf-training"}


def test_it_is_published_on_this_machine_only(config):
    ports = [port for service in config["services"].values() for port in service.get("ports", [])]
    assert {port["target"] for port in ports} == {16686, 8889, 4317, 4318}
    assert {port["host_ip"] for port in ports} == {HOST}


def test_every_file_that_is_mounted_or_named_is_there(config):
    for name, service in config["services"].items():
        mounts = {mount["target"]: mount for mount in service.get("volumes", [])}
        for mount in mounts.values():
            if mount["type"] == "bind":
                assert Path(mount["source"]).is_file()
                assert mount["read_only"]
        named = re.findall(
            r"/etc/otel-tf/[\w.-]+", json.dumps([service["command"], service.get("environment")])
        )
        assert set(named) <= set(mounts), name


def test_all_tasks_agree_on_the_cluster(config):
    tasks = [
        json.loads(service["environment"]["TF_CONFIG"])
        for service in config["services"].values()
        if "TF_CONFIG" in service.get("environment", {})
    ]
    clusters = {json.dumps(task["cluster"], sort_keys=True) for task in tasks}
    assert len(clusters) == 1
    cluster = tasks[0]["cluster"]
    mine = [cluster[task["task"]["type"]][task["task"]["index"]] for task in tasks]
    assert sorted(mine) == sorted(address for addresses in cluster.values() for address in addresses)
    # Each task is where the cluster says it is.
    assert {address.partition(":")[0] for address in mine} <= set(config["services"])


def test_only_variables_that_somebody_reads_are_set(config):
    from otel_tf import config as settings

    read = {field.metadata["env"] for field in settings.rows()}
    for path in (*ROOT.glob("collector-config/*.yaml"),):
        read |= set(re.findall(r"\$\{env:(\w+)", path.read_text()))
    given = {name for service in config["services"].values() for name in service.get("environment", {})}
    assert {name for name in given if name.startswith("OTEL_TF_")} <= read


def test_the_image_has_what_installing_needs(tmp_path):
    copied = re.findall(r"^COPY (.+) (/src/\S*)$", DOCKERFILE.read_text(), re.MULTILINE)
    ignore = (ROOT / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    for names, to in copied:
        for name in names.split():
            assert f"!{name}" in ignore
            target = tmp_path / to.removeprefix("/src/")
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, target)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path / "site"]
    subprocess.run([*command, tmp_path], check=True)
    assert (tmp_path / "site" / "otel_tf" / "instrumentation" / "demo_job.py").is_file()
    assert "[demo]" in DOCKERFILE.read_text()


def test_the_comment_on_top_names_the_variables_and_their_defaults():
    comment, _, body = COMPOSE_FILE.read_text().partition("\nname:")
    described = dict(re.findall(r"^#   ([A-Z_]+) +(\S+)  ", comment, re.MULTILINE))
    assert described == dict(re.findall(r"\$\{(\w+):-(\w+)\}", body))


@pytest.fixture(scope="module")
def stack(tmp_path_factory, jaeger_binary, collector_binary):
    binaries = {
        IMAGE.partition(":")[0]: jaeger_binary,
        "otel/opentelemetry-collector-contrib": collector_binary,
    }
    running = Stack(tmp_path_factory.mktemp("compose"), binaries, STEPS=str(STEPS), OTEL_TF_RUN_ID="r1")
    try:
        running.up()
        running.services["correlate"].wait()
        yield running
    finally:
        running.down()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_training_ends_and_its_spans_are_everywhere(stack):
    trained = stack.services["chief"].log.read_text().splitlines()
    result = next(json.loads(line) for line in reversed(trained) if line.startswith("{"))
    assert result["closures"] == STEPS
    assert result["accuracy"] > 0.8

    runs = stack.folder / "volumes" / "runs"
    spooled = spans_in_files(runs / "spool" / "r1")
    assert spooled.total() > 3 * STEPS
    assert set(spooled.values()) == {1}
    until(lambda: spans_in_files(runs / "gateway" / "r1") == spooled, "every span in the gateway's files")

    source = f"jaeger+http://{HOST}:{stack.port('jaeger', 16686)}?run=r1"
    until(lambda: spans_read(source) == spooled.total(), "every span in Jaeger")
    orders = [correlate(each) for each in (source, str(runs / "spool" / "r1"), str(runs / "gateway" / "r1"))]
    assert [each.report["violations"] for each in orders] == [0, 0, 0]
    assert len({tuple(each.spans["span_id"].to_pylist()) for each in orders}) == 1


def spans_read(source: str) -> int:
    try:
        return int(correlate(source).report["spans"])
    except UserError:  # nothing is there yet
        return 0


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_jaeger_shows_it_in_causal_order_and_prometheus_sees_the_workers(stack):
    services = json.loads(get(stack.port("jaeger", 16686), "/api/services"))["data"]
    assert {"mnist", "mnist.logical worker:0", "mnist.logical worker:1"} <= set(services)

    def steps() -> dict[str, float]:
        page = samples(get(stack.port("gateway", 8889), "/metrics"))
        return {
            each.labels["tensorflow_worker"]: each.value
            for each in page
            if each.name == "traces_span_metrics_calls_total" and each.labels["span_name"] == "train_step"
        }

    until(lambda: sum(steps().values()) == STEPS, "every step on the page for Prometheus")
    assert set(steps()) == {"worker:0", "worker:1"}


@pytest.mark.slow
def test_everything_still_runs_when_the_training_has_ended(stack):
    for name in ("jaeger", "gateway", "agent", "ps-0", "worker-0", "worker-1"):
        stack.services[name].check_running()
