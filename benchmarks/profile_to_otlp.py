"""How fast profiles become OTLP: beside the SDK with its encoder, and xprof's conversion for its trace
viewer.

    python benchmarks/profile_to_otlp.py [--steps 1200] [--repeat 3] [--file FILE] [--without-xprof] [--json]

The profile is a real one: a training loop of 24 layers, taken by TensorFlow's own profiler, with the steps'
ids in it. Ways run in turns, so that all see the same machine; the median counts. Each way runs in a process
of its own; time is from the file to the bytes, without imports, after a warm-up with a small profile; memory
is the process's largest, less what it had after the warm-up. The SDK makes a span of every op through a
tracer, with the same name, ids excepted, and attributes, and OpenTelemetry's own encoder encodes them in
batches of 512; what reading takes is added, since it has no reader. xprof is installed into an environment
of its own below the user's cache folder.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WAYS = ("otel-tf", "otel-tf JSON", "SDK", "xprof")
SDK_OPS, SDK_BATCH = 30_000, 512

XPROF = """
import glob, resource, sys, time
from xprof.convert.raw_to_tool_data import xspace_to_tool_data
def run(path):
    start, cpu = time.perf_counter(), time.process_time()
    data, _ = xspace_to_tool_data([path], "trace_viewer", {})
    return time.perf_counter() - start, time.process_time() - cpu, len(data)
run(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
seconds, cpu, size = run(sys.argv[2])
print(seconds, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, size, 0, 0)
"""


def make(folder: Path, steps: int) -> Path:
    """Trains and profiles, in this process."""
    import tensorflow as tf

    from otel_tf.profiler import linkage

    layers = [tf.Variable(tf.random.normal([16, 16])) for _ in range(24)]
    x = tf.random.normal([8, 16])

    @tf.function
    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = x
            for number, weights in enumerate(layers):
                with tf.name_scope(f"layer_{number}"):
                    y = tf.nn.relu(y @ weights)
            loss = tf.reduce_mean(y * y)
        for weights, gradient in zip(layers, tape.gradient(loss, layers), strict=True):
            weights.assign_sub(0.01 * gradient)
        return loss

    for _ in range(3):
        step(x)
    tf.profiler.experimental.start(str(folder))
    for number in range(steps):
        ids = linkage((1 << 100) + number, (1 << 50) + number)
        with tf.profiler.experimental.Trace("train", step_num=number, _r=1, **ids):
            step(x)
    tf.profiler.experimental.stop()
    (made,) = folder.rglob("*.xplane.pb")
    return made


def ours(path: Path, form: str) -> tuple[float, int, int, int]:
    """Returns seconds, bytes, op spans, events."""
    from otel_tf.profiler import profile
    from otel_tf.profiler.otlp import Json, Proto
    from otel_tf.profiler.sinks import encoded

    start = time.perf_counter()
    profiled = profile([path])
    size = sum(len(payload) for payload, _ in encoded(profiled, Json() if form == "JSON" else Proto()))
    seconds = time.perf_counter() - start
    return seconds, size, len(profiled.whole.ops), sum(host.events for host in profiled.whole.hosts)


def sdk(path: Path, most: int) -> tuple[float, int, int, int]:
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

    from otel_tf import semconv
    from otel_tf.profiler import profile

    class Keep(SpanExporter):
        def __init__(self) -> None:
            self.waiting: list[Any] = []
            self.size = 0

        def export(self, spans: Any) -> SpanExportResult:
            self.waiting += spans
            if len(self.waiting) >= SDK_BATCH:
                self.flush()
            return SpanExportResult.SUCCESS

        def flush(self) -> None:
            self.size += len(encode_spans(self.waiting).SerializeToString())
            self.waiting = []

    started = time.perf_counter()
    whole = profile([path]).whole
    reading = time.perf_counter() - started
    ops, words = whole.ops, whole.words
    keep = Keep()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(keep))
    tracer = provider.get_tracer(semconv.SCOPE)
    count = min(most, len(ops))
    rows = zip(
        *(column[:count].tolist() for column in (ops.name, ops.type, ops.device, ops.step)),
        *(column[:count].tolist() for column in (ops.start_ns, ops.end_ns)),
        strict=True,
    )
    steps = whole.steps.step_id.tolist()
    session = whole.hosts[0].session
    started = time.perf_counter()
    for name, kind, device, step, start, end in rows:
        attributes = {
            semconv.OP_NAME: words[name],
            semconv.OP_TYPE: words[kind],
            semconv.DEVICE: words[device],
            semconv.PROFILER_SESSION: session,
            semconv.GLOBAL_STEP: step,
            semconv.PROFILER_STEP_ID: steps[step],
        }
        tracer.start_span(words[kind], attributes=attributes, start_time=start).end(end_time=end)
    keep.flush()
    seconds = (time.perf_counter() - started) * len(ops) / count + reading
    return seconds, keep.size * len(ops) // count, len(ops), sum(host.events for host in whole.hosts)


def way(name: str, small: Path, path: Path) -> tuple[float, float, int, int, int, int]:
    """Runs one way in this process: seconds, CPU seconds, KB, bytes, op spans, events."""
    run = (lambda file, few=False: sdk(file, 100 if few else SDK_OPS)) if name == "SDK" else None
    form = name.partition(" ")[2]
    run(small, True) if run else ours(small, form)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cpu = time.process_time()
    seconds, size, spans, events = run(path) if run else ours(path, form)
    cpu = time.process_time() - cpu
    if run:
        cpu = seconds  # one thread, and extrapolated
    return seconds, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, size, spans, events


def xprof_python() -> Path:
    """Returns the interpreter of an environment that has xprof, made if it is not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "otel-tf" / "xprof"
    python = cache / "bin" / "python"
    if not python.exists():
        print(f"installing xprof into {cache}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", cache], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "xprof"], check=True)
    return python


