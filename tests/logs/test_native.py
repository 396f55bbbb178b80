"""Stderr through a reader of its own: on the terminal as before, in the spool whatever kills the process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from otel_tf.logs.reader import Reader

ROOT = Path(__file__).resolve().parents[2]

#: What every program begins with.
CAPTURE = """
import os, signal, sys, time
import otel_tf
assert otel_tf.capture_native_logs() is not None
def say(text):
    os.write(2, text.encode())
"""
NATIVE = "W0000 00:00:1796106511.548127   14477 local_rendezvous.cc:412] aborting\\n\\t [[{{node x}}]]\\n"


def run(
    folder: Path, code: str, *, capture: str = CAPTURE, **variables: str
) -> subprocess.CompletedProcess[bytes]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(capture) + textwrap.dedent(code)],
        cwd=folder,
        env={
            **environment,
            "OTEL_TF_RUN_DIR": str(folder / "run"),
            "OTEL_TF_RUN_ID": "mine",
            "OTEL_TF_TESTING": "true",
            "PYTHONPATH": str(ROOT),
            **variables,
        },
        capture_output=True,
        timeout=30,
        check=False,
    )


def records(folder: Path, pattern: str = "*.stderr.logs.jsonl") -> list[dict[str, Any]]:
    found = []
    for path in sorted(folder.rglob(pattern)):
        for line in path.read_text().splitlines():
            for of in json.loads(line)["resourceLogs"]:
                resource = {
                    pair["key"]: next(iter(pair["value"].values())) for pair in of["resource"]["attributes"]
                }
                for scope in of["scopeLogs"]:
                    for record in scope["logRecords"]:
                        attributes = {
                            pair["key"]: next(iter(pair["value"].values())) for pair in record["attributes"]
                        }
                        found.append({**record, "attributes": attributes, "resource": resource})
    return found


def bodies(folder: Path) -> list[str]:
    return [record["body"]["stringValue"] for record in records(folder)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_the_last_words_before_a_crash_arrive(tmp_path: Path, number: signal.Signals) -> None:
    done = run(
        tmp_path,
        f"""
        say("{NATIVE}")
        say("printed by tf.print\\nlast words")
        os.kill(os.getpid(), {int(number)})
        """,
    )
    assert done.returncode == -number
    native = NATIVE.encode().decode("unicode_escape")
    # `run` waits until the reader has let go of the real stderr.
    assert done.stderr.decode() == f"{native}printed by tf.print\nlast words"
    first, second, third = records(tmp_path)
    assert first["body"]["stringValue"] == "aborting\n\t [[{{node x}}]]"
    assert first["timeUnixNano"] == "1796106511548127000"
    assert abs(int(first["observedTimeUnixNano"]) - time.time_ns()) < 60e9
    assert (first["severityNumber"], first["severityText"]) == (13, "WARN")
    assert first["attributes"]["code.file.path"] == "local_rendezvous.cc"
    assert first["attributes"]["code.line.number"] == "412"
    assert first["attributes"]["log.iostream"] == "stderr"
    assert first["attributes"]["tensorflow.worker"] == "local:0"
    assert [second["body"]["stringValue"], third["body"]["stringValue"]] == [
        "printed by tf.print",
        "last words",
    ]
    assert second["timeUnixNano"] == second["observedTimeUnixNano"]
    assert first["resource"]["service.instance.id"] == "mine/local:0"
    assert first["resource"]["tensorflow.run.id"] == "mine"


def test_much_output_is_neither_lost_nor_out_of_order(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        for number in range(20_000):
            say(f"line {number}\\n")
        print("done", flush=True)
        os._exit(0)
        """,
    )
    expected = [f"line {number}" for number in range(20_000)]
    assert done.stdout == b"done\n"
    assert done.stderr.decode().split() == " ".join(expected).split()
    assert bodies(tmp_path) == expected


def test_it_is_on_the_real_stderr_at_once(tmp_path: Path) -> None:
    """A line that is written is seen while the process goes on, and stdout is what it was."""
    code = textwrap.dedent(CAPTURE) + "say('ready\\n'); sys.stdin.readline(); say('end\\n')"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "OTEL_TF_RUN_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stderr is not None and process.stdin is not None
        assert process.stderr.readline() == b"ready\n"
        process.stdin.write(b"\n")
        process.stdin.close()
        assert process.stderr.read() == b"end\n"
        assert process.wait(20) == 0


def test_a_traceback_of_python_and_an_exit_code(tmp_path: Path) -> None:
    done = run(tmp_path, "def f():\n    raise ValueError('mine')\nf()\n")
    assert done.returncode == 1
    assert done.stderr.decode().rstrip().endswith("ValueError: mine")
    (traceback,) = records(tmp_path)
    assert traceback["body"]["stringValue"] == done.stderr.decode().rstrip()
    assert traceback["severityNumber"] == 17


