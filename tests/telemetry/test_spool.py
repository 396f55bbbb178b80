from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from otel_tf.telemetry._spool import SENT_SUFFIX, TRACES_SUFFIX, LineFile, Place, Spool


def test_lines_and_their_places(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "f")
    assert file.append(b"one\n") == Place(0, 4)
    assert file.append(b"three\n") == Place(4, 6)
    file.close()
    file.close()
    assert (tmp_path / "f").read_bytes() == b"one\nthree\n"
    assert LineFile(tmp_path / "f").append(b"x\n") == Place(10, 2)


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    """The kernel's limit on a file's size makes a write short and the next one fail, as a full disk does."""
    code = """
        import resource, signal, sys
        from pathlib import Path
        from otel_tf.telemetry._spool import LineFile
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        file = LineFile(Path(sys.argv[1]))
        line = b"x" * 299 + b"\\n"
        for _ in range(5):
            try:
                file.append(line)
            except OSError as error:
                print(error.errno)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        print(file.append(line).offset)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "f")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(errno.EFBIG)] * 2 + ["900"]
    assert (tmp_path / "f").read_bytes() == (b"x" * 299 + b"\n") * 4


def test_no_file_is_shared_with_an_earlier_process_of_the_same_number(tmp_path: Path) -> None:
    """In containers every incarnation of a task may be process 1."""
    earlier = tmp_path / f"worker-1.{os.getpid()}{TRACES_SUFFIX}"
    earlier.write_bytes(b'{"truncated')
    spool = Spool(tmp_path, "worker-1")
    assert spool.write(TRACES_SUFFIX, b"{}\n") == Place(0, 3)
    assert earlier.read_bytes() == b'{"truncated'
    assert (tmp_path / f"worker-1.{os.getpid()}-1{TRACES_SUFFIX}").read_bytes() == b"{}\n"
    spool.close()


def test_files_of_a_process_share_their_stem(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "deep" / "run", "chief:0/../x")
    place = spool.write(TRACES_SUFFIX, b"{}\n")
    assert place is not None
    spool.acknowledge(place, 1)
    spool.acknowledge(place, 7, rejected=2, via="provider")
    spool.close()
    names = sorted(path.name for path in (tmp_path / "deep" / "run").iterdir())
    stem = f"chief_0____x.{os.getpid()}"
    assert names == [f"{stem}{SENT_SUFFIX}", f"{stem}{TRACES_SUFFIX}"]
    lines = (tmp_path / "deep" / "run" / f"{stem}{SENT_SUFFIX}").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"offset": 0, "length": 3, "spans": 1},
        {"offset": 0, "length": 3, "spans": 7, "rejected": 2, "via": "provider"},
    ]


def test_a_closed_spool_goes_on_where_it_was(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "t")
    spool.write(TRACES_SUFFIX, b"1\n")
    spool.close()
    assert spool.write(TRACES_SUFFIX, b"2\n") == Place(2, 2)
    spool.close()
    (path,) = tmp_path.iterdir()
    assert path.read_bytes() == b"1\n2\n"


def test_a_folder_that_comes_back_is_used_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="otel_tf")
    blocker = tmp_path / "run"
    blocker.write_text("a file where the folder should be")
    spool = Spool(blocker, "t")
    assert spool.write(TRACES_SUFFIX, b"1\n") is None
    assert spool.write(TRACES_SUFFIX, b"2\n") is None
    assert spool.failed
    blocker.unlink()
    assert spool.write(TRACES_SUFFIX, b"3\n") == Place(0, 2)
    assert not spool.failed
    spool.close()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
