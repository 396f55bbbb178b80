"""Starting a Jaeger, knowing that it is healthy, and ending it."""

from __future__ import annotations

import dataclasses
import http.client
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from otel_tf.errors import OtelTfError
from otel_tf.jaeger.ports import HOST, Ports, free_ports

__all__ = ["CONFIG", "UI_CONFIG", "Jaeger", "JaegerError", "launch", "start"]

#: Jaeger's configuration and that of its user interface; `collector-config/` links to both.
CONFIG = Path(__file__).with_name("jaeger.yaml")
UI_CONFIG = Path(__file__).with_name("jaeger-ui.json")

_DIE_WITH_PARENT = Path(__file__).with_name("die_with_parent.py")
_POLL_S = 0.05
_STOP_WITHIN_S = 10.0
_TAIL_LINES = 12
_TAIL_COLUMNS = 300
_ATTEMPTS = 3  # at ports chosen by us: another process may take one in between


class JaegerError(OtelTfError):
    """A Jaeger did not start, did not become healthy in time, or ended by itself."""


class _LeftRunning(subprocess.Popen[bytes]):
    """A process that is meant to outlive this one."""

    def __del__(self) -> None:
        """Does not warn about a process still running, as its base would."""


@dataclasses.dataclass
class Jaeger:
    """A running Jaeger. As a context manager it is stopped at the end, unless it is detached.

    Attributes:
        process: What was started: Jaeger, or the Docker client that runs it.
        ports: Where it listens on 127.0.0.1.
        log_file: What it prints.
        detached: It goes on when this process ends; ``kill <pid>`` ends it.
    """

    process: subprocess.Popen[bytes]
    ports: Ports
    log_file: Path
    detached: bool = False
    _temporary_log: bool = False

    @property
    def ui(self) -> str:
        """URL of the user interface and of the query API over HTTP."""
        return f"http://{HOST}:{self.ports.ui}"

    @property
    def query_grpc(self) -> str:
        """Target (host:port) of the query API over gRPC."""
        return f"{HOST}:{self.ports.query_grpc}"

    @property
    def otlp_http(self) -> str:
        """Base URL that takes OTLP over HTTP; exporters add ``/v1/traces``."""
        return f"http://{HOST}:{self.ports.otlp_http}"

    @property
    def otlp_grpc(self) -> str:
        """URL that takes OTLP over gRPC."""
        return f"http://{HOST}:{self.ports.otlp_grpc}"

    @property
    def pid(self) -> int:
        """Process id; SIGTERM ends it cleanly."""
        return self.process.pid

    def is_healthy(self) -> bool:
        """Returns whether its health check says yes at this moment."""
        return self.process.poll() is None and _get(self.ports.health, "/status")[0] == http.client.OK

    def has_ui(self) -> bool:
        """Returns whether it serves Jaeger's web interface: a build from its Go module has none."""
        status, page = _get(self.ports.ui, "/")
        return status == http.client.OK and b"not the Jaeger UI" not in page

    def wait(self) -> None:
        """Blocks until it ends by itself.

        Raises:
            JaegerError: It ended, which it should not; with the end of its log.
        """
        code = self.process.wait()
        raise self._failure(f"ended by itself ({_how(code)})")

    def stop(self) -> None:
        """Ends it: SIGTERM, and SIGKILL after 10 s. Does nothing if it has ended already."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self._temporary_log:
            self.log_file.unlink(missing_ok=True)

    def _failure(self, what: str) -> JaegerError:
        lines = self.log_file.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        tail = "".join(f"\n  {line[:_TAIL_COLUMNS]}" for line in lines)
        return JaegerError(f"Jaeger {what}; the end of its log:{tail or ' nothing'}")

    def _wait_until_healthy(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.is_healthy():
            code = self.process.poll()
            if code is not None:
                raise self._failure(f"ended at once ({_how(code)})")
            if time.monotonic() > deadline:
                raise self._failure(f"was not healthy within {timeout_s:g} s")
            time.sleep(_POLL_S)

    def __enter__(self) -> Jaeger:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        if not self.detached:
            self.stop()


def start(
    binary: Path,
    *,
    ports: Ports | None = None,
    config: Path | None = None,
    log_file: Path | None = None,
    detached: bool = False,
    timeout_s: float = 30.0,
) -> Jaeger:
    """Starts a Jaeger on 127.0.0.1 and returns when it is healthy.

    Unless detached it ends with this process, also when this process is killed (on Linux; there it ends
    with the thread that called, so call from one that lives as long as it should).

    Args:
        binary: A Jaeger 2, e.g. from `find_binary`.
        ports: Where it listens; default: free ports.
        config: Configuration instead of ours; it is given the same ``OTEL_TF_JAEGER_*`` variables.
        log_file: Where its output goes; default: a temporary file, removed by `Jaeger.stop`.
        detached: Let it live on when this process ends.
        timeout_s: How long it may take to become healthy, in s.

    Raises:
        JaegerError: A port is in use, it ended, or it was not healthy in time; with the end of its log.
    """
    argv = [str(binary), "--config", str(config or CONFIG)]
    environment = {"OTEL_TF_JAEGER_HOST": HOST, "OTEL_TF_JAEGER_UI_CONFIG": str(UI_CONFIG)}

    def once(at: Ports) -> Jaeger:
        variables = environment | {
            f"OTEL_TF_JAEGER_{name.upper()}_PORT": str(port) for name, port in dataclasses.asdict(at).items()
        }
        return launch(argv, variables, ports=at, log_file=log_file, detached=detached, timeout_s=timeout_s)

    if ports is not None:
        return once(ports)
    for _ in range(_ATTEMPTS - 1):
        at = free_ports()
        try:
            return once(at)
        except JaegerError:
            if not at.taken():
                raise
    return once(free_ports())


def launch(
    argv: Sequence[str],
    variables: Mapping[str, str],
    *,
    ports: Ports,
    log_file: Path | None,
    detached: bool,
    timeout_s: float,
) -> Jaeger:
    """Runs a command that is a Jaeger at `ports` and returns when it is healthy; see `start`."""
    if not os.access(argv[0], os.X_OK):
        raise JaegerError(f"{argv[0]}: no such program, or it cannot be run")
    if not detached and sys.platform == "linux":
        # -I -S: nothing of the user's Python set-up, and up in 10 ms.
        argv = [sys.executable, "-I", "-S", str(_DIE_WITH_PARENT), str(os.getpid()), *argv]
    taken = ports.taken()
    if taken:
        # Also because another Jaeger there would answer our question whether ours is healthy.
        name, port = next(iter(taken.items()))
        raise JaegerError(f"port {port} ({name}) is in use on {HOST}: is a Jaeger running already?")
    temporary = log_file is None
    if log_file is None:
        descriptor, name = tempfile.mkstemp(prefix="otel-tf-jaeger-", suffix=".log")
        os.close(descriptor)
        log_file = Path(name)
    popen = _LeftRunning if detached else subprocess.Popen[bytes]
    with log_file.open("wb") as stream:
        process = popen(
            argv,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in a terminal is for us to handle
        )
    jaeger = Jaeger(process, ports, log_file, detached, temporary)
    try:
        jaeger._wait_until_healthy(timeout_s)
    except BaseException:
        jaeger.stop()
        raise
    return jaeger


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def _get(port: int, path: str) -> tuple[int, bytes]:
    """Returns status and body of a GET on this machine; status 0 where nobody answers.

    Not urllib: a proxy of the environment has no say about this machine.
    """
    connection = http.client.HTTPConnection(HOST, port, timeout=2.0)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()
