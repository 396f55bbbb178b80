from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_tf import config
from otel_tf.errors import UserError
from otel_tf.identity import Identity, identify, safe_run_id

CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}


def who(environ: dict[str, str] | None = None, **settings: Any) -> Identity:
    environ = environ or {}
    return identify(config.resolve(environ, **settings), environ=environ)


def tf_config(kind: str, index: Any, cluster: Any = None) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster or CLUSTER, "task": {"type": kind, "index": index}})}


# -- the task --------------------------------------------------------------------------


def test_a_single_process() -> None:
    one = who(run_id="r")
    assert (one.task, one.cluster_size, one.is_chief) == ("local:0", 1, True)
    assert one.process == "r/local:0"
    assert one.host_name == socket.gethostname()


@pytest.mark.parametrize(
    ("kind", "index", "task", "is_chief"),
    [
        ("chief", 0, "chief:0", True),
        ("worker", 0, "worker:0", False),
        ("worker", 1, "worker:1", False),
        ("worker", "1", "worker:1", False),
        ("ps", 0, "ps:0", False),
    ],
)
def test_the_task_from_tf_config(kind: str, index: Any, task: str, is_chief: bool) -> None:
    one = who(tf_config(kind, index), run_id="r")
    assert (one.task, one.cluster_size, one.is_chief) == (task, 4, is_chief)
    assert one.process == f"r/{task}"
    assert one.process_of("worker", 1) == "r/worker:1"


def test_without_a_chief_the_first_worker_speaks() -> None:
    cluster = {"worker": ["a:1", "b:1"]}
    assert who(tf_config("worker", 0, cluster)).is_chief
    assert not who(tf_config("worker", 1, cluster)).is_chief


def test_a_sparse_cluster_counts_too() -> None:
    assert who(tf_config("ps", 3, {"ps": {"3": "a:1"}, "worker": ["b:1"]})).cluster_size == 2


def test_what_the_strategy_was_told_wins() -> None:
    told = {"cluster": {"worker": ["a:1", "b:1", "c:1"]}, "task": {"type": "worker", "index": 2}}
    identity = identify(config.resolve(environ={}), environ=tf_config("worker", 0), cluster=told)
    assert (identity.task, identity.cluster_size, identity.is_chief) == ("worker:2", 3, False)


@pytest.mark.parametrize("text", ["", "  ", "{}", '{"cluster": {}, "task": {}}'])
def test_an_empty_tf_config_is_none(text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert who({"TF_CONFIG": text}).task == "local:0"
    assert caplog.records == []


@pytest.mark.parametrize(
    "text",
    [
        "{not json",
        "[1, 2]",
        '"worker"',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": -1}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": "first"}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": true}}',
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": 5, "index": 0}}',
        '{"cluster": ["a:1"], "task": {"type": "worker", "index": 0}}',
    ],
)
def test_a_broken_tf_config_is_said_and_does_not_stop(text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert who({"TF_CONFIG": text}).task == "local:0"
    (said,) = caplog.messages
    assert said.startswith("TF_CONFIG is ignored")


# -- the clock -----------------------------------------------------------------------------


def test_the_clock_is_the_hosts_unless_named() -> None:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    one = who()
    assert one.boot_id == one.clock_domain == boot_id
    assert who(clock_domain="mine").clock_domain == "mine"
    assert who({"OTEL_TF_CLOCK_DOMAIN": "faked +30s"}).clock_domain == "faked +30s"


def test_without_a_boot_id_no_clock_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any, **__: Any) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", gone)
    one = who(tf_config("worker", 1), run_id="r")
    assert one.boot_id is None
    assert one.clock_domain == "r/worker:1"


# -- the run ---------------------------------------------------------------------------------


def test_where_a_run_id_comes_from() -> None:
    assert (who(run_id="a").run_id, who(run_id="a").run_origin) == ("a", "argument")
    named = who({"OTEL_TF_RUN_ID": "b", "SLURM_JOB_ID": "7"})
    assert (named.run_id, named.run_origin) == ("b", "environment")
    launched = who({"SLURM_JOB_ID": "7"})
    assert (launched.run_id, launched.run_origin) == ("slurm-7", "launcher")
    assert who().run_origin == "made"


