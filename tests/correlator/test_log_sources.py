"""Reading log records: our own lines, a real Collector's, and what is damaged."""

from __future__ import annotations

import gzip
import json
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from otel_tf.correlator.log_sources import read_logs
from otel_tf.correlator.sources.skipped import Skipped
from otel_tf.logs.encode import attribute_list, log_record, logs_line
from tests.correlator.sources.test_collector import free_port

T = 1_796_000_000_000_000_000
WHO = {
    "service.name": "train",
    "service.instance.id": "r/worker:1",
    "host.name": "node7",
    "process.pid": 17,
    "k8s.pod.name": "train-worker-1",
    "tensorflow.run.id": "r",
    "tensorflow.task.type": "worker",
    "tensorflow.task.index": 1,
    "tensorflow.clock.domain": "boot",
}
#: Whatever a text may hold.
BODIES = ["plain", 'quoted "x"', "two\nlines\ttab", "é √ 𝄞", "\\back\\slash", "", "\x00\x1b[31m"]


def line(*bodies: str, **who: str | int) -> bytes:
    attributes = attribute_list(
        {
            "tensorflow.seq": 5,
            "tensorflow.monotonic_ns": 10**12,
            "tensorflow.global_step": 41207,
            "code.file.path": "/a/b.py",
            "code.line.number": 7,
            "log.iostream": "stderr",
        }
    )
    records = [
        log_record(T + n, T + n + 1, 13, "WARN", body, attributes, trace_id=0xAB << 64 | n + 1, span_id=n + 1)
        for n, body in enumerate(bodies)
    ]
    return logs_line(attribute_list({**WHO, **who}), {"my.log": records})


def read(*paths: Path, run: str | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_logs([str(path) for path in paths], Skipped(), run=run).to_pylist()
    return found


def test_every_field(tmp_path: Path) -> None:
    (tmp_path / "a.logs.jsonl").write_bytes(line(*BODIES))
    found = read(tmp_path)
    assert [row["body"] for row in found] == BODIES
    assert found[0] == {
        **{"time_ns": T, "observed_ns": T + 1, "mono_ns": 10**12, "seq": 5, "severity": 13, "body": "plain"},
        **{"logger": "my.log", "stream": "stderr", "file": "/a/b.py", "line": 7, "run": "r", "pid": "17"},
        **{"process": "r/worker:1", "domain": "boot", "worker": "worker:1", "host": "node7"},
        **{"pod": "train-worker-1", "global_step": 41207, "trace_hi": 0xAB, "trace_lo": 1, "span_id": 1},
        **{"exception_type": None, "exception_stacktrace": None},
    }


def test_what_a_real_collector_makes_of_our_lines(collector_binary: Path, tmp_path: Path) -> None:
    port, written = free_port(), tmp_path / "collector.jsonl"
    config = tmp_path / "config.yaml"
    config.write_text(
        f"""
        receivers: {{otlp: {{protocols: {{http: {{endpoint: "127.0.0.1:{port}"}}}}}}}}
        exporters: {{file: {{path: "{written}"}}}}
        service:
          telemetry: {{metrics: {{level: none}}, logs: {{level: error}}}}
          pipelines: {{logs: {{receivers: [otlp], exporters: [file]}}}}
        """
    )
    own = tmp_path / "own.jsonl"
    own.write_bytes(line(*BODIES) + line("other", **{"service.instance.id": "r/worker:2"}))
    with subprocess.Popen(
        [collector_binary, "--config", config], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            for document in own.read_bytes().splitlines():
                _post(port, process, document)
        finally:
            process.terminate()
            process.wait(timeout=30)
    assert read(written) == read(own)


def _post(port: int, process: subprocess.Popen[str], document: bytes) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/logs", document, {"Content-Type": "application/json"}, method="POST"
    )
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert answer.status == 200
                return
        except urllib.error.URLError:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_bodies_that_are_no_text_and_records_of_others(tmp_path: Path) -> None:
    record = {
        "timeUnixNano": 5,
        "body": {"kvlistValue": {"values": [{"key": "a", "value": {"intValue": 3}}]}},
        "attributes": [],
        "severityNumber": 99,
    }
    document = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record, {}]}]}]}
    (tmp_path / "x.json").write_text(json.dumps(document, indent=1))
    (tmp_path / "x.gz").write_bytes(gzip.compress(line("packed")))
    one, two = read(tmp_path / "x.json")
    assert (json.loads(one["body"]), one["severity"], one["time_ns"]) == ({"a": 3}, 24, 5)
    assert (two["body"], two["time_ns"], two["worker"], two["run"]) == ("", None, None, None)
    assert [row["body"] for row in read(tmp_path / "x.gz")] == ["packed"]


def test_damage_costs_the_lines_it_is_in(tmp_path: Path) -> None:
    path, skipped = tmp_path / "a.jsonl", Skipped()
    whole = line("one") + line("two")
    path.write_bytes(
        whole + b'{"resourceLogs": 3}\n' + line("caf\xe9").replace(b"\xc3\xa9", b"\xe9") + whole[:50]
    )
    found = read_logs([str(path)], skipped)
    assert found["body"].to_pylist() == ["one", "two", "caf\N{REPLACEMENT CHARACTER}"]
    assert skipped.counts == {"not_json": 2}


def test_of_several_runs_the_last_or_the_one_that_is_asked_for(tmp_path: Path) -> None:
    later = line("later", **{"tensorflow.run.id": "s"}).replace(str(T).encode(), str(T + 10**9).encode())
    (tmp_path / "a.jsonl").write_bytes(line("early") + later)
    assert [row["body"] for row in read(tmp_path)] == ["later"]
    assert [row["body"] for row in read(tmp_path, run="r")] == ["early"]


@pytest.mark.parametrize("content", [b"", b'{"resourceSpans":[]}\n'])
def test_files_without_any(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(content)
    assert read(tmp_path) == []


def test_what_several_files_have_is_there_once(tmp_path: Path) -> None:
    bodies = ["same", "same", "other"]
    (tmp_path / "spool.jsonl").write_bytes(line(*bodies))
    (tmp_path / "gateway.jsonl").write_bytes(line(*reversed(bodies)) + line("only there"))
    skipped = Skipped()
    found = read_logs([str(tmp_path)], skipped)["body"].to_pylist()
    assert sorted(found) == ["only there", "other", "other", "same", "same", "same"]
    # Those that differ in time are others: of the three of each file, one is in both.
    assert skipped.counts == {"duplicate": 1}


def test_a_line_that_came_twice_in_one_file_is_there_twice(tmp_path: Path) -> None:
    twice = line("again") + line("again")
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_bytes(twice)
    assert [row["body"] for row in read(tmp_path)] == ["again", "again"]
    assert [row["body"] for row in read(tmp_path / "a.jsonl")] == ["again", "again"]
