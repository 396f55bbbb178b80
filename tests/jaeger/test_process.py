"""A real Jaeger, started, asked, and ended in every way it can end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter

from otel_tf.jaeger import Jaeger, JaegerError, start
from otel_tf.jaeger.ports import HOST, free_ports

DEADLINE_S = 20


def stored_trace(jaeger: Jaeger, trace_id: str) -> list[dict[str, object]]:
    """Waits until Jaeger has the trace; returns its spans in OTLP JSON."""
    url = f"{jaeger.ui}/api/v3/traces/{trace_id}?raw_traces=true"
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            with urllib.request.urlopen(url) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 404 or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
            continue
        scopes = [scope for part in answer["result"]["resourceSpans"] for scope in part["scopeSpans"]]
        return [span for scope in scopes for span in scope["spans"]]


def export_one_span(exporter: SpanExporter, name: str) -> str:
    """Sends one span with the official SDK; returns its trace id."""
    provider = TracerProvider(resource=Resource({"service.name": "test"}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("test").start_as_current_span(name) as span:
        trace_id = span.get_span_context().trace_id
    provider.shutdown()
    return f"{trace_id:032x}"


def is_running(pid: int) -> bool:
    """Returns whether a process runs; one that ended and nobody has waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


def script(folder: Path, text: str) -> Path:
    """Writes a program that is no Jaeger."""
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_span_sent_over_http_is_found(module_jaeger):
    exporter = HttpExporter(f"{module_jaeger.otlp_http}/v1/traces")
    spans = stored_trace(module_jaeger, export_one_span(exporter, "over http"))
    assert [span["name"] for span in spans] == ["over http"]


def test_a_span_sent_over_grpc_is_found(module_jaeger):
    exporter = GrpcExporter(module_jaeger.otlp_grpc, insecure=True)
    spans = stored_trace(module_jaeger, export_one_span(exporter, "over grpc"))
    assert [span["name"] for span in spans] == ["over grpc"]


def test_it_listens_on_this_machine_only(module_jaeger):
    inode_of = {
        line.split()[9]: line.split()[1]
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        if line.split()[3] == "0A"  # LISTEN
    }
    sockets = {
        str(link.readlink()).removeprefix("socket:[").removesuffix("]")
        for link in Path(f"/proc/{module_jaeger.pid}/fd").iterdir()
    }
    listening = {address for inode, address in inode_of.items() if inode in sockets}
    ports = {int(address.rpartition(":")[2], 16) for address in listening}
    assert {address.rpartition(":")[0] for address in listening} == {"0100007F"}
    assert ports == set(vars(module_jaeger.ports).values())


def test_its_user_interface_is_given_our_links(module_jaeger):
    with urllib.request.urlopen(module_jaeger.ui) as page:
        text = page.read().decode()
    assert "tensorflow.profiler.session" in text
    assert "tensorflow.logical.original.span_id" in text


def test_a_build_from_the_module_says_that_it_has_no_user_interface(jaeger_binary, module_jaeger):
    if "OTEL_TF_JAEGER_BIN" in os.environ:
        pytest.skip("OTEL_TF_JAEGER_BIN may be a release, which has one")
    assert not module_jaeger.has_ui()


def test_stop_ends_it_and_removes_the_log_it_made(jaeger):
    running = jaeger(log_file=None)
    assert running.is_healthy()
    assert "Everything is ready" in running.log_file.read_text()
    running.stop()
    running.stop()
    assert not is_running(running.pid)
    assert not running.is_healthy()
    assert not running.log_file.exists()
    assert running.process.returncode == 0


def test_a_log_file_that_was_asked_for_is_kept(jaeger, tmp_path):
    running = jaeger(log_file=tmp_path / "kept.log")
    running.stop()
    assert "Shutdown complete" in (tmp_path / "kept.log").read_text()


def test_two_at_once_do_not_meet(jaeger):
    one, two = jaeger(), jaeger()
    assert one.is_healthy()
    assert two.is_healthy()
    assert not set(vars(one.ports).values()) & set(vars(two.ports).values())


