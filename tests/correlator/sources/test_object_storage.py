"""Runs that a Collector left in object storage, behind a server that speaks S3."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from otel_tf.cli.main import main
from otel_tf.correlator import correlate, sources
from otel_tf.errors import UserError

BUCKET = "telemetry"


class Storage:
    """A server with one bucket."""

    def __init__(self, port: int) -> None:
        self._options = f"endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
        self._client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port}",
            region_name="us-east-1",
            aws_access_key_id="user",
            aws_secret_access_key="word",
        )
        self._client.create_bucket(Bucket=BUCKET)

    def put(self, name: str, content: bytes) -> None:
        self._client.put_object(Bucket=BUCKET, Key=name, Body=content)

    def address(self, path: str, scheme: str = "s3", bucket: str = BUCKET) -> str:
        return f"{scheme}://user:word@{bucket}/{path}?{self._options}"


@pytest.fixture(scope="module")
def storage() -> Iterator[Storage]:
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    try:
        yield Storage(server.get_host_and_port()[1])
    finally:
        server.stop()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    assert main(["simulate", "--out", str(folder), "--workers", "4", "--spans", "3000"]) == 0
    (folder / "truth.parquet").unlink()
    return folder


def stored(storage: Storage, folder: Path, prefix: str) -> str:
    for file in folder.rglob("*.jsonl"):
        storage.put(f"{prefix}/{file.name}", file.read_bytes())
    return prefix


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_it_reads_as_the_same_files_here(storage: Storage, run: Path, scheme: str) -> None:
    path = stored(storage, run, "runs/first")
    there = sources.read([storage.address(path, scheme)])
    assert there.spans.equals(sources.read([str(run)]).spans)


def test_compressed_files_and_single_ones(storage: Storage, run: Path) -> None:
    import gzip

    file = run / "worker-0.traces.jsonl"
    storage.put("one/traces.json.gz", gzip.compress(file.read_bytes()))
    there = sources.read([storage.address("one/traces.json.gz")])
    assert there.spans.equals(sources.read([str(file)]).spans)


def test_what_is_beside_the_spans_is_left_out(storage: Storage, run: Path) -> None:
    path = stored(storage, run, "mixed")
    storage.put(f"{path}/spans.parquet", b"PAR1")
    storage.put(f"{path}/.hidden", b"?")
    storage.put(f"{path}/worker-0.sent", b'{"offset":0,"length":1851,"spans":1}\n')
    ingested = sources.read([storage.address(path)])
    assert ingested.spans.num_rows == 3000
    assert ingested.skipped == {}


@pytest.mark.parametrize(
    ("path", "bucket", "said"),
    [
        ("nothing/here", BUCKET, "no files there"),
        ("any", "no-such-bucket", "no-such-bucket"),
        ("text", BUCKET, "not OTLP|no OTLP"),
    ],
)
def test_what_cannot_be_read_is_named(storage: Storage, path: str, bucket: str, said: str) -> None:
    storage.put("text/notes.txt", b"hello")
    address = storage.address(path, bucket=bucket)
    with pytest.raises(UserError, match=said) as raised:
        sources.read([address])
    assert str(raised.value).startswith(address)
    assert "\n" not in str(raised.value)


def test_nobody_there() -> None:
    address = "s3://user:word@telemetry/run?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1"
    with pytest.raises(UserError, match="telemetry"):
        sources.read([address])


def test_other_addresses_are_refused() -> None:
    with pytest.raises(UserError, match="s3://"):
        sources.read(["ftp://host/run"])


@pytest.mark.slow
def test_executors_read_it_too(
    cluster: Any, storage: Storage, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stored(storage, run, "runs/spark")
    storage.put(f"{path}/zz-broken.jsonl", b'{"resourceSpans": [}\n')
    by_spark = correlate(storage.address(path), engine="spark")
    here = correlate(storage.address(path))
    assert by_spark.spans.equals(here.spans)
    assert by_spark.edges.equals(here.edges)
    assert by_spark.report["skipped"] == here.report["skipped"] == {"not_json": 1}
    assert by_spark.report["first_skipped"] == here.report["first_skipped"]
    assert main(["correlate", storage.address("nothing"), "--engine", "spark"]) == 2
    assert "no files there" in capsys.readouterr().err
    assert json.dumps(by_spark.report["steps"]) == json.dumps(here.report["steps"])
