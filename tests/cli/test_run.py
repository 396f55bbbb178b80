"""`otel-tf run`: the program is what it is under plain Python, and it is recorded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from tests.spool import spans

COMMAND = str(Path(sys.executable).with_name("otel-tf"))

LOOK = """
import os, sys
print(sys.argv, __name__, __file__, __spec__, sys.path, sys.flags, os.getcwd())
print(sorted(vars(sys.modules["__main__"])))
import sitecustomize
print(getattr(sitecustomize, "OWN", None))
"""

TRAIN = """
import sys
import tensorflow as tf
weight = tf.Variable(1.0)
iterations = tf.Variable(0, dtype=tf.int64, trainable=False, name="iterations")
@tf.function
def train_step():
    weight.assign_sub(0.1)
    iterations.assign_add(1)
for _ in range(int(sys.argv[1])):
    train_step()
if sys.argv[2:] == ["child"]:
    import subprocess
    sys.exit(subprocess.run([sys.executable, __file__, "2"]).returncode)
raise SystemExit(5)
"""


def run(*command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    return subprocess.run(
        command,
        cwd=folder,
        env={**environment, "OTEL_TRACES_EXPORTER": "none", **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def script(folder: Path, text: str, name: str = "train.py") -> str:
    (folder / name).write_text(textwrap.dedent(text))
    return name


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (LOOK, ["--epochs", "3", "-h", "--", "x"]),
        ("import sys; sys.exit(7)", []),
        ("import sys; sys.exit('said')", []),
        ("import os; os._exit(9)", []),
        ("def f():\n    raise ValueError('mine')\nf()", []),
        ("import nowhere", []),
        ("(", []),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", []),
        ("raise KeyboardInterrupt", []),
    ],
    ids=["looks", "code", "text", "at once", "raises", "no module", "syntax", "signal", "interrupt"],
)
def test_it_is_plain_python(tmp_path: Path, text: str, arguments: list[str]) -> None:
    name = script(tmp_path, text)
    # A sitecustomize of the user's own still runs.
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("OWN = 'ran'")
    plain, ours = (
        run(*command, name, *arguments, folder=tmp_path, PYTHONPATH=str(own))
        for command in ([sys.executable], [COMMAND, "run"])
    )
    assert (ours.returncode, ours.stdout, ours.stderr) == (plain.returncode, plain.stdout, plain.stderr)
    if text == LOOK:
        assert "ran" in ours.stdout


def test_modules_and_a_dash_dash(tmp_path: Path) -> None:
    script(tmp_path, "import sys; print(sys.argv[1:], __spec__.name)", "job.py")
    for command in (["run", "-m", "job", "-m", "x"], ["run", "-m", "--", "job", "-m", "x"]):
        done = run(COMMAND, *command, folder=tmp_path)
        assert (done.stdout, done.returncode) == ("['-m', 'x'] job\n", 0), done.stderr
    script(tmp_path, "import sys; print(sys.argv)")
    assert (
        run(COMMAND, "run", "--", "train.py", "--", "y", folder=tmp_path).stdout
        == "['train.py', '--', 'y']\n"
    )


def test_what_cannot_be_run(tmp_path: Path) -> None:
    nothing = run(COMMAND, "run", folder=tmp_path)
    assert nothing.returncode == 2
    assert nothing.stderr == "otel-tf: nothing to run: otel-tf run [-m] PROGRAM ARGS…\n"
    missing = run(COMMAND, "run", "nowhere.py", folder=tmp_path)
    assert missing.returncode == 2
    assert "nowhere.py" in missing.stderr


def test_a_signal_reaches_the_program_itself(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        """
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))
        print("ready", flush=True)
        time.sleep(60)
        """,
    )
    with subprocess.Popen([COMMAND, "run", name], cwd=tmp_path, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        program.send_signal(signal.SIGTERM)
        assert program.wait(30) == 42


def test_training_is_recorded_and_that_of_processes_it_starts(tmp_path: Path) -> None:
    name = script(tmp_path, TRAIN)
    variables: dict[str, Any] = {"OTEL_TF_RUN_ID": "mine", "OTEL_TF_RUN_DIR": str(tmp_path / "run")}
    began = time.time_ns()
    done = run(COMMAND, "run", name, "3", "child", folder=tmp_path, OTEL_TF_TESTING="true", **variables)
    assert done.returncode == 5, done.stderr
    steps = spans(tmp_path / "run", "train_step")
    assert sorted(step.attributes["tensorflow.global_step"] for step in steps) == [1, 1, 2, 2, 3]
    assert len({step.resource["process.pid"] for step in steps}) == 2
    assert {step.resource["service.name"] for step in steps} == {"train"}
    assert {step.resource["tensorflow.run.id"] for step in steps} == {"mine"}
    assert all(step.start_ns > began for step in steps)