def in_a_process(name: str, small: Path, path: Path) -> list[float]:
    if name == "xprof":
        # It leaves files of its own beside the profile, and would read those the next time.
        with tempfile.TemporaryDirectory() as folder:
            copies = [Path(folder) / str(number) / "vm.xplane.pb" for number in range(2)]
            for source, copy in zip((small, path), copies, strict=True):
                copy.parent.mkdir()
                shutil.copy(source, copy)
            command = [str(xprof_python()), "-c", XPROF, *map(str, copies)]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    else:
        command = [sys.executable, __file__, "--way", name, str(small), str(path)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [float(value) for value in said.splitlines()[-1].split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--file", type=Path, help="a profile to take instead of making one")
    parser.add_argument("--without-xprof", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--way", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--make", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        print(*way(args.way[0], Path(args.way[1]), Path(args.way[2])))
        return
    if args.make:
        make(Path(args.make), args.steps)
        return
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for name, steps in (("small", 5), ("large", args.steps)):
            made = Path(folder) / name
            command = [sys.executable, __file__, "--make", str(made), "--steps", str(steps)]
            subprocess.run(command, check=True, capture_output=True)
            files += made.rglob("*.xplane.pb")
        small, path = files[0], args.file or files[1]
        report(path, small, args)


def report(path: Path, small: Path, args: argparse.Namespace) -> None:
    ways = [name for name in WAYS if name != "xprof" or not args.without_xprof]
    rounds: dict[str, list[list[float]]] = {name: [] for name in ways}
    for _ in range(args.repeat):
        for name in ways:
            rounds[name].append(in_a_process(name, small, path))
    rows = {
        name: [statistics.median(values) for values in zip(*found, strict=True)]
        for name, found in rounds.items()
    }
    size, (*_, spans, events) = path.stat().st_size, rows["otel-tf"]
    about = {"bytes": size, "events": int(events), "op_spans": int(spans), "cores": os.cpu_count()}
    figures = {
        name: {
            "seconds": round(seconds, 3),
            "cpu_seconds": round(cpu, 3),
            "op_spans_per_s": round(spans / seconds),
            "times_otel_tf": round(seconds / rows["otel-tf"][0], 1),
            "memory_times_file": round(kilobytes * 1024 / size, 1),
            "bytes_out": int(out),
        }
        for name, (seconds, cpu, kilobytes, out, *_) in rows.items()
    }
    if args.json:
        print(json.dumps({**about, "ways": figures}))
        return
    print(f"{size / 1e6:.1f} MB, {int(events):,} events, {int(spans):,} ops, {os.cpu_count()} cores")
    print(f"{'':<14}{'s':>8}{'CPU s':>8}{'ops/s':>11}{'× ours':>8}{'memory × file':>15}{'MB out':>8}")
    for name, row in figures.items():
        print(
            f"{name:<14}{row['seconds']:>8.2f}{row['cpu_seconds']:>8.2f}{row['op_spans_per_s']:>11,}{row['times_otel_tf']:>8.1f}"
            f"{row['memory_times_file']:>15.1f}{row['bytes_out'] / 1e6:>8.0f}"
        )


if __name__ == "__main__":
    main()
