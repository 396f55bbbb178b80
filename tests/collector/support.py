"""Collectors of the tests, and what is sent to and found behind them."""

from __future__ import annotations

import dataclasses
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from otel_tf import ids
from otel_tf._local_ports import free_ports
from otel_tf.jaeger import Jaeger, die_with_parent

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "collector-config"
HOST = "127.0.0.1"
DEADLINE_S = 40
T0 = 1_796_000_000_000_000_000

#: `${env:NAME:-default}` in a configuration.
VARIABLE = re.compile(r"\$\{env:(\w+):-([^}]*)\}")

Answer = TypeVar("Answer")


def until(question: Callable[[], Answer], what: str = "it", timeout_s: float = DEADLINE_S) -> Answer:
    """Asks until the answer is true; returns it."""
    deadline = time.monotonic() + timeout_s
    while not (answer := question()):
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout_s:g} s"
        time.sleep(0.05)
    return answer


def clean_environment() -> dict[str, str]:
    """Returns this process's environment without anything that a Collector or a training would read."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TF_CONFIG"))}


def start(
    command: list[str | Path], environment: dict[str, str], log: Path, folder: Path | None = None
) -> subprocess.Popen[bytes]:
    """Starts a process that ends with this one; what it prints is added to ``log``."""
    argv = [str(part) for part in command]
    if sys.platform == "linux":
        argv = [sys.executable, "-I", "-S", str(die_with_parent.__file__), str(os.getpid()), *argv]
    with log.open("ab") as stream:
        return subprocess.Popen(
            argv,
            env=clean_environment() | environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes], within_s: float = 15) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def get(port: int, path: str) -> str | None:
    """Returns what a server on this machine answers; None where nobody does."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", path, headers={"Accept": "application/openmetrics-text"})
        response = connection.getresponse()
        body = response.read().decode()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return body if response.status == http.client.OK else None


@dataclasses.dataclass(frozen=True)
class Sample:
    """One line of a Prometheus page."""

    name: str
    labels: dict[str, str]
    value: float
    exemplar: str


def samples(page: str | None) -> list[Sample]:
    found = []
    for line in (page or "").splitlines():
        match = re.fullmatch(r"(\w+)(?:\{(.*?)\})? (\S+)(?: # (.*))?", line)
        if match and not line.startswith("#"):
            labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or ""))
            found.append(Sample(match[1], labels, float(match[3]), match[4] or ""))
    return found


class Collector:
    """A Collector of one of our configurations, on ports of its own; it can be killed and started again.

    Args:
        kind: ``agent`` or ``gateway``: which variables name its ports, and its base configuration.
        overlays: Names of the configurations laid over it.
        folder: For its queue, its files and its log.
        variables: For its configuration, without their common prefix.
    """

    def __init__(
        self, binary: Path, kind: str, folder: Path, *overlays: str, **variables: str | int | Path
    ) -> None:
        self.binary, self.kind, self.folder = binary, kind, folder
        self.prefix = f"OTEL_TF_{kind.upper()}_"
        self.names = (kind, *overlays)
        text = "".join((CONFIGS / f"{name}.yaml").read_text() for name in self.names)
        ports = sorted({name for name, _ in VARIABLE.findall(text) if name.endswith("_PORT")})
        self.ports = dict(
            zip([name.removeprefix(self.prefix) for name in ports], free_ports(len(ports)), strict=True)
        )
        folder.mkdir(parents=True, exist_ok=True)
        self.queue, self.runs, self.log = folder / "queue", folder / "runs", folder / "log"
        given = {"QUEUE_DIR": self.queue, "RUNS_DIR": self.runs, **self.ports, **variables}
        self.environment = {self.prefix + name: str(value) for name, value in given.items()}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def http(self) -> str:
        return f"http://{HOST}:{self.ports['HTTP_PORT']}"

    def start(self) -> Collector:
        """Starts it and returns when it is healthy."""
        options = [part for name in self.names for part in ("--config", CONFIGS / f"{name}.yaml")]
        self.process = start([self.binary, *options], self.environment, self.log)
        until(self._healthy, f"the {self.kind}'s start")
        return self

    def _healthy(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        return get(self.ports["HEALTH_PORT"], "/") is not None

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None:
            end(self.process)

    def metric(self, name: str, **labels: str) -> float:
        """Returns the sum of one of its own metrics over the labels that are not given."""
        found = samples(get(self.ports["METRICS_PORT"], "/metrics"))
        return sum(
            sample.value
            for sample in found
            if sample.name == name and labels.items() <= sample.labels.items()
        )


def _value(of: Any) -> dict[str, Any]:
    return {"intValue": str(of)} if isinstance(of, int) else {"stringValue": of}


def _pairs(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(of)} for key, of in attributes.items()]


def span(
    *names: str | int,
    trace: tuple[str | int, ...],
    start_ns: int = 0,
    ms: float = 10,
    name: str = "train_step",
    failed: bool = False,
    **attributes: Any,
) -> dict[str, Any]:
    """Returns an OTLP/JSON span; ``trace`` and ``names`` are what its ids are made of."""
    return {
        "traceId": f"{ids.trace_id(*trace):032x}",
        "spanId": f"{ids.span_id(*trace, *names):016x}",
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(T0 + start_ns),
        "endTimeUnixNano": str(T0 + start_ns + round(ms * 1e6)),
        "attributes": _pairs({key.replace("__", "."): of for key, of in attributes.items()}),
        "status": {"code": 2, "message": "lost"} if failed else {},
    }


def request(spans: list[dict[str, Any]], **resource: Any) -> dict[str, Any]:
    """Returns an OTLP/JSON request of one resource."""
    attributes = {"service.name": "mnist"} | {key.replace("__", "."): of for key, of in resource.items()}
    return {
        "resourceSpans": [
            {"resource": {"attributes": _pairs(attributes)}, "scopeSpans": [{"scope": {}, "spans": spans}]}
        ]
    }


def send(endpoint: str, body: dict[str, Any] | bytes, signal_name: str = "traces") -> None:
    """Sends OTLP/JSON; raises unless all of it is taken."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    target = urllib.parse.urlsplit(endpoint)
    connection = http.client.HTTPConnection(target.netloc, timeout=20)
    try:
        connection.request("POST", f"/v1/{signal_name}", data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        assert response.status == http.client.OK, answer
        assert not json.loads(answer or b"{}").get("partialSuccess"), answer
    finally:
        connection.close()


def spans_of(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for resource_spans in document.get("resourceSpans", []):
        for scope_spans in resource_spans["scopeSpans"]:
            yield from scope_spans["spans"]


def spans_in_files(folder: Path) -> Counter[str]:
    """Returns how often each span id is in the whole lines of the files of traces below ``folder``."""
    found: Counter[str] = Counter()
    for path in sorted(folder.rglob("*.traces*.jsonl")):
        *lines, _ = path.read_bytes().split(b"\n")
        found.update(each["spanId"] for line in lines for each in spans_of(json.loads(line)))
    return found


def spans_in_jaeger(jaeger: Jaeger, trace_id: str) -> Counter[str]:
    """Returns how often Jaeger holds each span of a trace; none where it does not have the trace."""
    body = get(jaeger.ports.ui, f"/api/v3/traces/{trace_id}?raw_traces=true")
    return Counter(each["spanId"] for each in spans_of(json.loads(body)["result"])) if body else Counter()
