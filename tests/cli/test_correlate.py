"""`otel-tf correlate` as scripts and people see it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from otel_tf import ids
from otel_tf.cli._correlate_text import render
from otel_tf.cli.main import main

T0 = 1_796_000_000_000_000_000
MS = 1_000_000

#: The keys that scripts may rely on.
KEYS = {
    *("run_id", "spans", "events", "edges", "processes", "domains", "violations", "quarantined"),
    *("wall_clock_inversions", "skipped", "first_skipped", "clocks", "steps", "staleness", "waits"),
    *("stragglers", "seconds", "duration_s"),
}


def _span(
    k: int, name: str, kind: int, at: tuple[int, int], *, parent: str = "", run: str = "r1"
) -> dict[str, Any]:
    attributes = {
        "tensorflow.global_step": k,
        "tensorflow.seq": 10 * k + kind,
        "tensorflow.monotonic_ns": at[0] + 1,
    }
    worker = {"key": "tensorflow.worker", "value": {"stringValue": f"worker:{k % 2}"}}
    return {
        "traceId": f"{ids.trace_id(run, 'closure', k):032x}",
        "spanId": f"{ids.span_id(run, k, name):016x}",
        "parentSpanId": f"{ids.span_id(run, k, parent):016x}" if parent else "",
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(T0 + at[0]),
        "endTimeUnixNano": str(T0 + at[1]),
        "attributes": [{"key": key, "value": {"intValue": str(v)}} for key, v in attributes.items()]
        + [worker],
    }


def _line(run: str, task: str, spans: list[dict[str, Any]]) -> str:
    resource = {
        "service.name": "mnist",
        "service.instance.id": f"{run}/{task}",
        "tensorflow.run.id": run,
        "tensorflow.clock.domain": f"boot-{task}",
    }
    pairs = [{"key": key, "value": {"stringValue": text}} for key, text in resource.items()]
    return json.dumps(
        {"resourceSpans": [{"resource": {"attributes": pairs}, "scopeSpans": [{"spans": spans}]}]}
    )


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A coordinator and two workers, one of them 40 ms ahead, and a line that was cut off."""
    folder = tmp_path / "run"
    folder.mkdir()
    coordinator, workers = [], {"worker:0": [], "worker:1": []}
    for k in range(40):
        begin, ahead = k * 10 * MS, 40 * MS * (k % 2)
        coordinator.append(_span(k, "closure", 4, (begin, begin + 9 * MS)))
        coordinator.append(_span(k, "dispatch", 3, (begin + 1000, begin + 9 * MS - 1000), parent="closure"))
        at = (begin + 300_000 + ahead, begin + 8_500_000 + ahead)
        workers[f"worker:{k % 2}"].append(_span(k, "train_step", 2, at, parent="dispatch"))
    (folder / "chief-0.traces.jsonl").write_text(_line("r1", "chief:0", coordinator) + "\n" + '{"resourceSp')
    for task, spans in workers.items():
        (folder / f"{task.replace(':', '-')}.traces.jsonl").write_text(_line("r1", task, spans) + "\n")
    return folder


