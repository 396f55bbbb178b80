"""What a span costs: otel-tf with spool and OTLP export, beside the OpenTelemetry SDK's own path.

Both ways record the same spans (seven attributes, ids of the same kind) in a process of their own and
send them over OTLP/HTTP to the same endpoint, which is another process. Counted are the CPU time of the
recording thread and of the whole process, from the first span to the last acknowledgement. Spans come at
a steady rate, as a training's do, or all at once (``--rate 0``). Runs alternate; the median counts.

    python benchmarks/span_cost.py [--spans 20000] [--rate 4000] [--repeat 3] [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FIELDS = (
    "tensorflow.global_step",
    "tensorflow.seq",
    "tensorflow.monotonic_ns",
    "tensorflow.local_step",
    "tensorflow.epoch",
)
CONSTANTS = {"tensorflow.worker": "worker:1", "tensorflow.steps_per_execution": 1}


def serve() -> None:
    """An endpoint that says yes; prints its port, and the spans it got when its input ends."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    import threading

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
    messages = [ExportTraceServiceRequest.FromString(body) for body in bodies]
    print(
        sum(len(s.spans) for m in messages for r in m.resource_spans for s in r.scope_spans),
        flush=True,
    )


@contextlib.contextmanager
def endpoint() -> Iterator[tuple[str, Callable[[], int]]]:
    with subprocess.Popen(
        [sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        port = server.stdout.readline().strip()

        def received() -> int:
            server.stdin.close()
            return int(server.stdout.read())

        yield f"http://127.0.0.1:{port}", received


def pace(count: int, rate: float, one: Callable[[int], None]) -> float:
    """Calls ``one`` at a rate; returns the calls' own CPU seconds on this thread."""
    began, used = time.perf_counter(), 0.0
    burst = max(int(rate / 200), 1) if rate else count
    for first in range(0, count, burst):
        before = time.thread_time()
        for number in range(first, min(first + burst, count)):
            one(number)
        used += time.thread_time() - before
        if rate:
            time.sleep(max(began + (first + burst) / rate - time.perf_counter(), 0))
    return used


def ours(count: int, rate: float) -> tuple[float, float]:
    from otel_tf import config, ids
    from otel_tf.identity import identify
    from otel_tf.telemetry import start

    settings = config.resolve()
    pipeline = start(settings, identify(settings))
    layout = pipeline.layout("train_step", fields=FIELDS, constants=CONSTANTS)
    trace_ids = [ids.trace_id("r", "step", number) for number in range(count)]

    def one(number: int) -> None:
        seq, mono_ns, wall_ns = pipeline.now()
        _, end_mono_ns, _ = pipeline.now()
        pipeline.record(
            layout,
            trace_ids[number],
            number + 1,
            7,
            wall_ns,
            wall_ns + end_mono_ns - mono_ns,
            (number, seq, mono_ns, number, 3),
        )

    before = time.process_time()
    thread = pace(count, rate, one)
    assert pipeline.flush(120)
    return thread, time.process_time() - before


def sdk(count: int, rate: float) -> tuple[float, float]:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(shutdown_on_exit=False)
    # A queue for all of them: the default one drops most of a burst, and a dropped span costs nothing.
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), max_queue_size=count + 1))
    tracer = provider.get_tracer("otel_tf")
    attributes = dict(CONSTANTS)

    def one(number: int) -> None:
        span = tracer.start_span(
            "train_step",
            attributes={
                **attributes,
                **dict(zip(FIELDS, (number, number, time.monotonic_ns(), number, 3), strict=True)),
            },
        )
        span.end()

    before = time.process_time()
    thread = pace(count, rate, one)
    provider.force_flush(120_000)
    provider.shutdown()
    return thread, time.process_time() - before


def idle(count: int, rate: float) -> tuple[float, float]:
    before = time.process_time()
    thread = pace(count, rate, lambda number: None)
    return thread, time.process_time() - before


WAYS = {"otel-tf": ours, "sdk": sdk, "idle": idle}


def measure(way: str, count: int, rate: float) -> tuple[float, float]:
    """Runs one way in a process of its own; returns µs a span of its thread and of the process."""
    with tempfile.TemporaryDirectory() as folder, endpoint() as (url, received):
        done = subprocess.run(
            [sys.executable, __file__, "--way", way, "--spans", str(count), "--rate", str(rate)],
            env={
                **{key: value for key, value in os.environ.items() if not key.startswith("OTEL_")},
                "OTEL_EXPORTER_OTLP_ENDPOINT": url,
                "OTEL_TF_RUN_DIR": folder,
            },
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        got = received()
        assert got == (0 if way == "idle" else count), f"{way}: {got} of {count} spans arrived"
    thread, process = json.loads(done.stdout)
    return thread / count * 1e6, process / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--spans", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=4_000.0, help="spans a second; 0: all at once")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve()
        return
    if args.way:
        print(json.dumps(WAYS[args.way](args.spans, args.rate)))
        return
    runs: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for _ in range(args.repeat):
        for way, found in runs.items():
            found.append(measure(way, args.spans, args.rate))
    median = {
        way: [statistics.median(each[column] for each in found) for column in (0, 1)]
        for way, found in runs.items()
    }
    cost = {
        way: [value - base for value, base in zip(median[way], median["idle"], strict=True)] for way in WAYS
    }
    result = {
        "spans": args.spans,
        "rate": args.rate,
        "thread_us": {way: round(cost[way][0], 2) for way in ("otel-tf", "sdk")},
        "process_us": {way: round(cost[way][1], 2) for way in ("otel-tf", "sdk")},
        "ratio": round(cost["otel-tf"][1] / cost["sdk"][1], 3),
    }
    if args.json:
        print(json.dumps(result))
        return
    print(f"{args.spans} spans at {args.rate:g}/s, µs of CPU a span (loop subtracted)")
    for way in ("otel-tf", "sdk"):
        print(f"  {way:8} recording thread {cost[way][0]:6.2f}   whole process {cost[way][1]:6.2f}")
    print(f"  ratio of the whole: {result['ratio']}")


if __name__ == "__main__":
    main()
