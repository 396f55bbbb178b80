"""Files that a real Collector's file exporter wrote, in each of its formats."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request

from otel_tf.correlator import sources

CONFIG = """
receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{port}"}}}}}}}}
exporters:
  file/json: {{path: "{folder}/json"}}
  file/proto: {{path: "{folder}/proto", format: proto}}
  file/json-zstd: {{path: "{folder}/json-zstd", compression: zstd}}
  file/proto-zstd: {{path: "{folder}/proto-zstd", format: proto, compression: zstd}}
service:
  telemetry: {{metrics: {{level: none}}, logs: {{level: error}}}}
  pipelines:
    traces: {{receivers: [otlp], exporters: [file/json, file/proto, file/json-zstd, file/proto-zstd]}}
"""
FORMATS = ("json", "proto", "json-zstd", "proto-zstd")


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def post(port, process, document):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/traces",
        json.dumps(document).encode(),
        {"Content-Type": "application/json"},
        method="POST",
    )
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert answer.status == 200
                return
        except urllib.error.URLError:
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_every_format_of_the_file_exporter_reads_as_what_was_sent(collector_binary, samples, tmp_path):
    attributes = {"tensorflow.global_step": 3, "half": 0.5, "yes": True, "list": ["a", 1], "map": {"k": "v"}}
    link = {"traceId": f"{9:032x}", "spanId": f"{8:016x}"}
    documents = [
        samples.traces(
            *(samples.span(n, {**attributes, "n": n}, links=[link]) for n in range(1 + first, 101 + first)),
            resource={"service.name": "mnist", "tensorflow.run.id": "r", "process.command_args": ["a", "b"]},
        )
        for first in (0, 1000, 2000)
    ]
    folder, port = tmp_path / "files", free_port()
    folder.mkdir()
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.format(port=port, folder=folder))
    with subprocess.Popen(
        [collector_binary, "--config", config], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            for document in documents:
                post(port, process, document)
        finally:
            process.terminate()  # it writes out what it has, and ends
            process.wait(timeout=30)
    sent = samples.read(*documents)
    for name in FORMATS:
        found = sources.read([str(folder / name)])
        assert found.spans.sort_by("span_id").to_pylist() == sent.spans.sort_by("span_id").to_pylist(), name
        assert found.links.num_rows == 300
        assert found.skipped == {}
    # All of them at once are the same spans four times.
    assert sources.read([str(folder)]).skipped == {"duplicate": 900}
