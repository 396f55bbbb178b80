"""What the tests of telemetry share: steps to record, spools to read, collectors that speak real OTLP."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from otel_tf import ids
from otel_tf.telemetry import Layout, Pipeline

#: An address where nobody listens: connections are refused at once.
DEAD = "http://127.0.0.1:9"


def step_layout(pipeline: Pipeline, **options: Any) -> Layout:
    return pipeline.layout(
        "train_step",
        fields=("tensorflow.global_step", "tensorflow.seq", "tensorflow.monotonic_ns"),
        constants={"tensorflow.worker": pipeline.identity.task},
        **options,
    )


def record_step(pipeline: Pipeline, layout: Layout, step: int, **options: Any) -> int:
    """Records one short step; returns its span id."""
    seq, mono_ns, wall_ns = pipeline.now()
    span_id = ids.span_id(pipeline.identity.run_id, layout.resource.process, step)
    pipeline.record(
        layout,
        ids.trace_id(pipeline.identity.run_id, "step", step),
        span_id,
        0,
        wall_ns,
        wall_ns + 1000,
        (step, seq, mono_ns),
        **options,
    )
    return span_id


def spool_lines(folder: Path, suffix: str = ".traces.jsonl") -> list[dict[str, Any]]:
    """Every line of every spool file; a truncated line fails the test."""
    return [
        json.loads(line)
        for path in sorted(folder.glob(f"*{suffix}"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


def spool_spans(folder: Path) -> list[dict[str, Any]]:
    return [
        span
        for line in spool_lines(folder)
        for resource_spans in line["resourceSpans"]
        for scope_spans in resource_spans["scopeSpans"]
        for span in scope_spans["spans"]
    ]


def attributes_of(span: dict[str, Any]) -> dict[str, Any]:
    return {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}


def until(condition: Callable[[], Any], timeout_s: float = 20.0) -> None:
    """Waits for something that another thread does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


class Collector:
    """What a test's OTLP endpoint received, and how it is to answer."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        #: Status, headers and body of the answers to come; 200 when none is left.
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.attempts = 0
        self.delay_s = 0.0
        self.endpoint = ""
        self.lock = threading.Lock()

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in list(self.requests)
            for resource_spans in request.resource_spans
            for scope_spans in resource_spans.scope_spans
            for span in scope_spans.spans
        ]


@contextlib.contextmanager
def http_collector(message: Any = ExportTraceServiceRequest) -> Iterator[Collector]:
    """An OTLP/HTTP endpoint that decodes with the official messages; ``message`` says what it is sent."""
    state = Collector()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(state.delay_s)
            with state.lock:
                state.attempts += 1
                status, headers, answer = state.answers.pop(0) if state.answers else (200, {}, b"")
                if status == 200:
                    if self.headers.get("Content-Encoding") == "gzip":
                        body = gzip.decompress(body)
                    state.requests.append(message.FromString(body))
                    state.headers.append(dict(self.headers))
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *arguments: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            # A client that stopped waiting for a slow answer.
            pass

    server = Server(("127.0.0.1", 0), Handler)
    state.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def grpc_collector() -> Iterator[Collector]:
    """An OTLP/gRPC endpoint; an answer's status is a gRPC status name given as its body."""
    state = Collector()

    class Service(TraceServiceServicer):  # type: ignore[misc]
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the service's name for it
            with state.lock:
                state.attempts += 1
                if state.answers:
                    _, _, name = state.answers.pop(0)
                    context.abort(grpc.StatusCode[name.decode()], "told so")
                state.requests.append(request)
                state.headers.append(dict(context.invocation_metadata()))
            return ExportTraceServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    state.endpoint = f"http://127.0.0.1:{port}"
    try:
        yield state
    finally:
        server.stop(None).wait()


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        env={**os.environ, "OTEL_TF_TESTING": "true", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


#: What every test program begins with.
PROGRAM = """
import os, sys, time
from otel_tf import config, ids
from otel_tf.identity import identify
from otel_tf.telemetry import start
settings = config.resolve()
pipeline = start(settings, identify(settings))
layout = pipeline.layout("train_step", fields=("tensorflow.global_step", "tensorflow.seq"))
def step(n):
    seq, mono, wall = pipeline.now()
    pipeline.record(layout, ids.trace_id("r", n), ids.span_id("r", n), 0, wall, wall + 1, (n, seq))
"""


def program(rest: str) -> str:
    return textwrap.dedent(PROGRAM) + textwrap.dedent(rest)
