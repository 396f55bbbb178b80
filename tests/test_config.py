from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from otel_tf import config
from otel_tf.errors import UserError


def test_an_argument_wins_over_a_variable_and_that_over_the_default() -> None:
    environ = {"OTEL_TF_FLUSH_INTERVAL": "50", "OTEL_TF_EXIT_TIMEOUT": "60"}
    one = config.resolve(environ, flush_interval_ms=10)
    assert (one.flush_interval_ms, one.exit_timeout_ms, one.drain_interval_ms) == (10, 60, 2000)
    assert one.origins["flush_interval_ms"] == "argument"
    assert one.origins["exit_timeout_ms"] == "environment"
    assert one.origins["drain_interval_ms"] == "default"


#: A value of each kind that no setting has by default, as text and as Python has it.
OTHER: dict[type, list[tuple[str, Any]]] = {
    str: [("other", "other")],
    bool: [("true", True), ("false", False)],
    int: [("17", 17)],
    Path: [("some/where", Path("some/where"))],
}


@pytest.mark.parametrize("row", config.rows(), ids=lambda row: row.name)
def test_each_can_be_given_both_ways(row: dataclasses.Field[Any]) -> None:
    for text, value in OTHER[row.metadata["kind"]]:
        by_variable = config.resolve({row.metadata["env"]: text})
        by_argument = config.resolve({row.metadata["env"]: "unused"}, **{row.name: value})
        for one, origin in ((by_variable, "environment"), (by_argument, "argument")):
            assert getattr(one, row.name) == value
            assert one.origins[row.name] == origin
            others = {other.name for other in config.rows()} - {row.name}
            assert {one.origins[name] for name in others} == {"default"}


def test_none_is_no_argument() -> None:
    assert config.resolve({"OTEL_TF_RUN_ID": "a"}, run_id=None).run_id == "a"


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("TRUE", True), ("false", False), (" False ", False), ("", True), ("  ", True)],
)
def test_booleans(text: str, value: bool, caplog: pytest.LogCaptureFixture) -> None:
    assert config.resolve({"OTEL_TF_SPOOL": text}).spool is value
    assert caplog.records == []


@pytest.mark.parametrize(
    ("variable", "text", "field"),
    [
        ("OTEL_TF_SPOOL", "yes", "spool"),
        ("OTEL_TF_SPOOL", "1", "spool"),
        ("OTEL_TF_FLUSH_INTERVAL", "soon", "flush_interval_ms"),
        ("OTEL_TF_FLUSH_INTERVAL", "-1", "flush_interval_ms"),
        ("OTEL_TF_FLUSH_INTERVAL", "1.5", "flush_interval_ms"),
        ("OTEL_TF_RUN_ID", "a\x1fb", "run_id"),
    ],
)
def test_a_bad_variable_is_said_by_name_and_ignored(
    variable: str, text: str, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = config.resolve({variable: text})
    default = {each.name: each.default for each in config.rows()}[field]
    assert getattr(one, field) == default
    assert one.origins[field] == "default"
    (said,) = caplog.messages
    assert said.startswith(f"{variable}=")


def test_an_unknown_argument_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(UserError, match=r"unknown setting 'flush'; known are: .*flush_interval_ms"):
        config.resolve({}, flush=1)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("flush_interval_ms", -1),
        ("flush_interval_ms", "soon"),
        ("flush_interval_ms", 1.5),
        ("flush_interval_ms", True),
        ("spool", "yes"),
        ("spool", 1),
        ("run_id", 7),
        ("run_dir", 7),
    ],
)
def test_an_argument_that_cannot_be_used_is_an_error(name: str, given: Any) -> None:
    with pytest.raises(UserError, match=rf"{name}=.*OTEL_TF_"):
        config.resolve({}, **{name: given})


def test_arguments_may_be_texts() -> None:
    one = config.resolve({}, spool="false", flush_interval_ms="10")
    assert (one.spool, one.flush_interval_ms) == (False, 10)


def test_paths_expand_the_home_folder() -> None:
    assert config.resolve({"OTEL_TF_RUN_DIR": "~/runs"}).run_dir == Path.home() / "runs"
    assert config.resolve({}, run_dir="somewhere").run_dir == Path("somewhere")


def test_the_table_is_whole() -> None:
    rows = config.rows()
    assert {row.name for row in rows} == {
        field.name for field in dataclasses.fields(config.Settings) if field.name != "origins"
    }
    seen: set[str] = set()
    for row in rows:
        env: Any = row.metadata["env"]
        assert env.startswith("OTEL_TF_")
        assert env not in seen
        seen.add(env)
        assert row.metadata["doc"].endswith(".")
