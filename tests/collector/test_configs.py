"""What the configurations promise in their comments, and that a real Collector takes them as they are."""

from __future__ import annotations

import itertools
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from otel_tf import config, semconv
from tests.collector.support import CONFIGS, ROOT, VARIABLE, clean_environment, get

OURS = ["agent", "gateway", "load-balancing", "span-metrics", "tail-sampling"]
OVERLAYS = ["span-metrics", "tail-sampling"]
#: Only the official image has its exporter; docs and the file itself say so.
NOT_RUN = "load-balancing"


def text_of(name: str) -> str:
    return (CONFIGS / f"{name}.yaml").read_text()


@pytest.mark.parametrize(
    "names",
    [
        ("agent",),
        *(
            ("gateway", *overlays)
            for count in range(len(OVERLAYS) + 1)
            for overlays in itertools.combinations(OVERLAYS, count)
        ),
    ],
    ids="+".join,
)
def test_the_collector_takes_it_without_any_variable(collector_binary, names):
    options = [part for name in names for part in ("--config", CONFIGS / f"{name}.yaml")]
    command = [collector_binary, "validate", *options]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", OURS)
def test_every_variable_is_described_on_top_with_its_default(name):
    comment, _, body = text_of(name).partition("\nservice:")
    described = dict(re.findall(r"^#   (OTEL_TF_\w+) +(\S+)", comment, re.MULTILINE))
    defaults: dict[str, set[str]] = {}
    for variable, default in VARIABLE.findall(body):
        defaults.setdefault(variable, set()).add(default)
    assert described
    assert {name: {"" if default == "none" else default} for name, default in described.items()} == defaults


def test_the_documentation_names_only_variables_and_files_that_there_are():
    known = {field.metadata["env"] for field in config.rows()}
    known |= {name for each in (*OURS, "jaeger") for name, _ in VARIABLE.findall(text_of(each))}
    text = (ROOT / "docs" / "deployment.md").read_text()
    named = set(re.findall(r"\bOTEL_TF_\w+", text))
    assert named
    assert named <= known
    for name in re.findall(r"[\w-]+\.yaml", text):
        assert (CONFIGS / name).exists(), name


def test_the_defaults_fit_together():
    defaults = {name: value for each in OURS for name, value in VARIABLE.findall(text_of(each))}
    assert defaults["OTEL_TF_AGENT_GATEWAY"] == f"http://127.0.0.1:{defaults['OTEL_TF_GATEWAY_HTTP_PORT']}"
    assert defaults["OTEL_TF_BALANCER_GATEWAY_PORT"] == defaults["OTEL_TF_GATEWAY_GRPC_PORT"]
    assert defaults["OTEL_TF_BALANCER_GATEWAY_HTTP_PORT"] == defaults["OTEL_TF_GATEWAY_HTTP_PORT"]
    jaeger = dict(VARIABLE.findall(text_of("jaeger")))
    assert defaults["OTEL_TF_GATEWAY_JAEGER"] == f"http://127.0.0.1:{jaeger['OTEL_TF_JAEGER_OTLP_HTTP_PORT']}"
    # All on one machine: only an agent and a Jaeger want the same ports, OpenTelemetry's usual ones.
    ports = [value for name, value in (defaults | jaeger).items() if name.endswith("_PORT")]
    for name in ("OTEL_TF_BALANCER_GATEWAY_PORT", "OTEL_TF_BALANCER_GATEWAY_HTTP_PORT"):
        ports.remove(defaults[name])  # the gateway's
    assert sorted(port for port in set(ports) if ports.count(port) > 1) == ["4317", "4318"]


def test_every_attribute_they_look_at_is_one_of_ours():
    known = {value for value in vars(semconv).values() if isinstance(value, str)}
    read = {
        name.rstrip(".")
        for each in OURS
        for line in text_of(each).splitlines()
        if not line.lstrip().startswith("#")
        for name in re.findall(r"\btensorflow\.[\w.]+", line)
    }
    assert semconv.RUN_ID in read
    assert read - known == set()


@pytest.mark.parametrize("names", [("agent",), ("gateway", *OVERLAYS)], ids="+".join)
def test_it_listens_on_this_machine_only_and_warns_of_nothing(collector, names):
    running = collector(*names)
    assert get(running.ports["METRICS_PORT"], "/metrics")
    pid = running.process.pid
    inode_of = {
        line.split()[9]: line.split()[1]
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        if line.split()[3] == "0A"  # LISTEN
    }
    sockets = {
        str(link.readlink()).removeprefix("socket:[").removesuffix("]")
        for link in Path(f"/proc/{pid}/fd").iterdir()
    }
    listening = {address for inode, address in inode_of.items() if inode in sockets}
    assert {address.rpartition(":")[0] for address in listening} == {"0100007F"}
    assert {int(address.rpartition(":")[2], 16) for address in listening} == set(running.ports.values())
    running.stop()
    said = running.log.read_text().splitlines()
    # gRPC itself says that there is nobody yet at the other end.
    assert [line for line in said if "\tinfo\t" not in line and "grpc_log" not in line] == []


def test_the_one_that_is_not_run_here_says_so_and_is_whole():
    text = text_of(NOT_RUN)
    assert "NOT RUN BY THIS PROJECT'S TESTS" in text
    document = yaml.safe_load(text)
    parts = {kind: set(document[kind]) for kind in ("receivers", "processors", "exporters")}
    for pipeline in document["service"]["pipelines"].values():
        for kind, there in parts.items():
            assert set(pipeline[kind]) <= there
    # The same steps at one gateway: that is what it is for.
    assert document["exporters"]["load_balancing"]["routing_key"] == "traceID"


def test_they_name_no_component_that_has_another_name_by_now(collector_binary):
    said = subprocess.check_output([collector_binary, "components"], text=True)
    names = set(re.findall(r"name: (\w+)", said)) | {"load_balancing"}
    for each in OURS:
        document = yaml.safe_load(text_of(each))
        for kind in ("receivers", "processors", "exporters", "connectors", "extensions"):
            assert {key.partition("/")[0] for key in document.get(kind, {})} <= names, each
