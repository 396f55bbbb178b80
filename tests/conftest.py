"""What all tests share: real servers to talk to, and no silent skip where CI forbids it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import settings

from otel_tf.jaeger import Jaeger, start

BUILDER = Path(__file__).parent / "backends" / "build.py"
BUILDER_EXIT_NO_GO = 3

#: CI sets OTEL_TF_NO_SKIP=1: there a skipped test fails the session, unless its reason starts so.
#: "platform:" is for what this machine cannot have, e.g. another operating system or processor.
NO_SKIP = os.environ.get("OTEL_TF_NO_SKIP") == "1"
ALLOWED_SKIPS = ("platform:",)

# Examples are drawn anew in every run, but in CI the same tree must get the same answer.
settings.register_profile("ci", derandomize=True, deadline=None)
if NO_SKIP:
    settings.load_profile("ci")

StartJaeger = Callable[..., Jaeger]
Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

_builders = pytest.StashKey[dict[str, subprocess.CompletedProcess[str]]]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds the servers before the first test: inside one, the test's timeout would count."""
    if session.config.option.collectonly:
        return
    for name in ("jaeger", "collector"):
        if any(f"{name}_binary" in getattr(item, "fixturenames", ()) for item in session.items):
            capture = session.config.pluginmanager.getplugin("capturemanager")
            with capture.global_and_fixture_disabled() if capture else contextlib.nullcontext():
                session.config.stash.setdefault(_builders, {})[name] = _build(name)


def _build(name: str) -> subprocess.CompletedProcess[str]:
    """Runs the builder; its progress goes to the terminal, its last line is kept as well."""
    with subprocess.Popen(
        [sys.executable, str(BUILDER), name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as builder:
        assert builder.stderr is not None
        assert builder.stdout is not None
        said = []
        for line in builder.stderr:
            sys.stderr.write(line)
            said.append(line)
        return subprocess.CompletedProcess([], builder.wait(), builder.stdout.read(), "".join(said))


@pytest.fixture(scope="session")
def jaeger_binary(pytestconfig: pytest.Config) -> Path:
    """A real Jaeger 2: OTEL_TF_JAEGER_BIN, or what tests/backends/build.py built."""
    return _binary("jaeger", pytestconfig)


@pytest.fixture(scope="session")
def collector_binary(pytestconfig: pytest.Config) -> Path:
    """A real Collector: OTEL_TF_COLLECTOR_BIN, or what tests/backends/build.py built."""
    return _binary("collector", pytestconfig)


def _binary(name: str, pytestconfig: pytest.Config) -> Path:
    # Not there yet only where a test asks for the fixture at run time.
    built = pytestconfig.stash.get(_builders, {}).get(name) or _build(name)
    if built.returncode == BUILDER_EXIT_NO_GO:
        pytest.skip(built.stderr.strip())
    if built.returncode != 0:
        pytest.fail(built.stderr, pytrace=False)
    return Path(built.stdout.strip())


@contextlib.contextmanager
def _starter(binary: Path, folder: Path) -> Iterator[StartJaeger]:
    with contextlib.ExitStack() as running:
        count = 0

        def start_one(**options: object) -> Jaeger:
            nonlocal count
            count += 1
            options.setdefault("log_file", folder / f"jaeger-{count}.log")
            return running.enter_context(start(binary, **options))  # type: ignore[arg-type]

        yield start_one


@pytest.fixture
def jaeger(jaeger_binary: Path, tmp_path: Path) -> Iterator[StartJaeger]:
    """Starts a fresh Jaeger at each call, on free ports; takes the options of `otel_tf.jaeger.start`."""
    with _starter(jaeger_binary, tmp_path) as start_one:
        yield start_one


@pytest.fixture(scope="module")
def module_jaeger(jaeger_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jaeger]:
    """One running Jaeger for all tests of a module, for those that only add traces of their own."""
    with _starter(jaeger_binary, tmp_path_factory.mktemp("jaeger")) as start_one:
        yield start_one()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real inputs that are not part of the repository; OTEL_TF_SHARED_DATA, or beside the repository."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("OTEL_TF_SHARED_DATA") or beside)
    if not folder.is_dir():
        pytest.skip("shared test data is not on this machine (OTEL_TF_SHARED_DATA names its folder)")
    return folder


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _without_forbidden_skip((yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _without_forbidden_skip((yield))


def _without_forbidden_skip(report: Report) -> Report:
    """Turns a skip into a failure where OTEL_TF_NO_SKIP forbids it."""
    if NO_SKIP and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if not reason.startswith(ALLOWED_SKIPS):
            report.outcome = "failed"
            report.longrepr = f"OTEL_TF_NO_SKIP=1, and this test would be skipped: {reason}"
    return report
