"""Rules of the house that a reader of one change would miss."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "otel_tf"
FRAMEWORKS = frozenset({"tensorflow", "keras", "tf_keras"})
LONGEST_MODULE = 500
LONGEST_SQL_IN_PYTHON = 120

#: Fails on the first import of a framework, wherever in the process it happens.
BAN = f"""
import sys

class Ban:
    def find_spec(self, name, path=None, target=None):
        if name in {set(FRAMEWORKS)!r}:
            raise AssertionError(f"{{name}} was imported")

sys.meta_path.insert(0, Ban())
"""


def modules(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields line and top-level name of every import, also those by importlib and __import__."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, (node.module or "").split(".")[0]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = ast.unparse(node.func)
            if called in ("importlib.import_module", "import_module", "__import__"):
                yield node.lineno, str(node.args[0].value).split(".")[0]


def framework_imports(source: str) -> list[int]:
    return [line for line, name in imported(ast.parse(source)) if name in FRAMEWORKS]


@pytest.mark.parametrize(
    "source",
    [
        "import tensorflow as tf",
        "def f():\n    from tensorflow.python import eager",
        "import os, keras",
        "importlib.import_module('tf_keras.src')",
        "__import__('tensorflow')",
    ],
)
def test_the_import_check_sees_every_way_to_import(source):
    assert framework_imports(source)


@pytest.mark.parametrize("source", ["import tensorflow_other", "from . import keras", "x = 'tensorflow'"])
def test_the_import_check_sees_nothing_else(source):
    assert not framework_imports(source)


def test_only_the_instrumentation_imports_tensorflow():
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in modules(PACKAGE)
        if PACKAGE / "instrumentation" not in path.parents
        for line in framework_imports(path.read_text())
    ]
    assert found == []


@pytest.fixture
def banned(tmp_path):
    """Runs a command in an interpreter where importing a framework raises; returns it completed."""
    (tmp_path / "sitecustomize.py").write_text(BAN)

    def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_the_ban_bites(banned):
    for name in FRAMEWORKS:
        assert f"{name} was imported" in banned(sys.executable, "-c", f"import {name}").stderr


@pytest.mark.parametrize(
    "command",
    [
        (sys.executable, "-c", "import otel_tf"),
        (sys.executable, "-c", "import otel_tf.correlator"),
        (sys.executable, "-c", "import otel_tf.cli.main, otel_tf.jaeger"),
        (sys.executable, "-c", "from otel_tf.profiler import profile, sinks; profile"),
        (sys.executable, "-m", "otel_tf", "--help"),
        (Path(sys.executable).with_name("otel-tf"), "--help"),
    ],
    ids=["import", "correlator", "cli", "profiler", "module --help", "command --help"],
)
def test_it_starts_without_tensorflow(banned, command):
    completed = banned(*command)
    assert completed.returncode == 0, completed.stderr
    assert completed.stderr == ""
    if "--help" in command:
        assert "usage: otel-tf" in completed.stdout


def test_no_module_is_longer_than_one_idea():
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in modules(PACKAGE, ROOT / "tests")
    }
    assert {name: length for name, length in lengths.items() if length > LONGEST_MODULE} == {}


def long_queries(source: str) -> list[int]:
    """Returns the lines of queries that belong into a .sql file; docstrings are not queries."""
    tree = ast.parse(source)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in docstrings:
            continue
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "?" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if len(text) > LONGEST_SQL_IN_PYTHON and re.search(r"\bSELECT\b.*\bFROM\b", text, re.I | re.S):
            found.add(node.lineno)
    return sorted(found)


def test_the_query_check_sees_a_long_query_and_no_docstring():
    query = "SELECT a, b, c FROM spans WHERE " + " AND ".join(f"column_{n} > {n}" for n in range(20))
    assert long_queries(f"con.sql({query!r})") == [1]
    assert long_queries(f"con.sql(f'{query} AND x = {{x}}')") == [1]
    assert long_queries(f"def f():\n    {query!r}") == []
    assert long_queries("con.sql('SELECT count(*) FROM spans')") == []


def test_queries_are_in_sql_files():
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in modules(PACKAGE)
        for line in long_queries(path.read_text())
    ]
    assert found == []


def committed_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        # An unpacked source archive: what is here is what was committed.
        return [path for path in ROOT.rglob("*") if path.is_file() and ".venv" not in path.parts]
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def this_machine() -> set[str]:
    """Returns paths and package registry hosts that mean something here and nowhere else."""
    marks = {f"{ROOT}/", f"{Path.home()}/"}
    if ROOT.parent not in (Path("/"), Path(tempfile.gettempdir())):
        marks.add(f"{ROOT.parent}/")
    asked = [
        [sys.executable, "-m", "pip", "config", "list"],
        ["go", "env", "GOPROXY"],
    ]
    for command in asked:
        try:
            answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        except FileNotFoundError:
            continue
        marks |= {host.rpartition("@")[2] for host in re.findall(r"https?://([^/'\",\s|]+)", answer)}
    return marks


def test_nothing_of_this_machine_is_committed():
    marks = sorted(this_machine())
    found = [
        f"{path.relative_to(ROOT)}: {mark}"
        for path in committed_files()
        for text in [path.read_bytes()]
        for mark in marks
        if mark.encode() in text
    ]
    assert found == []
