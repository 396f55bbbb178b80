from __future__ import annotations

import json

import pyarrow.parquet as pq

from otel_tf.cli.main import main


def test_a_simulated_run_is_written_and_correlates(tmp_path, capsys):
    out = tmp_path / "run"
    assert (
        main(
            [
                "simulate",
                "--out",
                str(out),
                "--workers",
                "3",
                "--spans",
                "900",
                "--seed",
                "3",
                "--format",
                "json",
            ]
        )
        == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert report["spans"] == pq.read_table(report["truth"]).num_rows
    assert main(["correlate", str(out), "--format", "json", "--check"]) == 0
    correlated = json.loads(capsys.readouterr().out)
    assert correlated["spans"] == report["spans"]
    assert correlated["wall_clock_inversions"] == report["violations_raw"] > 0
    assert correlated["violations"] == 0
    assert correlated["domains"] == 4
    assert correlated["reference"] == "host-ps-0"


def test_a_table_is_for_people(tmp_path, capsys):
    assert main(["simulate", "--out", str(tmp_path), "--spans", "300", "--topology", "ring"]) == 0
    assert "spans in" in capsys.readouterr().out


def test_bad_values_are_said_in_one_line(tmp_path, capsys):
    assert main(["simulate", "--out", str(tmp_path), "--loss", "2"]) == 2
    assert capsys.readouterr().err == "otel-tf: a loss of 2.0 is not a share from 0 to below 1\n"
    (tmp_path / "file").write_text("")
    assert main(["simulate", "--out", str(tmp_path / "file"), "--spans", "30"]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err
