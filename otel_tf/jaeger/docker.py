"""Jaeger from its official image, where Docker is at hand."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from pathlib import Path

from otel_tf.jaeger.ports import HOST, Ports, free_ports
from otel_tf.jaeger.process import CONFIG, UI_CONFIG, Jaeger, launch

__all__ = ["IMAGE", "find_docker", "run_command", "start_in_docker"]

#: The release that the repository's tests build from source, and docker-compose.yml runs.
IMAGE = "jaegertracing/jaeger:2.13.0"

_ANSWER_WITHIN_S = 10
_INSIDE = "/etc/otel-tf"


def find_docker() -> Path | None:
    """Returns the Docker client, if it reaches a running engine."""
    docker = shutil.which("docker")
    if docker is None:
        return None
    try:
        asked = subprocess.run(
            [docker, "version", "--format", "{{.Server.Version}}"],
            capture_output=True,
            timeout=_ANSWER_WITHIN_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Path(docker) if asked.returncode == 0 else None


def run_command(docker: str, ports: Ports, name: str) -> list[str]:
    """Returns the `docker run` of the official image with our configuration, ports on 127.0.0.1 only."""
    published = []
    for inside, outside in zip(dataclasses.astuple(Ports()), dataclasses.astuple(ports), strict=True):
        published += ["--publish", f"{HOST}:{outside}:{inside}"]
    mounted = []
    for path in (CONFIG, UI_CONFIG):
        mounted += ["--volume", f"{path}:{_INSIDE}/{path.name}:ro"]
    variables = {"HOST": "0.0.0.0", "UI_CONFIG": f"{_INSIDE}/{UI_CONFIG.name}"}
    given = [part for key, value in variables.items() for part in ("--env", f"OTEL_TF_JAEGER_{key}={value}")]
    options = ["--rm", "--name", name, *published, *mounted, *given]
    return [docker, "run", *options, IMAGE, "--config", f"{_INSIDE}/{CONFIG.name}"]


def start_in_docker(
    docker: Path,
    *,
    ports: Ports | None = None,
    log_file: Path | None = None,
    detached: bool = False,
    timeout_s: float = 300.0,
) -> Jaeger:
    """Starts the official image and returns when it is healthy; the first time it is pulled.

    The process is the Docker client: it passes SIGTERM on to the container, which is removed.

    Raises:
        JaegerError: As `otel_tf.jaeger.start`.
    """
    at = ports or free_ports()
    command = run_command(str(docker), at, f"otel-tf-jaeger-{os.getpid()}-{at.ui}")
    return launch(command, {}, ports=at, log_file=log_file, detached=detached, timeout_s=timeout_s)