def test_at_a_normal_exit_everything_has_been_passed_on(tmp_path: Path) -> None:
    """Before the process has ended: a shell's prompt must not come before the last line."""
    path = tmp_path / "stderr"
    code = textwrap.dedent(CAPTURE) + "say('x' * 100_000 + '\\n')"
    with path.open("wb") as file:
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "OTEL_TF_RUN_DIR": str(tmp_path / "run"), "PYTHONPATH": str(ROOT)},
            stderr=file,
            check=True,
            timeout=30,
        )
        assert path.stat().st_size == 100_001


def test_a_forks_child_that_outlives_its_parent(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        import warnings
        warnings.simplefilter("ignore")
        if os.fork():
            say("parent\\n")
            os._exit(0)
        time.sleep(0.3)
        say("child\\n")
        os._exit(0)
        """,
    )
    # The child's line has passed too, and then nothing held the real stderr any more.
    assert done.stderr == b"parent\nchild\n"
    assert bodies(tmp_path) == ["parent", "child"]


def test_the_program_has_no_child_that_it_did_not_start(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        try:
            print(os.waitpid(-1, os.WNOHANG))
        except ChildProcessError:
            print("none")
        """,
    )
    assert done.stdout == b"none\n"


def test_signals_of_the_terminal_do_not_reach_the_reader(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.killpg(os.getpgid(0), signal.SIGINT) if os.getpgid(0) == os.getpid() else None
        say("still here\\n")
        """,
        capture="import os; os.setpgid(0, 0)\n" + CAPTURE,
    )
    assert (done.returncode, done.stderr) == (0, b"still here\n")


def test_release_puts_the_real_one_back(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        from otel_tf.logs.native import captured
        say("before\\n")
        captured().release()
        assert captured() is None
        say("after\\n")
        """,
    )
    assert done.stderr == b"before\nafter\n"
    assert bodies(tmp_path) == ["before"]


def test_a_second_call_does_nothing(tmp_path: Path) -> None:
    done = run(
        tmp_path, "assert otel_tf.capture_native_logs() is otel_tf.capture_native_logs()\nsay('once\\n')"
    )
    assert (done.returncode, done.stderr) == (0, b"once\n")
    assert bodies(tmp_path) == ["once"]


@pytest.mark.parametrize(
    "variables", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TF_SPOOL": "false"}], ids=["disabled", "no spool"]
)
def test_where_it_is_off(tmp_path: Path, variables: dict[str, str]) -> None:
    done = run(
        tmp_path,
        "assert otel_tf.capture_native_logs() is None\nos.write(2, b'x')",
        capture="import os, otel_tf\n",
        **variables,
    )
    assert (done.returncode, done.stderr) == (0, b"x")
    assert not (tmp_path / "run").exists()


def test_without_a_stderr_it_says_so_and_nothing_else(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        os.close(2)
        assert otel_tf.capture_native_logs() is None
        print("on")
        """,
        capture="import os, otel_tf\n",
    )
    assert done.stdout == b"on\n"
    assert done.returncode == 0


def test_lines_of_a_program_that_never_records_are_kept_where_the_run_is_named(tmp_path: Path) -> None:
    run(tmp_path, "say('lonely\\n')")
    assert [path.parent for path in tmp_path.rglob("*.logs.jsonl")] == [tmp_path / "run"]


def test_a_run_that_gets_its_name_later_has_all_lines_in_one_folder(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        from pathlib import Path
        from otel_tf.logs.native import captured
        say("early\\n")
        time.sleep(0.2)
        captured().name(Path("named"), "worker-1.5", "worker:1", '{"key":"a","value":{"stringValue":"b"}}')
        say("late\\n")
        """,
        OTEL_TF_RUN_ID="",
        OTEL_TF_RUN_DIR="",
    )
    assert done.returncode == 0, done.stderr
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*.jsonl")] == [
        Path("named/worker-1.5.stderr.logs.jsonl")
    ]
    assert bodies(tmp_path) == ["early", "late"]
    assert {record["resource"]["a"] for record in records(tmp_path)} == {"b"}


def test_so_much_before_the_run_has_its_name_is_not_kept_in_memory_for_ever(tmp_path: Path) -> None:
    code = "for number in range(15_000): say(f'line {number}\\n')\nos._exit(0)"
    run(tmp_path, code, OTEL_TF_RUN_ID="", OTEL_TF_RUN_DIR="")
    assert len(bodies(tmp_path)) == 15_000


@pytest.mark.parametrize("end", [b"\n", b""], ids=["ended", "never ended"])
def test_a_line_is_of_the_time_when_it_began(tmp_path: Path, end: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = Reader(ours, {"folder": str(tmp_path), "stem": "a", "attributes": ""}, named=True)
        for number, data in enumerate((b"be", b"gun" + end), 1):
            reader._pending.append((data, (number, 100 + number)))
            reader._parse()
        reader._settle()
    (record,) = records(tmp_path)
    assert record["body"]["stringValue"] == "begun"
    assert (record["timeUnixNano"], record["attributes"]["tensorflow.monotonic_ns"]) == ("1", "101")
