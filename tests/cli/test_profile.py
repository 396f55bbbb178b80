"""`otel-tf profile` as scripts and people see it."""

from __future__ import annotations

import json

import pytest

from otel_tf.cli.main import main
from tests.profiler.pss import Cluster, one_after_another
from tests.profiler.test_link import write_run

#: The keys that scripts may rely on.
KEYS = {"files", "hosts", "op_spans", "steps", "linked_steps", "edges", "absolute_time", "skipped"}


@pytest.fixture
def cluster():
    return Cluster(one_after_another(8))


def test_the_json_has_the_keys_of_the_contract(tmp_path, cluster, capsys):
    session = cluster.write(tmp_path)
    run = write_run(tmp_path / "run", cluster)
    assert main(["profile", str(session), "--run", str(run), "--format", "json"]) == 0
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert report.keys() >= KEYS
    assert report["files"] == 4
    assert [host["task"] for host in report["hosts"]] == ["ps:0", "ps:1", "worker:0", "worker:1"]
    assert (report["steps"], report["linked_steps"]) == (8, 8)
    assert report["edges"] == {"send_recv": 32, "collective": 0, "apply": 14}
    assert report["absolute_time"] is True
    assert report["skipped"] == {}
    # All ops are in the run directory now, and reading again changes nothing.
    (written,) = run.glob("*.ops.jsonl")
    lines = [json.loads(line) for line in written.read_text().splitlines()]
    spans = [span for line in lines for span in line["resourceSpans"][0]["scopeSpans"][0]["spans"]]
    assert len(spans) == report["op_spans"]
    before = written.read_bytes()
    assert main(["profile", str(session), "--run", str(run), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == report
    assert written.read_bytes() == before
    assert main(["correlate", str(run), "--format", "json", "--check"]) == 0
    assert json.loads(capsys.readouterr().out)["spans"] == 8 + len(spans)


def test_people_get_a_table(tmp_path, cluster, capsys):
    session = cluster.write(tmp_path)
    assert main(["profile", str(session)]) == 0
    said = capsys.readouterr().out
    assert "worker-1.xplane.pb" in said
    assert "8 steps, 0 of them known" in said
    assert "32 sends with their receives" in said
    assert "staleness of 16 applied gradients is exact" in said


def test_addresses_come_from_a_cluster_spec(tmp_path, cluster, capsys):
    session = cluster.write(tmp_path)
    for task, address in (("worker-0", "localhost_1"), ("ps-1", "10.0.0.2_22")):
        (session / f"{task}.xplane.pb").rename(session / f"{address}.xplane.pb")
    spec = tmp_path / "cluster.json"
    spec.write_text('{"cluster": {"worker": ["localhost:1"], "ps": ["x:1", "10.0.0.2:22"]}}')
    assert main(["profile", str(session), "--cluster-spec", str(spec), "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert sorted(host["task"] for host in report["hosts"]) == ["ps:0", "ps:1", "worker:0", "worker:1"]


def test_sinks(tmp_path, cluster, capsys):
    session = cluster.write(tmp_path)
    sinks = [f"otlp={tmp_path / 'a.jsonl'}", f"otlp={tmp_path / 'a.pb'}", f"parquet={tmp_path / 'out'}"]
    assert main(["profile", str(session), *(part for sink in sinks for part in ("--to", sink))]) == 0
    capsys.readouterr()
    counts = []
    for file in ("a.jsonl", "a.pb"):
        assert main(["correlate", str(tmp_path / file), "--format", "json"]) == 0
        counts.append(json.loads(capsys.readouterr().out)["spans"])
    assert counts[0] == counts[1] > 100
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"ops.parquet", "edges.parquet"}


def test_a_sink_that_fails_leaves_the_report_and_the_others(tmp_path, cluster, capsys):
    session = cluster.write(tmp_path)
    (tmp_path / "file").touch()
    bad, good = f"otlp={tmp_path / 'file' / 'a.jsonl'}", f"otlp={tmp_path / 'b.jsonl'}"
    assert main(["profile", str(session), "--to", bad, "--to", good, "--format", "json"]) == 2
    said = capsys.readouterr()
    assert json.loads(said.out)["files"] == 4
    assert "file" in said.err and (tmp_path / "b.jsonl").stat().st_size > 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nowhere"], "nowhere: No such file"),
        (["empty"], "no profile"),
        (["zero.xplane.pb"], "zero.xplane.pb: 0 bytes"),
        (["zero.xplane.pb", "--to", "perfetto=x"], "--to perfetto=x: not one of"),
        (["zero.xplane.pb", "--cluster-spec", "zero.xplane.pb"], "zero.xplane.pb: "),
        (["now", "--run", "nowhere"], "nowhere: No such file"),
    ],
)
def test_bad_input_is_one_line_that_names_it(tmp_path, monkeypatch, capsys, cluster, arguments, named):
    cluster.write(tmp_path).rename(tmp_path / "now")
    (tmp_path / "empty").mkdir()
    (tmp_path / "zero.xplane.pb").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["profile", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert named in said.err
    assert said.err.count("\n") == 1
