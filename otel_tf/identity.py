"""Who this process is: the run, the task within it, and the clock it lives on.

Nothing here imports TensorFlow. The task comes from ``TF_CONFIG``, as TensorFlow's own cluster resolver
reads it, or from the resolver that the strategy was given; the run id from ``OTEL_TF_RUN_ID``, else from
the launcher, so that all processes of a job name the run alike without talking; else it is made, and
`Identity.run_origin` says so, for the coordinator or the chief to spread its own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import re
import socket
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from otel_tf.config import Settings
from otel_tf.errors import UserError
from otel_tf.ids import new_run_id

__all__ = ["Identity", "RunOrigin", "identify", "safe_run_id"]

_logger = logging.getLogger(__name__)

RunOrigin = Literal["argument", "environment", "launcher", "agreed", "made"]

#: One path segment everywhere, also where a shell or a URL sees it.
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclasses.dataclass(frozen=True)
class Identity:
    """One process of one run.

    Attributes:
        run_id: Name of the run, safe as a folder name.
        run_origin: Where it came from; ``"made"`` means that other processes cannot know it yet.
        task_type: ``chief``, ``worker``, ``ps``, ``evaluator``…; ``local`` where there is no cluster.
        task_index: Index within the type.
        cluster_size: Number of tasks in the cluster; 1 where there is none.
        is_chief: Whether this task is the one that speaks for a synchronous cluster.
        clock_domain: Name of the clock this process reads.
        host_name: Name of this machine.
        boot_id: The kernel's boot id; containers on one host share it, as they share its clock. None
            where there is no such file.
        strategy: Class name of the distribution strategy, when known.
    """

    run_id: str
    run_origin: RunOrigin
    task_type: str
    task_index: int
    cluster_size: int
    is_chief: bool
    clock_domain: str
    host_name: str
    boot_id: str | None
    strategy: str | None = None

    @property
    def task(self) -> str:
        """This task's name, such as ``worker:1``."""
        return f"{self.task_type}:{self.task_index}"

    @property
    def process(self) -> str:
        """This process's ``service.instance.id``: ``<run>/<task>``."""
        return self.process_of(self.task_type, self.task_index)

    def named(self, run_id: str) -> Identity:
        """Returns this process as one of the run that another process named."""
        own_clock = f"{self.run_id}/{self.task}"
        domain = f"{run_id}/{self.task}" if self.clock_domain == own_clock else self.clock_domain
        return dataclasses.replace(self, run_id=run_id, run_origin="agreed", clock_domain=domain)

    def process_of(self, task_type: str, task_index: int) -> str:
        """Returns the ``service.instance.id`` of a task of this run."""
        return f"{self.run_id}/{task_type}:{task_index}"


@dataclasses.dataclass(frozen=True)
class _Task:
    type: str = "local"
    index: int = 0
    cluster_size: int = 1
    is_chief: bool = True


def safe_run_id(text: str) -> str:
    """Returns a run id that is safe as a folder name: ``text`` itself where it already is.

    Otherwise the unsafe characters are replaced and a digest of the whole keeps different texts apart.
    The same text gives the same id in every process.
    """
    if _SAFE.fullmatch(text):
        return text
    digest = hashlib.blake2b(text.encode(errors="replace"), digest_size=4).hexdigest()
    kept = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:100]
    return f"{kept}-{digest}" if kept[:1].isalnum() else f"run-{kept}-{digest}".replace("--", "-")


def identify(
    settings: Settings,
    *,
    environ: Mapping[str, str] | None = None,
    strategy: str | None = None,
    cluster: Mapping[str, Any] | None = None,
) -> Identity:
    """Returns this process's identity from the settings and the environment.

    Args:
        settings: ``run_id`` and ``clock_domain`` are read.
        environ: The environment; default ``os.environ``.
        strategy: Class name of the distribution strategy.
        cluster: What ``TF_CONFIG`` would say, where the strategy knows better.

    Raises:
        UserError: A run id given in code is no folder name. (In a variable it is replaced, with a
            warning: a variable must not stop a training.)
    """
    environ = os.environ if environ is None else environ
    task = _parse_task(cluster) if cluster else _task(environ)
    run_id, origin = _run_id(settings, environ)
    boot_id = _boot_id()
    return Identity(
        run_id=run_id,
        run_origin=origin,
        task_type=task.type,
        task_index=task.index,
        cluster_size=task.cluster_size,
        is_chief=task.is_chief,
        # Without a boot id nothing says which processes share a clock: each task is its own domain.
        clock_domain=settings.clock_domain or boot_id or f"{run_id}/{task.type}:{task.index}",
        host_name=socket.gethostname(),
        boot_id=boot_id,
        strategy=strategy,
    )


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def _run_id(settings: Settings, environ: Mapping[str, str]) -> tuple[str, RunOrigin]:
    given = settings.run_id
    if given:
        safe = safe_run_id(given)
        if safe == given:
            origin = settings.origins.get("run_id", "argument")
            return given, "environment" if origin == "environment" else "argument"
        if settings.origins.get("run_id") == "environment":
            _logger.warning(
                "OTEL_TF_RUN_ID=%r is no folder name (letters, digits, '.', '_' and '-', at most 128); "
                "using %r",
                given,
                safe,
            )
            return safe, "environment"
        raise UserError(
            f"run_id={given!r} (OTEL_TF_RUN_ID) is no folder name: "
            "letters, digits, '.', '_' and '-', beginning with a letter or digit, at most 128"
        )
    launched = _launcher_run_id(environ)
    if launched:
        return safe_run_id(launched), "launcher"
    return new_run_id(), "made"


