"""What a user installs has all that the package reads at run time."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: Also what is not committed yet, but never what git ignores.
LISTED = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "otel_tf")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT]
    subprocess.run(command, check=True)
    (path,) = folder.glob("otel_tf-*.whl")
    return path


@pytest.mark.slow
def test_it_has_every_file_of_the_package_and_nothing_else(wheel):
    listed = subprocess.check_output(LISTED, cwd=ROOT, text=True).splitlines()
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {"otel_tf/jaeger/jaeger.yaml", "otel_tf/jaeger/jaeger-ui.json"} <= names
    assert names == set(listed)


@pytest.mark.slow
def test_it_carries_the_licence(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (licence,) = (name for name in archive.namelist() if name.endswith("licenses/LICENSE"))
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
