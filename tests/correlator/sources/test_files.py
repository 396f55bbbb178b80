"""Which files a source means, by content and not by name."""

from __future__ import annotations

import gzip
import json
import os

import pyarrow as pa
import pytest

from otel_tf.correlator import sources
from otel_tf.correlator.sources.files import Format, find, format_of
from otel_tf.errors import UserError


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", Format.EMPTY),
        (b"\n \n", Format.EMPTY),
        (b'{"resourceSpans":[]}', Format.JSON_LINES),
        (b'{"resourceSpans":[]}\n{"resourceSpans":[]}\n', Format.JSON_LINES),
        (b'{"resourceSpans":[]\n', Format.JSON_DOCUMENT),
        (b"{\n}", Format.JSON_DOCUMENT),
        (b'{"resourceSpans":[{"a":\n{"resourceSpans":[]}\n', Format.JSON_LINES),
        (b'{"resourceSpans":' + b"x" * 100_000, Format.JSON_LINES),
        (b"PAR1", Format.PARQUET),
        (b"hello", Format.UNKNOWN),
        (b"\x00\x00\x00\x02{}", Format.PROTO_FRAMES),
        (b"\x00\x00\x00\x09{}", Format.UNKNOWN),
    ],
)
def test_formats(tmp_path, content, expected):
    path = tmp_path / "any.name"
    path.write_bytes(content)
    assert format_of(path) is expected


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_compressed_files(samples, tmp_path, codec):
    plain = samples.write(*(samples.traces(samples.span(number)) for number in range(1, 2000)))
    packed = tmp_path / "packed"
    with pa.output_stream(str(packed), compression=codec) as stream:
        stream.write(plain.read_bytes())
    assert sources.read([str(packed)]).spans.equals(sources.read([str(plain)]).spans)


def test_a_compressed_file_that_was_cut_off_keeps_its_beginning(samples, tmp_path):
    generator = (os.urandom(8).hex() for _ in range(4000))
    lines = [json.dumps(samples.traces(samples.span(1, spanId=number))) for number in generator]
    whole = gzip.compress("\n".join(lines).encode())
    path = tmp_path / "cut.gz"
    path.write_bytes(whole[: len(whole) // 2])
    ingested = sources.read([str(path)])
    assert 0 < ingested.spans.num_rows < 4000
    assert set(ingested.skipped) == {"truncated"}
    assert ingested.first_skipped["truncated"] == "cut.gz: Truncated compressed stream"


def test_a_run_directory_with_all_that_may_lie_in_it(samples, tmp_path):
    resource = {"service.name": "a", "tensorflow.clock.domain": "boot-1"}
    run = tmp_path / "run"
    (run / "profile").mkdir(parents=True)
    for number in (1, 2):
        text = json.dumps(samples.traces(samples.span(number), resource=resource))
        (run / f"worker-{number}.traces.jsonl").write_text(text + "\n")
    clock = {"domain": "boot-1", "process": "a", "mono_ns": 1, "wall_ns": 2, "max_error_ns": 3}
    (run / "worker-1.clocks.jsonl").write_text(json.dumps(clock) + "\n")
    (run / "worker-1.logs.jsonl").write_text('{"resourceLogs":[]}\n')
    (run / "worker-1.failures.jsonl").write_text('{"run_id":"r","worker":"worker:1","global_step":3}\n')
    (run / "worker-1.sent").write_text('{"offset":0,"length":1851,"spans":1}\n')
    (run / "empty.traces.jsonl").touch()
    (run / "train.log").write_text("Epoch 1/5\n")
    (run / ".hidden.jsonl").write_text("not JSON\n")
    (run / "profile" / "host.bin").write_bytes(bytes(range(256)))
    ingested = sources.read([str(run)])
    assert ingested.spans["span_id"].to_pylist() == [1, 2]
    assert ingested.clocks.to_pylist() == [clock]
    assert ingested.skipped == {}


def test_profiles_in_a_run_directory_are_not_spans(samples, tmp_path, shared_data):
    samples.write(samples.traces(samples.span(1)))
    profile = shared_data / "xplane" / "jax_gemm.xplane.pb"
    (tmp_path / "host.xplane.pb").write_bytes(profile.read_bytes())
    ingested = sources.read([str(tmp_path)])
    assert ingested.spans.num_rows == 1
    assert ingested.skipped == {}


@pytest.mark.parametrize("name", ["empty", "only others"])
def test_a_directory_without_spans(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    if name != "empty":
        (folder / "notes.txt").write_text("nothing to see")
    with pytest.raises(UserError, match=f"{name}: no OTLP or Parquet files"):
        find(folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="platform: root may read every file")
def test_a_file_that_may_not_be_read(samples):
    path = samples.write(samples.traces(samples.span(1)))
    path.chmod(0)
    with pytest.raises(UserError, match=r"run\.jsonl: Permission denied"):
        sources.read([str(path)])


def test_what_is_no_source_at_all(tmp_path):
    path = tmp_path / "README"
    path.write_text("hello\n")
    with pytest.raises(UserError, match=r"README: not OTLP \(JSON or protobuf\), Jaeger JSON, or Parquet"):
        sources.read([str(path)])


def test_an_unknown_kind_of_address():
    with pytest.raises(UserError, match=r"tempo\+http://x:1: addresses known here are jaeger\+http"):
        sources.read(["tempo+http://x:1"])