def test_made_run_ids_differ_and_name_folders() -> None:
    made = {who().run_id for _ in range(20)}
    assert len(made) == 20
    assert all(safe_run_id(each) == each for each in made)


@pytest.mark.parametrize(
    ("environ", "run_id"),
    [
        ({"SLURM_JOB_ID": "812"}, "slurm-812"),
        ({"SLURM_JOB_ID": "812", "SLURM_RESTART_COUNT": "0"}, "slurm-812"),
        ({"SLURM_JOB_ID": "812", "SLURM_RESTART_COUNT": "2"}, "slurm-812-2"),
        (
            {"OTEL_RESOURCE_ATTRIBUTES": "a=b, k8s.job.uid=6c5f5d9e-aa,c=d"},
            "k8s-6c5f5d9e-aa",
        ),
        ({"CLOUD_ML_JOB_ID": "1234"}, "vertex-1234"),
        ({"TRAINING_JOB_NAME": "mnist-2026"}, "sagemaker-mnist-2026"),
        ({"AZUREML_RUN_ID": "brave_lion_x"}, "azureml-brave_lion_x"),
        ({"PBS_JOBID": "17.server"}, "pbs-17.server"),
        ({"LSB_JOBID": "99"}, "lsf-99"),
        ({"TORCHELASTIC_RUN_ID": "e1"}, "torchrun-e1"),
    ],
)
def test_launchers_name_the_run(environ: dict[str, str], run_id: str) -> None:
    assert who(environ).run_id == run_id


@pytest.mark.parametrize(
    "environ",
    [{"TORCHELASTIC_RUN_ID": "none"}, {"SLURM_JOB_ID": " "}, {"OTEL_RESOURCE_ATTRIBUTES": "k8s.job.uid="}],
)
def test_launchers_that_name_nothing(environ: dict[str, str]) -> None:
    assert who(environ).run_origin == "made"


def test_rays_job_number_alone_is_not_enough() -> None:
    """Ray counts jobs from one in each cluster: the addresses of the tasks tell runs apart."""
    first = {
        "RAY_JOB_ID": "01000000",
        **tf_config("worker", 0, {"worker": ["10.0.0.1:4001", "10.0.0.2:4001"]}),
    }
    same = {
        "RAY_JOB_ID": "01000000",
        **tf_config("worker", 1, {"worker": ["10.0.0.1:4001", "10.0.0.2:4001"]}),
    }
    other = {"RAY_JOB_ID": "01000000", **tf_config("worker", 0, {"worker": ["10.0.0.1:9", "10.0.0.2:9"]})}
    assert who(first).run_id == who(same).run_id
    assert who(first).run_id != who(other).run_id
    assert who(first).run_id.startswith("ray-01000000-")


@pytest.mark.parametrize("text", ["a/b", "../up", ".hidden", "two words", "é", "x" * 129, "-dash"])
def test_a_run_id_in_code_must_name_a_folder(text: str) -> None:
    with pytest.raises(UserError, match="OTEL_TF_RUN_ID"):
        who(run_id=text)


@pytest.mark.parametrize("text", ["a/b", "../up", ".hidden", "two words", "é", "x" * 129, "-dash", "..."])
def test_a_run_id_in_a_variable_is_made_safe_and_said(text: str, caplog: pytest.LogCaptureFixture) -> None:
    environ = {"OTEL_TF_RUN_ID": text}
    one = who(environ)
    assert one.run_origin == "environment"
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", one.run_id)
    assert who(environ).run_id == one.run_id
    assert all(message.startswith("OTEL_TF_RUN_ID=") for message in caplog.messages)
    assert caplog.records
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


@given(st.text(), st.text())
def test_safe_run_ids_are_safe_stable_and_apart(first: str, second: str) -> None:
    for text in (first, second):
        safe = safe_run_id(text)
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", safe)
        assert safe_run_id(safe) == safe
    if first != second:
        assert safe_run_id(first) != safe_run_id(second)


def test_no_tensorflow_is_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys, otel_tf.identity; print('tensorflow' in sys.modules)"],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"
