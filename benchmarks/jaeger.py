"""Spans into a real Jaeger and out of it again: replay, the sink, the source, beside their floors.

A simulated run (`otel-tf simulate`) goes into a Jaeger 2 with memory storage, a new one for each way to
write: replayed from its run directory, written as logical traces, sent by OpenTelemetry's own exporters
from SDK spans that are already made (fewer of them: objects of a million spans take gigabytes), and, as
the floor, posted with `requests` from requests that are already encoded. Then it is read back: by the
source, and, as the floor, as a stream of bytes that nobody looks at. Jaeger has the same cores.

    python benchmarks/jaeger.py [--spans 1000000] [--exporter-spans 100000] [--http] [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RUN = "simulated-0"
SPANS_A_REQUEST = 4_000
#: What OpenTelemetry's batch processor sends in one go.
SPANS_A_BATCH = 512


@contextlib.contextmanager
def jaeger(traces: int) -> Iterator[Any]:
    from otel_tf.jaeger import find_binary, start

    binary = find_binary()
    if binary is None:
        raise SystemExit("no Jaeger 2 binary here; `make jaeger` builds one")
    os.environ["OTEL_TF_JAEGER_MAX_TRACES"] = str(traces)
    with start(binary) as running:
        yield running


def cpu_of(pid: int) -> float:
    """Returns the CPU seconds that a process has used (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Table:
    def __init__(self) -> None:
        self.rows: dict[str, dict[str, float]] = {}

    def measure(self, name: str, running: Any, spans: int, work: Callable[[], object]) -> None:
        print(f"{name} …", file=sys.stderr)
        wall, own, others = time.perf_counter(), time.process_time(), cpu_of(running.pid)
        work()
        wall = time.perf_counter() - wall
        own, others = time.process_time() - own, cpu_of(running.pid) - others
        self.rows[name] = {
            "spans": spans,
            "seconds": round(wall, 2),
            "spans_per_s": round(spans / wall),
            "own_cpu_us_per_span": round(own / spans * 1e6, 2),
            "jaeger_cpu_us_per_span": round(others / spans * 1e6, 2),
            # What a machine that has nothing else to do would reach at most.
            "spans_per_s_with_a_core_each": round(spans / max(own, others)),
        }


def simulate(folder: Path, spans: int) -> int:
    from otel_tf.cli.main import main

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        main(["simulate", "--out", str(folder), "--spans", str(spans), "--format", "json"])
    return int(json.loads(said.getvalue())["spans"])


def encoded(folder: Path) -> list[bytes]:
    """Returns the run as requests that only have to be posted."""
    from otel_tf.telemetry._from_json_columns import to_protobuf

    requests: list[bytes] = []
    lines: list[bytes] = []
    for path in sorted(folder.glob("*.traces.jsonl")):
        for line in path.read_bytes().splitlines():
            lines.append(line)
            if sum(each.count(b'"spanId"') for each in lines) >= SPANS_A_REQUEST:
                requests.append(to_protobuf(lines))
                lines = []
    return [*requests, to_protobuf(lines)] if lines else requests


def post(url: str, requests_ready: list[bytes]) -> None:
    import requests

    with requests.Session() as session:
        for payload in requests_ready:
            answer = session.post(
                f"{url}/v1/traces", payload, headers={"Content-Type": "application/x-protobuf"}, timeout=60
            )
            answer.raise_for_status()


def sdk_spans(requests_ready: list[bytes], count: int) -> list[Any]:
    """Returns the same spans as the SDK has them when they end."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext, SpanKind, Status, TraceFlags

    def values(pairs: Any) -> dict[str, Any]:
        return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}

    made: list[Any] = []
    for payload in requests_ready:
        for group in ExportTraceServiceRequest.FromString(payload).resource_spans:
            resource = Resource(values(group.resource.attributes))
            for span in group.scope_spans[0].spans:
                trace = int.from_bytes(span.trace_id, "big")
                context, parent = (
                    SpanContext(trace, int.from_bytes(number, "big"), False, TraceFlags(1))
                    if number
                    else None
                    for number in (span.span_id, span.parent_span_id)
                )
                made.append(
                    ReadableSpan(
                        span.name,
                        context,
                        parent,
                        resource,
                        values(span.attributes),
                        kind=SpanKind(span.kind - 1),
                        status=Status(),
                        start_time=span.start_time_unix_nano,
                        end_time=span.end_time_unix_nano,
                    )
                )
                if len(made) == count:
                    return made
    return made


def export(exporter: Any, spans: list[Any]) -> None:
    for first in range(0, len(spans), SPANS_A_BATCH):
        if exporter.export(spans[first : first + SPANS_A_BATCH]).value != 0:
            raise SystemExit("the exporter reports a failure")
    exporter.shutdown()


def replay(folder: Path, *arguments: str) -> None:
    from otel_tf.cli.main import main

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if main(["replay", str(folder), "--all", *arguments]) != 0:
            raise SystemExit("not all spans were accepted")
    for ledger in folder.glob("*.sent"):
        ledger.unlink()


def read(address: str, expected: int) -> None:
    from otel_tf.correlator import sources

    found = sources.read([address])
    if found.spans.num_rows != expected or any(found.missing.values()):
        raise SystemExit(f"{found.spans.num_rows:,} of {expected:,} spans read, missing {found.missing}")


def stream(target: str) -> None:
    """Reads all of a Jaeger over gRPC and looks at nothing."""
    from otel_tf.correlator.sources.jaeger_api import Search
    from otel_tf.correlator.sources.jaeger_grpc import GrpcApi
    from otel_tf.correlator.sources.skipped import Skipped

    api = GrpcApi(target, secure=False, skipped=Skipped(), source=0)
    most = int(os.environ["OTEL_TF_JAEGER_MAX_TRACES"])
    for _ in api.messages(Search("", 0, 7 * 10**18, most)):
        pass
    api.close()


def until_stored(address: str, expected: int) -> None:
    """Waits for what Jaeger has accepted to be stored."""
    from otel_tf.correlator import sources

    for _ in range(100):
        if sources.read([address]).spans.num_rows >= expected:
            return
        time.sleep(0.2)
    raise SystemExit("Jaeger does not show what it has accepted")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spans", type=int, default=1_000_000)
    parser.add_argument("--exporter-spans", type=int, default=100_000)
    parser.add_argument("--http", action="store_true", help="also read over HTTP, which takes a while")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    table = Table()
    with tempfile.TemporaryDirectory() as temporary:
        count = measure_all(table, Path(temporary), args)
    if args.json:
        print(json.dumps({"spans": count, "cores": os.cpu_count(), "ways": table.rows}))
        return
    print(f"{count:,} spans, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'':<36}{'spans/s':>10}{'own CPU':>10}{'Jaeger':>9} µs a span{'spans/s, a core each':>24}")
    for name, row in table.rows.items():
        print(
            f"{name:<36}{row['spans_per_s']:>10,}{row['own_cpu_us_per_span']:>10.1f}"
            f"{row['jaeger_cpu_us_per_span']:>9.1f}{'':>10}{row['spans_per_s_with_a_core_each']:>24,}"
        )


def measure_all(table: Table, folder: Path, args: argparse.Namespace) -> int:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

    from otel_tf.correlator import correlate, sinks

    count = simulate(folder, args.spans)
    ready = encoded(folder)
    made = sdk_spans(ready, args.exporter_spans)
    result = correlate(str(folder))
    room = count  # as many traces as there may be
    with jaeger(room) as running:
        table.measure(
            "post bytes that are ready (floor)", running, count, lambda: post(running.otlp_http, ready)
        )
    with jaeger(room) as running:
        http = HttpExporter(endpoint=f"{running.otlp_http}/v1/traces")
        table.measure("official exporter, HTTP", running, len(made), lambda: export(http, made))
    with jaeger(room) as running:
        grpc = GrpcExporter(endpoint=running.otlp_grpc, insecure=True)
        table.measure("official exporter, gRPC", running, len(made), lambda: export(grpc, made))
    with jaeger(room) as running:
        to = ["--endpoint", running.otlp_grpc, "--protocol", "grpc"]
        table.measure("otel-tf replay, gRPC", running, count, lambda: replay(folder, *to))
    with jaeger(room) as running:
        table.measure(
            "correlate --to jaeger=",
            running,
            count,
            lambda: sinks.write(result, f"jaeger={running.otlp_http}", str),
        )
    with jaeger(room) as running:
        to = ["--endpoint", running.otlp_http]
        table.measure("otel-tf replay, HTTP", running, count, lambda: replay(folder, *to))
        address = f"jaeger+{running.ui}?grpc={running.query_grpc}&run={RUN}"
        until_stored(address, count)
        table.measure("read bytes over gRPC (floor)", running, count, lambda: stream(running.query_grpc))
        table.measure("read one run over gRPC", running, count, lambda: read(address, count))
        if args.http:
            over_http = f"jaeger+{running.ui}?grpc=none"
            table.measure("read over HTTP", running, count, lambda: read(over_http, count))
    return count


if __name__ == "__main__":
    main()
