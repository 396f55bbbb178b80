"""Lines of stderr for the network, each once."""

from __future__ import annotations

from pathlib import Path

from otel_tf.logs.encode import attribute_list, log_record, logs_line
from otel_tf.logs.forward import Forwarder
from otel_tf.telemetry import LogRecord


def line(*bodies: str) -> bytes:
    attributes = attribute_list({"log.iostream": "stderr", "code.line.number": 7})
    return logs_line("", {"": [log_record(1, 2, 13, "WARN", body, attributes) for body in bodies]})


def test_each_line_once_and_whole_ones_only(tmp_path: Path) -> None:
    path, sent = tmp_path / "a.jsonl", list[LogRecord]()
    forward = Forwarder(lambda: path if path.exists() else None, sent.extend)
    forward()
    half = line("third")
    path.write_bytes(line("first", "second") + half[:20])
    forward()
    forward()
    assert [record.body for record in sent] == ["first", "second"]
    with path.open("ab") as file:
        file.write(half[20:])
    forward()
    assert [record.body for record in sent] == ["first", "second", "third"]
    assert sent[0] == LogRecord(
        1, 2, 13, "WARN", "first", "", {"log.iostream": "stderr", "code.line.number": 7}
    )


def test_much_at_once(tmp_path: Path) -> None:
    path, sent = tmp_path / "a.jsonl", list[LogRecord]()
    long = "x" * (3 << 20)
    path.write_bytes(line(long) + b"".join(line(str(number)) for number in range(20_000)))
    Forwarder(lambda: path, sent.extend)()
    assert [record.body for record in sent] == [long, *map(str, range(20_000))]