#: Variables in which a launcher names the job, the same in all its processes and new for every job.
#: Vertex AI, SageMaker, Azure ML, PBS, LSF, torchrun (whose default, "none", names nothing).
_LAUNCHERS: tuple[tuple[str, str], ...] = (
    ("vertex", "CLOUD_ML_JOB_ID"),
    ("sagemaker", "TRAINING_JOB_NAME"),
    ("azureml", "AZUREML_RUN_ID"),
    ("pbs", "PBS_JOBID"),
    ("lsf", "LSB_JOBID"),
    ("torchrun", "TORCHELASTIC_RUN_ID"),
)


def _launcher_run_id(environ: Mapping[str, str]) -> str | None:
    def read(name: str) -> str:
        return environ.get(name, "").strip()

    # Kubernetes itself puts no job uid into the environment; OpenTelemetry's operator does, here.
    for pair in read("OTEL_RESOURCE_ATTRIBUTES").split(","):
        key, _, value = pair.partition("=")
        if key.strip() == "k8s.job.uid" and value.strip():
            return f"k8s-{urllib.parse.unquote(value.strip())}"
    if read("SLURM_JOB_ID"):
        # A requeued job keeps its id; only the count of restarts tells its attempts apart.
        restarts = read("SLURM_RESTART_COUNT")
        return f"slurm-{read('SLURM_JOB_ID')}" + (f"-{restarts}" if restarts not in ("", "0") else "")
    if read("RAY_JOB_ID"):
        # Ray counts jobs from 1 in every cluster; the tasks' addresses tell the clusters apart.
        cluster = hashlib.blake2b(_cluster_text(environ).encode(errors="replace"), digest_size=4).hexdigest()
        return f"ray-{read('RAY_JOB_ID')}-{cluster}"
    for launcher, name in _LAUNCHERS:
        if read(name) and read(name) != "none":
            return f"{launcher}-{read(name)}"
    return None


def _cluster_text(environ: Mapping[str, str]) -> str:
    try:
        return json.dumps(json.loads(environ.get("TF_CONFIG", "")).get("cluster"), sort_keys=True)
    except (ValueError, AttributeError):
        return ""


def _task(environ: Mapping[str, str]) -> _Task:
    text = environ.get("TF_CONFIG", "").strip()
    if not text:
        return _Task()
    try:
        return _parse_task(json.loads(text))
    except (ValueError, TypeError) as error:
        _logger.warning("TF_CONFIG is ignored (%s); going on as a single task: %.200r", error, text)
        return _Task()


def _parse_task(config: Any) -> _Task:
    """Reads ``TF_CONFIG``: https://www.tensorflow.org/guide/distributed_training#setting_up_the_tf_config_environment_variable."""
    if not isinstance(config, Mapping):
        raise TypeError("no JSON object")
    cluster, task = config.get("cluster") or {}, config.get("task") or {}
    if not isinstance(cluster, dict) or not isinstance(task, dict):
        raise TypeError("its 'cluster' or 'task' is no JSON object")
    if not cluster and not task:
        return _Task()
    kind = task.get("type", "worker")
    index = task.get("index", 0)
    if not isinstance(kind, str) or not kind:
        raise TypeError("its task type is no text")
    if isinstance(index, bool) or not isinstance(index, (int, str)):
        raise TypeError("its task index is no number")
    number = int(index)
    if number < 0:
        raise ValueError("its task index is negative")
    size = sum(len(tasks) for tasks in cluster.values() if isinstance(tasks, (list, dict)))
    chiefs = [name for name in ("chief", "master") if cluster.get(name)]
    is_chief = kind in chiefs if chiefs else kind in ("chief", "master", "worker") and number == 0
    return _Task(kind, number, max(size, 1), is_chief)
