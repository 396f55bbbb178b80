from __future__ import annotations

import dataclasses
import datetime
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from otel_tf import config
from otel_tf.identity import Identity, identify
from otel_tf.telemetry import _resource
from otel_tf.telemetry._resource import own_attributes, task_attributes


@pytest.fixture
def identity() -> Identity:
    one = identify(config.resolve({}, run_id="r"), environ={})
    return dataclasses.replace(one, task_type="worker", task_index=1, cluster_size=3, strategy="Mirrored")


def test_what_is_known_is_said(identity: Identity) -> None:
    found = own_attributes(identity)
    assert found["service.instance.id"] == "r/worker:1"
    assert found["host.name"] == identity.host_name
    assert found["process.pid"] == os.getpid()
    assert {key: value for key, value in found.items() if key.startswith("tensorflow.")} == {
        "tensorflow.run.id": "r",
        "tensorflow.strategy": "Mirrored",
        "tensorflow.task.type": "worker",
        "tensorflow.task.index": 1,
        "tensorflow.cluster.size": 3,
        "tensorflow.clock.domain": identity.clock_domain,
        "tensorflow.version": _resource._tensorflow_version(),
    }
    assert found["telemetry.sdk.name"] == "opentelemetry"
    assert not any(key.startswith("k8s.") for key in found)


def test_when_the_process_began(identity: Identity) -> None:
    created = datetime.datetime.fromisoformat(
        own_attributes(identity)["process.creation.time"].replace("Z", "+00:00")
    )
    age = datetime.datetime.now(datetime.timezone.utc) - created
    assert datetime.timedelta(seconds=-2) < age < datetime.timedelta(hours=10)


def test_the_environments_attributes_win(identity: Identity, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "OTEL_RESOURCE_ATTRIBUTES",
        "host.name=named,team=vision%201,service.instance.id=pod-7,tensorflow.run.id=no",
    )
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mnist")
    found = own_attributes(identity)
    assert (found["service.name"], found["host.name"], found["team"]) == ("mnist", "named", "vision 1")
    assert found["service.instance.id"] == "pod-7"
    # The correlator lives on these.
    assert found["tensorflow.run.id"] == "r"


def test_a_providers_resource_wins_over_what_we_detect(identity: Identity) -> None:
    found = own_attributes(
        identity, provider={"service.name": "theirs", "host.name": "h", "service.instance.id": "random"}
    )
    assert (found["service.name"], found["host.name"]) == ("theirs", "h")
    assert found["service.instance.id"] == "r/worker:1"


def test_a_forks_child_is_a_process_of_its_own(identity: Identity) -> None:
    assert own_attributes(identity, forked=True)["service.instance.id"] == f"r/worker:1.{os.getpid()}"


@pytest.mark.parametrize(
    ("argv0", "name"),
    [
        ("/jobs/train_mnist.py", "train_mnist"),
        ("train.py", "train"),
        ("/site/trainer/__main__.py", "trainer"),
        ("-c", "tensorflow"),
        ("", "tensorflow"),
    ],
)
def test_the_service_is_named_after_the_script(
    argv0: str, name: str, identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [argv0])
    assert own_attributes(identity)["service.name"] == name


def test_a_module_run_by_name_is_named_after_it(tmp_path: Path) -> None:
    package = tmp_path / "my_trainer"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "from otel_tf.telemetry._resource import _script_name as n; print(n())"
    )
    done = subprocess.run(
        [sys.executable, "-m", "my_trainer"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "my_trainer"


def test_other_tasks_say_only_what_is_known_of_them(
    identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("POD_NAME", "coordinator")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=vision,container.id=abc,cloud.availability_zone=b")
    own = own_attributes(identity)
    found = task_attributes(own, identity, "ps", 2, clock_domain="clock ps")
    assert found["service.instance.id"] == "r/ps:2"
    assert (found["tensorflow.task.type"], found["tensorflow.task.index"]) == ("ps", 2)
    assert found["tensorflow.clock.domain"] == "clock ps"
    assert (found["service.name"], found["team"]) == (own["service.name"], "vision")
    kept = {key.partition(".")[0] for key in found}
    assert kept == {"service", "team", "telemetry", "tensorflow"}

    known = task_attributes(own, identity, "ps", 2, clock_domain="c", host_name="h", host_id="i", pid=9)
    assert (known["host.name"], known["host.id"], known["process.pid"]) == ("h", "i", 9)


# -- Kubernetes -----------------------------------------------------------------------------


def test_kubernetes_by_the_downward_api(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _resource._kubernetes(
        {
            "KUBERNETES_SERVICE_HOST": "10.0.0.1",
            "HOSTNAME": "ignored",
            "POD_NAME": "worker-1",
            "MY_POD_NAMESPACE": "lab",
            "OTEL_RESOURCE_ATTRIBUTES_NODE_NAME": "node-3",
            "POD_UID": "6c5f",
        }
    )
    assert found == {
        "k8s.pod.name": "worker-1",
        "k8s.namespace.name": "lab",
        "k8s.node.name": "node-3",
        "k8s.pod.uid": "6c5f",
    }


def test_kubernetes_without_the_downward_api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("lab\n")
    monkeypatch.setattr(_resource, "_SERVICE_ACCOUNT", tmp_path / "namespace")
    found = _resource._kubernetes({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "worker-1"})
    assert found == {"k8s.pod.name": "worker-1", "k8s.namespace.name": "lab"}
    monkeypatch.setattr(_resource, "_SERVICE_ACCOUNT", tmp_path / "none")
    assert "k8s.namespace.name" not in _resource._kubernetes(
        {"KUBERNETES_SERVICE_HOST": "1", "HOSTNAME": "w"}
    )


@pytest.mark.parametrize("environ", [{}, {"POD_NAME": "x", "HOSTNAME": "y"}])
def test_outside_kubernetes_nothing_is_guessed(environ: dict[str, Any]) -> None:
    assert _resource._kubernetes(environ) == {}