def test_the_context_manager_stops_it_when_the_body_fails(jaeger_binary, tmp_path):
    with pytest.raises(ZeroDivisionError), start(jaeger_binary, log_file=tmp_path / "log") as running:
        raise ZeroDivisionError
    assert not is_running(running.pid)


CHILD = """
import os, sys
from pathlib import Path
from otel_tf.jaeger import start
jaeger = start(Path(sys.argv[1]), log_file=Path(sys.argv[2]), detached=sys.argv[3] == "detached")
print(jaeger.pid, jaeger.ports.health, flush=True)
sys.stdin.read()
"""


def parent_of_a_jaeger(binary: Path, log: Path, how: str) -> tuple[subprocess.Popen[str], int]:
    parent = subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", "-c", CHILD, binary, log, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return parent, int(parent.stdout.readline().split()[0])


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_a_parent_that_is_killed(jaeger_binary, tmp_path, signum):
    parent, pid = parent_of_a_jaeger(jaeger_binary, tmp_path / "log", "attached")
    with parent:
        assert is_running(pid)
        parent.send_signal(signum)
        parent.stdin.close()
        parent.wait(DEADLINE_S)
    wait_until_gone(pid)


def test_a_detached_one_outlives_its_parent_until_it_is_told(jaeger_binary, tmp_path):
    parent, pid = parent_of_a_jaeger(jaeger_binary, tmp_path / "log", "detached")
    try:
        with parent:
            _, said = parent.communicate(timeout=DEADLINE_S)
        assert parent.returncode == 0
        assert said == ""
        assert is_running(pid)
    finally:
        os.kill(pid, signal.SIGTERM)
    wait_until_gone(pid)


def test_a_detached_one_can_be_stopped_as_well(jaeger):
    with jaeger(detached=True) as running:
        pass
    assert is_running(running.pid)
    running.stop()
    assert not is_running(running.pid)


def test_a_port_in_use_is_named(jaeger_binary):
    ports = free_ports()
    with socket.socket() as listener:
        listener.bind((HOST, ports.otlp_http))
        listener.listen()
        with pytest.raises(JaegerError, match=rf"port {ports.otlp_http} \(otlp_http\) is in use"):
            start(jaeger_binary, ports=ports)


def test_a_configuration_it_refuses_is_told_with_its_own_words(jaeger_binary, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("receivers: {nonsense: {}}\n")
    with pytest.raises(JaegerError, match=r"ended at once \(exit code 1\)(.|\n)*nonsense"):
        start(jaeger_binary, config=config)


def test_a_program_that_ends_at_once_is_told_with_its_last_words(tmp_path):
    program = script(tmp_path, "echo first words; echo last words >&2; exit 3")
    log = tmp_path / "log"
    with pytest.raises(JaegerError, match=r"ended at once \(exit code 3\)(.|\n)*last words"):
        start(program, log_file=log)
    assert "first words" in log.read_text()


def test_a_program_that_dies_silently_is_told_by_its_signal(tmp_path):
    with pytest.raises(JaegerError, match=r"ended at once \(SIGKILL\); the end of its log: nothing"):
        start(script(tmp_path, "kill -KILL $$"))


def test_a_program_that_never_gets_healthy_is_ended(tmp_path):
    program = script(tmp_path, f"echo $$ > {tmp_path}/pid; echo thinking; exec sleep 600")
    with pytest.raises(JaegerError, match=r"not healthy within 0.5 s(.|\n)*thinking"):
        start(program, timeout_s=0.5)
    wait_until_gone(int((tmp_path / "pid").read_text()))


def test_a_file_that_is_no_program_is_named(tmp_path):
    program = tmp_path / "program"
    program.write_bytes(b"\x00nothing")
    with pytest.raises(JaegerError, match=rf"{program}: no such program"):
        start(program)
    program.chmod(0o755)
    with pytest.raises(JaegerError, match=r"exit code 126(.|\n)*Exec format error"):
        start(program)


def test_wait_tells_of_a_jaeger_that_is_killed(jaeger):
    running = jaeger()
    os.kill(running.pid, signal.SIGKILL)
    with pytest.raises(JaegerError, match=r"ended by itself \(SIGKILL\)(.|\n)*Everything is ready"):
        running.wait()
