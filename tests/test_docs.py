"""The documentation names what there is, and only that."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from otel_tf import semconv
from otel_tf.cli.main import main

ROOT = Path(__file__).resolve().parents[1]


def test_every_name_is_documented() -> None:
    text = (ROOT / "docs" / "spans.md").read_text()
    constants = {name: value for name, value in vars(semconv).items() if name.isupper()}
    undocumented = [
        name
        for name, value in constants.items()
        if isinstance(value, str)
        and not name.startswith("SOURCE_")
        and f"`{value}`" not in text
        and value != semconv.LOGICAL_SERVICE_SUFFIX
    ]
    assert undocumented == []


def test_no_other_names_are_documented() -> None:
    text = (ROOT / "docs" / "spans.md").read_text()
    known = {value for value in vars(semconv).values() if isinstance(value, str)}
    named = set(re.findall(r"`(tensorflow\.[a-z_.]+)`", text))
    assert named - known == set()


def test_every_setting_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--format", "markdown"]) == 0
    assert (ROOT / "docs" / "configuration.md").read_text() == capsys.readouterr().out


def test_readme_links_exist() -> None:
    for page in [ROOT / "README.md", ROOT / "examples" / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"
