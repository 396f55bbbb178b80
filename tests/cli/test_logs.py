"""`otel-tf logs` as scripts and people see it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from otel_tf.cli._logs_text import Printer
from otel_tf.cli.main import main

T0 = 1_796_000_000_000_000_000
MS = 1_000_000

#: The keys that scripts may rely on.
KEYS = {
    *("order", "time_ns", "corrected_ns", "error_ns", "worker", "step", "severity", "body"),
    *("trace_id", "span_id", "file", "line"),
}


def _pairs(attributes: dict[str, str | int]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(of)} if isinstance(of, int) else {"stringValue": of}}
        for key, of in attributes.items()
    ]


def _resource(worker: str) -> dict[str, Any]:
    kind, index = worker.split(":")
    return {
        "attributes": _pairs(
            {
                "service.name": "train",
                "service.instance.id": f"r1/{worker}",
                "tensorflow.run.id": "r1",
                "tensorflow.clock.domain": worker,
                "tensorflow.task.type": kind,
                "tensorflow.task.index": int(index),
                "k8s.pod.name": f"pod-{index}",
                "host.name": f"node-{index}",
            }
        )
    }


def record(at: int, body: str, severity: int = 9, **attributes: str | int) -> dict[str, Any]:
    return {
        "timeUnixNano": str(T0 + at),
        "observedTimeUnixNano": str(T0 + at),
        "severityNumber": severity,
        "body": {"stringValue": body},
        "attributes": _pairs({"tensorflow.monotonic_ns": 10**12 + at, **attributes}),
    }


def logs_line(worker: str, *records: dict[str, Any]) -> str:
    scope = {"scope": {"name": "job"}, "logRecords": list(records)}
    return json.dumps({"resourceLogs": [{"resource": _resource(worker), "scopeLogs": [scope]}]}) + "\n"


def traces_line(worker: str, *steps: tuple[int, int, int]) -> str:
    spans = [
        {
            "traceId": f"{number + 1:032x}",
            "spanId": f"{number + 1:015x}{worker[-1]}",
            "name": "train_step",
            "kind": 1,
            "startTimeUnixNano": str(T0 + start),
            "endTimeUnixNano": str(T0 + end),
            "attributes": _pairs(
                {
                    "tensorflow.global_step": number,
                    "tensorflow.monotonic_ns": 10**12 + start,
                    "tensorflow.seq": number,
                }
            ),
        }
        for number, start, end in steps
    ]
    return (
        json.dumps({"resourceSpans": [{"resource": _resource(worker), "scopeSpans": [{"spans": spans}]}]})
        + "\n"
    )


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    steps = [(number, number * 10 * MS, number * 10 * MS + 5 * MS) for number in range(1, 4)]
    for worker in ("worker:0", "worker:1"):
        name = worker.replace(":", "-")
        (folder / f"{name}.1.traces.jsonl").write_text(traces_line(worker, *steps))
        (folder / f"{name}.1.logs.jsonl").write_text(
            logs_line(
                worker,
                record(11 * MS, f"first of {worker}"),
                record(
                    21 * MS, f"second of {worker}", 17, **{"code.file.path": "/a/b.py", "code.line.number": 7}
                ),
                record(28 * MS, f"between\nsteps of {worker}", 13),
            )
        )
    return folder


def objects(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["logs", *arguments, "--format", "json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_one_object_a_line_with_the_keys_that_scripts_rely_on(run_dir: Path, capsys: Any) -> None:
    found = objects(capsys, str(run_dir))
    assert len(found) == 6
    assert all(set(one) >= KEYS for one in found)
    assert [one["order"] for one in found] == list(range(6))
    one = next(one for one in found if one["body"] == "second of worker:1")
    assert one["trace_id"] == f"{3:032x}"
    assert one["span_id"] == f"{3:015x}1"
    assert (one["step"], one["severity"], one["worker"], one["pod"]) == (2, "ERROR", "worker:1", "pod-1")
    assert (one["file"], one["line"]) == ("/a/b.py", 7)
    assert one["time_ns"] == T0 + 21 * MS


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (["--worker", "worker:1"], 3),
        (["--worker", "worker:1", "--worker", "worker:0"], 6),
        (["--worker", "nobody:0"], 0),
        (["--step", "2"], 4),
        (["--step", "2:"], 4),
        (["--step", ":1"], 2),
        (["--level", "warn"], 4),
        (["--level", "error"], 2),
        (["--grep", "^second"], 2),
        (["--grep", "second", "--worker", "worker:0", "--level", "error", "--step", "2:2"], 1),
    ],
)
def test_what_is_asked_for(run_dir: Path, capsys: Any, options: list[str], count: int) -> None:
    assert len(objects(capsys, str(run_dir), *options)) == count


def test_lines_for_people(run_dir: Path, capsys: Any) -> None:
    assert main(["logs", str(run_dir)]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert len(lines) == 8
    assert "\x1b" not in said.out
    assert any(
        line.split()[4:8] == ["worker:0", "2", "ERROR", "second"] and line.endswith("(b.py:7)")
        for line in lines
    )
    assert "    steps of worker:1" in lines
    assert "6 between events of their own process" in said.err


def test_colours_tell_workers_apart_on_a_terminal(run_dir: Path, monkeypatch: Any) -> None:
    from otel_tf.correlator.logs import merge

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    logs = merge([str(run_dir)]).logs
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured, plain = Terminal(), Terminal()
    Printer(coloured, as_json=False).write(logs)
    by_worker = {
        worker: {
            line.split("m")[0] for line in coloured.getvalue().splitlines() if f"worker:{worker} " in line
        }
        for worker in (0, 1)
    }
    assert len(by_worker[0]) == len(by_worker[1]) == 1
    assert by_worker[0] != by_worker[1]
    monkeypatch.setenv("NO_COLOR", "1")
    Printer(plain, as_json=False).write(logs)
    assert "\x1b" not in plain.getvalue()


@pytest.mark.parametrize(
    "options", [["--grep", "("], ["--step", "x"], ["--level", "loud"], ["--utc-offset", "1"]]
)
def test_bad_options(run_dir: Path, capsys: Any, options: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["logs", str(run_dir), *options])
    assert raised.value.code == 2
    assert options[1] in capsys.readouterr().err


def test_sources_that_cannot_be_used(run_dir: Path, tmp_path: Path, capsys: Any) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, part in (
        ([str(empty)], "no OTLP"),
        ([str(run_dir / "nothing")], "No such file"),
        ([str(run_dir / "worker-0.1.traces.jsonl")], "no log records"),
        ([str(run_dir), "--run", "r2"], "r2"),
        ([str(run_dir), "--import", "--follow"], "--follow"),
        (["--import", str(tmp_path / "nothing")], "No such file"),
    ):
        assert main(["logs", *arguments]) == 2, arguments
        said = capsys.readouterr()
        assert said.out == ""
        assert part in said.err.splitlines()[-1]


def test_lines_that_are_cut_off_cost_only_themselves(run_dir: Path, capsys: Any) -> None:
    path = run_dir / "worker-0.1.logs.jsonl"
    path.write_text(path.read_text() + path.read_text()[:100])
    assert len(objects(capsys, str(run_dir))) == 6
    main(["logs", str(run_dir)])
    assert "unusable: 1 not_json" in capsys.readouterr().err


def test_plain_files(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "worker-0.log").write_text("2024-01-01 00:00:01 INFO one\nprinted it=5\n")
    (tmp_path / "b.log").write_text("2024-01-01 02:00:00 ERROR two on node7\n")
    found = objects(
        capsys,
        *("--import", str(tmp_path / "worker-0.log"), f"ps:0={tmp_path / 'b.log'}"),
        *("--step-pattern", r"it=(\d+)", "--utc-offset", "+01:00"),
    )
    assert [(one["worker"], one["step"], one["evidence"], one["body"]) for one in found] == [
        ("worker:0", None, "time", "one"),
        ("worker:0", 5, "position", "printed it=5"),
        ("ps:0", None, "time", "two on node7"),
    ]
    assert found[0]["corrected_ns"] == 1_704_063_601_000_000_000
    # Of a line that only has its place, no time is claimed.
    assert found[1]["corrected_ns"] is None
    assert main(["logs", "--import", str(tmp_path / "worker-0.log")]) == 0
    assert "1 by their own times, 1 by their place in the file only" in capsys.readouterr().err


def test_following_a_run_that_grows(run_dir: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "otel_tf", "logs", str(run_dir), "--follow", "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ),
    ) as process:
        try:
            assert process.stdout is not None
            first = [json.loads(process.stdout.readline())["body"] for _ in range(6)]
            time.sleep(0.1)
            with (run_dir / "worker-0.1.logs.jsonl").open("a") as file:
                file.write(logs_line("worker:0", record(40 * MS, "later")))
            assert json.loads(process.stdout.readline())["body"] == "later"
        finally:
            process.kill()
    assert sorted(first)[0] == "between\nsteps of worker:0"
