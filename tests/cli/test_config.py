from __future__ import annotations

import json
import os

import pytest

from otel_tf import config
from otel_tf.cli.main import main


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


def test_every_setting_with_value_source_default_and_doc(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_TF_FLUSH_INTERVAL", "50")
    monkeypatch.setenv("OTEL_TF_RUN_DIR", "/data/run")
    assert main(["config", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    by_env = {each["env"]: each for each in found["settings"]}
    assert [each["env"] for each in found["settings"]] == [row.metadata["env"] for row in config.rows()]
    assert all(set(each) == {"env", "value", "source", "default", "doc"} for each in found["settings"])
    interval = by_env["OTEL_TF_FLUSH_INTERVAL"]
    assert (interval["value"], interval["source"], interval["default"]) == (50, "environment", 200)
    assert by_env["OTEL_TF_RUN_DIR"]["value"] == "/data/run"
    assert (by_env["OTEL_TF_SPOOL"]["value"], by_env["OTEL_TF_SPOOL"]["source"]) == (True, "default")
    assert by_env["OTEL_TF_RUN_ID"]["value"] is None


def test_a_bad_variable_is_said_on_stderr_and_the_default_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_TF_SPOOL", "yes")
    assert main(["config", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert next(each for each in found["settings"] if each["env"] == "OTEL_TF_SPOOL")["value"] is True
    assert "OTEL_TF_SPOOL='yes'" in caplog.text


def test_opentelemetrys_own_variables_without_their_secrets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=hush,tenant=hush%20too")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    for arguments in (["config", "--format", "json"], ["config"]):
        assert main(arguments) == 0
        shown = capsys.readouterr().out
        assert "hush" not in shown
        assert "api-key=***,tenant=***" in shown
        assert "traceidratio" in shown


def test_as_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OTEL_TF_EXIT_TIMEOUT", "5000")
    assert main(["config"]) == 0
    shown = capsys.readouterr().out
    assert "OTEL_TF_EXIT_TIMEOUT = 5000\n" in shown
    assert "[from the environment]" in shown
    assert "OTEL_TF_RUN_ID = (not set)\n" in shown
    assert "OTEL_TF_SPOOL = true\n" in shown
