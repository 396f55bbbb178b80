"""Parts read by other processes: the same answer, and clear words when one of them ends."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from otel_tf.correlator import pieces, sources
from otel_tf.correlator.sources import parts, readers
from otel_tf.correlator.sources.otlp_json import Lines
from otel_tf.correlator.sources.readers import read_parts
from otel_tf.correlator.sources.skipped import Skipped
from otel_tf.errors import OtelTfError, UserError
from tests.correlator.sources.test_otlp_proto import frame, message

ROOT = Path(__file__).parents[3]


@pytest.fixture
def started(monkeypatch):
    """All that is read is read by two processes; returns them."""
    processes = []
    start = readers._Process.start

    def remembered():
        processes.append(start())
        return processes[-1]

    def ready(self):
        # However long it takes them to start, nothing is read here.
        deadline = time.monotonic() + 60
        while not (answer := is_ready(self)) and self._processes and time.monotonic() < deadline:
            time.sleep(0.01)
        return answer

    is_ready = readers._Readers.ready
    monkeypatch.setattr(readers, "_WORTH_IT_BYTES", 0)
    monkeypatch.setattr(pieces, "cores", lambda: 2)
    monkeypatch.setattr(readers._Process, "start", remembered)
    monkeypatch.setattr(readers._Readers, "ready", ready)
    yield processes
    assert all(process.popen.returncode is not None for process in processes)


@dataclasses.dataclass(frozen=True)
class Odd:
    """A part that does something."""

    what: str
    name: str = "odd.jsonl"
    in_threads = False

    def read(self, skipped):
        if self.what == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.what == "exits":
            os._exit(3)
        if self.what == "refuses":
            raise UserError("odd.jsonl: cannot be read")
        if self.what == "fails":
            raise ValueError("a defect")
        sys.stdout.write("said by Python\n")
        sys.stdout.flush()
        os.write(1, b"and by C++\n")
        skipped.add("odd", str(os.getpid()))
        return Lines(json.dumps({"resourceSpans": []}).encode(), "x").read(skipped)


def files_of(samples):
    """Writes lines with everything that may be wrong in them, and messages."""
    lines = [
        samples.traces(*(samples.span(100 * n + i, {"n": i}) for i in range(1, 9))) for n in range(1, 40)
    ]
    clock = {"domain": "train", "process": "p", "mono_ns": 5, "wall_ns": 7, "max_error_ns": 2}
    odd = samples.traces(samples.span(1, kind="SPAN_KIND_SERVER"), samples.span(2, spanId="1"))
    lines[20:20] = ["no JSON", odd, clock, "", b"\xff", {"hello": 1}]
    samples.write(*lines, json.dumps(lines[0])[:-300], name="a.jsonl")
    document = json.dumps(samples.traces(samples.span(9001), samples.span(9002)), indent=2)
    (samples.folder / "b.json").write_text(document)
    payloads = [
        message(samples.traces(samples.span(10_000 + n), samples.span(20_000 + n))) for n in range(30)
    ]
    payloads[7] = payloads[7][:-5]
    (samples.folder / "c.frames").write_bytes(b"".join(map(frame, payloads)))
    (samples.folder / "d.message").write_bytes(b"".join(payloads[8:]))


def test_processes_find_what_this_one_finds(samples, request, monkeypatch):
    files_of(samples)
    monkeypatch.setattr(parts, "_PART_BYTES", 1500)
    here = sources.read([str(samples.folder)])
    processes = request.getfixturevalue("started")
    there = sources.read([str(samples.folder)])
    assert len(processes) == 2
    assert there.spans.equals(here.spans)
    assert there.links.equals(here.links)
    assert there.clocks.equals(here.clocks)
    assert there.clocks.num_rows == 1
    assert (there.skipped, there.first_skipped) == (here.skipped, here.first_skipped)
    assert {"not_json", "bad_id", "not_otlp", "truncated", "not_protobuf", "duplicate"} <= set(here.skipped)
    assert here.first_skipped["not_json"].startswith("a.jsonl:21: ")


def test_what_is_printed_does_not_get_into_answers(started, capfd):
    skipped = Skipped()
    assert len(list(read_parts([Odd("prints")] * 5, 1, skipped))) == 5
    assert skipped.counts == {"odd": 5}
    assert skipped.first["odd"] != str(os.getpid())
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.count("by C++") == 5


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("is killed", "odd.jsonl: the process that read it ended with signal SIGKILL"),
        ("exits", "odd.jsonl: the process that read it ended with exit code 3"),
        ("refuses", "odd.jsonl: cannot be read"),
    ],
)
def test_a_part_that_cannot_be_read_is_named(started, what, said):
    with pytest.raises(UserError) as refused:
        list(read_parts([Odd("prints"), Odd(what), Odd("prints")], 1, Skipped()))
    assert str(refused.value) == said


def test_a_defect_is_not_taken_for_bad_input(started):
    with pytest.raises(OtelTfError, match=r"odd\.jsonl: ValueError: a defect") as failed:
        list(read_parts([Odd("fails")], 1, Skipped()))
    assert not isinstance(failed.value, UserError)


def test_who_stops_listening_ends_the_processes(started):
    found = read_parts([Odd("prints")] * 50, 1, Skipped())
    next(found)
    found.close()
    assert [process.popen.returncode is not None for process in started] == [True, True]


@pytest.mark.parametrize("executable", [None, "", "nowhere/python", "/bin/false"])
def test_where_no_process_can_be_started_this_one_reads(monkeypatch, samples, executable):
    monkeypatch.setattr(readers, "_WORTH_IT_BYTES", 0)
    monkeypatch.setattr(pieces, "cores", lambda: 2)
    monkeypatch.setattr(sys, "executable", executable)
    assert samples.read(samples.traces(samples.span(1))).spans.num_rows == 1


def test_the_users_program_is_not_run_again(tmp_path, samples):
    path = samples.write(*(samples.traces(samples.span(n)) for n in range(1, 30)))
    program = tmp_path / "program.py"
    program.write_text(
        "import time\n"
        "from otel_tf.correlator import sources\n"
        "from otel_tf.correlator.sources import parts, readers\n"
        "print('started')\n"
        "readers._WORTH_IT_BYTES, parts._PART_BYTES = 0, 100\n"
        "ready = readers._Readers.ready\n"
        "def wait(self):\n"
        "    while not ready(self): time.sleep(0.01)\n"
        "    return True\n"
        "readers._Readers.ready = wait\n"
        "readers.pieces.cores = lambda: 2\n"
        f"print(sources.read([{str(path)!r}]).spans.num_rows)\n"
    )
    done = subprocess.run(
        [sys.executable, program],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (done.stdout, done.stderr) == ("started\n29\n", "")