def test_json_is_the_one_thing_on_stdout(run_dir, capsys):
    assert main(["correlate", str(run_dir), "--format", "json"]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    assert set(report) >= KEYS
    assert (report["run_id"], report["spans"], report["events"], report["violations"]) == ("r1", 120, 240, 0)
    assert (report["processes"], report["domains"]) == (3, 3)
    assert report["wall_clock_inversions"] > 0
    assert report["skipped"] == {"truncated": 1}
    assert report["first_skipped"]["truncated"].startswith("chief-0.traces.jsonl:2: ")
    assert report["steps"]["worker:1"] == {"count": 20, "first": 1, "last": 39}
    assert set(report["staleness"]) == {"worker:0", "worker:1"}
    assert set(report["seconds"]) == {"ingest", "correlate", "write"}
    clocks = {clock["domain"]: clock for clock in report["clocks"]}
    assert abs(clocks["boot-worker:1"]["offset_ns"] - 40 * MS) <= clocks["boot-worker:1"]["error_ns"]
    assert report["duration_s"] == pytest.approx(0.399)
    for clock in report["clocks"]:
        assert clock["drift_error_ppm"] == pytest.approx(clock["error_ns"] / 0.399 / 1000, rel=1e-3)
    assert "120 spans read" in printed.err


def test_the_table_tells_workers_clocks_and_what_was_left_out(run_dir, capsys):
    assert main(["correlate", str(run_dir)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Run r1: 120 spans of 3 processes on 3 clocks over 399 ms, 160 edges (ingest ")
    assert "Order: no violation." in text
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert rows["worker:1"][1:4] == ["20", "1", "39"]
    assert abs(float(rows["boot-worker:1"][1]) - 40) < 1
    assert rows["boot-worker:1"][2:4] == ["ms", "±"]
    assert rows["boot-chief:0"][:2] == ["boot-chief:0", "reference"]
    assert "Times are known to ± " in text
    assert "1 × truncated, first: chief-0.traces.jsonl:2: " in text


def test_sinks_are_written_and_the_report_is_printed(run_dir, tmp_path, capsys):
    out, otlp = tmp_path / "out", tmp_path / "run.jsonl"
    arguments = [
        "correlate",
        str(run_dir),
        "--to",
        f"parquet={out}",
        "--to",
        f"otlp={otlp}",
        "--format",
        "json",
    ]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["spans"] == 120
    assert (out / "spans.parquet").stat().st_size > 0
    assert (out / "edges.parquet").stat().st_size > 0
    assert otlp.stat().st_size > 0
    assert f"otel-tf: 120 spans and 160 edges written to {out}" in printed.err


def test_a_sink_that_fails_leaves_the_report_and_the_others(run_dir, tmp_path, capsys):
    (tmp_path / "file").touch()
    bad = f"parquet={tmp_path}/file/out"
    good = tmp_path / "run.jsonl"
    assert main(["correlate", str(run_dir), "--to", bad, "--to", f"otlp={good}", "--format", "json"]) == 2
    printed = capsys.readouterr()
    assert json.loads(printed.out)["spans"] == 120
    assert good.exists()
    assert f"otel-tf: {bad}: Not a directory" in printed.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "otel-tf: nowhere: No such file or directory"),
        (["RUN", "--run", "x"], "otel-tf: no spans of run 'x'; runs here: r1"),
        (["RUN", "--steps", "90:"], "otel-tf: no spans of the steps 90:"),
        (
            ["RUN", "--to", "tempo=x"],
            "otel-tf: --to tempo=x: not one of parquet=DIR, jaeger=URL, otlp=FILE, perfetto=FILE",
        ),
        (["RUN", "--to", "jaeger=http://localhost:16686"], "port 16686 is Jaeger's UI"),
        (["RUN", "--reference", "x"], "otel-tf: no clock domain 'x'; there are: boot-chief:0, boot-worker:0"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(run_dir, capsys, arguments, said):
    filled = [str(run_dir) if argument == "RUN" else argument for argument in arguments]
    assert main(["correlate", *filled]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "spans read" not in line]
    assert len(lines) == 1
    assert said in lines[0]


@pytest.mark.parametrize("steps", ["", ":", "a:b", "5:3", "1:2:3", "-1:4"])
def test_steps_that_are_no_range(run_dir, capsys, steps):
    with pytest.raises(SystemExit) as ended:
        main(["correlate", str(run_dir), f"--steps={steps}"])
    assert ended.value.code == 2
    assert "argument --steps" in capsys.readouterr().err


@pytest.mark.parametrize(("steps", "count"), [("5", 1), ("5:", 35), (":5", 6), ("5:9", 5)])
def test_steps_that_are(run_dir, capsys, steps, count):
    assert main(["correlate", str(run_dir), "--steps", steps, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["spans"] == 3 * count


def test_the_reference_keeps_its_time(run_dir, capsys):
    assert main(["correlate", str(run_dir), "--reference", "boot-worker:1", "--format", "json"]) == 0
    clocks = {clock["domain"]: clock for clock in json.loads(capsys.readouterr().out)["clocks"]}
    assert (clocks["boot-worker:1"]["offset_ns"], clocks["boot-worker:1"]["error_ns"]) == (0, 0)
    chief = clocks["boot-chief:0"]
    assert abs(chief["offset_ns"] + 40 * MS) <= chief["error_ns"]


@pytest.mark.parametrize(
    ("report", "code"), [({}, 0), ({"violations": 3}, 1), ({"quarantined": [{"kind": "parent"}]}, 1)]
)
def test_check_answers_by_exit_code(run_dir, monkeypatch, capsys, report, code):
    from otel_tf.correlator import pipeline

    correlate_tables = pipeline.correlate_tables

    def with_report(*args: Any, **kwargs: Any) -> Any:
        found = correlate_tables(*args, **kwargs)
        found.report.update(report)
        return found

    monkeypatch.setattr(pipeline, "correlate_tables", with_report)
    assert main(["correlate", str(run_dir), "--check"]) == code
    assert main(["correlate", str(run_dir)]) == 0
    assert ("no violation" in capsys.readouterr().out) == ("violations" not in report)


def test_several_runs_are_told_of(run_dir, capsys):
    old = [_span(1, "train_step", 2, (-5 * MS, -4 * MS), run="r0")]
    (run_dir / "old.traces.jsonl").write_text(_line("r0", "worker:0", old) + "\n")
    assert main(["correlate", str(run_dir), "--format", "json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["run_id"] == "r1"
    assert "otel-tf: 2 runs here: taking the last one, r1 (others: r0; choose with --run)" in printed.err


def test_the_installed_command_into_a_closed_pipe(run_dir):
    command = f"{sys.executable} -m otel_tf correlate {run_dir} | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("Run r1")
    assert "Traceback" not in done.stderr


def test_unknown_values_are_dashes_and_long_tables_are_cut():
    report: dict[str, Any] = {
        **{"run_id": None, "spans": 1, "processes": 1, "domains": 1, "edges": 0, "violations": 0},
        **{"quarantined": [], "wall_clock_inversions": 0, "seconds": {}, "reference": "ps"},
        "steps": {f"worker:{n}": {"count": 1, "first": None, "last": None} for n in range(60)},
        "clocks": [
            {
                **{"domain": "odd", "offset_ns": 8_001_100_123, "error_ns": 2_140_000},
                **{"drift_ppm": 1.234, "drift_error_ppm": 0.04},
                "steps": [{"at_ns": 5, "size_ns": 20_000_000}],
            },
            {"domain": "ps", "offset_ns": 0, "error_ns": 0, "drift_ppm": 0.0, "steps": []},
            {"domain": "lost", "offset_ns": None, "error_ns": None, "drift_ppm": None, "steps": []},
        ],
    }
    text = render(report)
    assert text.startswith("Run (unnamed): 1 spans")
    assert "… and 20 more" in text
    assert text.index("worker:2 ") < text.index("worker:10 ")
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "STALE" not in rows["WORKER"]
    assert rows["lost"].split() == ["lost", "unknown", "-", "-"]
    assert rows["ps"].split() == ["ps", "reference", "-", "-"]
    assert " ".join(rows["odd"].split()) == "odd +8.0011 s ± 2.1 ms +1.234 ± 0.040 ppm 1 ×, +20 ms"
    assert text.index("\nps ") < text.index("\nlost ") < text.index("\nodd ")
    assert "Times are known to ± 2.1 ms (worst: odd)." in text
    assert "NOT TIED to the others by any cause, times as recorded: lost." in text


def test_who_is_late_comes_first_with_how_sure_that_is():
    report: dict[str, Any] = {
        **{"run_id": "r", "spans": 9, "processes": 3, "domains": 2, "edges": 4, "violations": 2},
        **{"quarantined": [{"kind": "call"}], "quarantined_count": 7, "wall_clock_inversions": 1},
        **{"duration_s": 90.0, "clocks": [], "steps": {}},
        "stragglers": [
            {"worker": "worker:10", "score": 0.625},
            {"worker": "worker:3", "score": 0.11},
            {"worker": "worker:2", "score": -0.002},
        ],
        "staleness": {
            "worker:2": {"p50": 2.0, "p99": 3.83, "max": 4, "source": "correlated"},
            "worker:3": {"p50": 1.0, "p99": 2.0, "max": 9, "source": "coordinator"},
        },
        "waits": {"worker:2": {"mean_s": 0.01234, "p99_s": 1.5}},
    }
    text = render(report)
    assert "over 90 s" in text
    assert "Order: 2 VIOLATIONS." in text
    assert "contradict the others: 7 edges, the first:\n  kind call" in text
    assert (
        "Slow: worker:10 works 62% longer on a step than the typical worker, waits taken off; 1 more" in text
    )
    assert "Behind: worker:2 applies what is up to 4 steps old, mostly 2 (counted)." in text
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.startswith("worker:")}
    assert list(rows) == ["worker:10", "worker:3", "worker:2"]
    assert rows["worker:10"] == ["worker:10", "+62%", "-", "-", "-", "-", "-", "-"]
    assert rows["worker:2"] == ["worker:2", "0%", "2", "3.8", "4", "counted", "12", "ms", "1.5", "s"]
    assert rows["worker:3"][5] == "estimated"
    nobody = render({**report, "stragglers": report["stragglers"][2:], "staleness": {}})
    assert "Slow" not in nobody
    assert "Behind" not in nobody


def test_what_a_jaeger_lacks_is_told(run_dir, capsys):
    assert main(["correlate", str(run_dir), "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["missing"] == {}
    assert "Jaeger" not in render(report)
    assert "Jaeger" not in render({**report, "missing": {"parents": 0, "closures": 0}})
    text = render({**report, "missing": {"parents": 7, "closures": 0, "sequence": 2_000}})
    assert "No longer in Jaeger, or never: 7 parents, 2,000 sequence numbers of processes." in text
