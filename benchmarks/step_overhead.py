"""What recording a step costs: otel-tf beside OpenTelemetry's SDK by hand, and beside nothing.

    python benchmarks/step_overhead.py [--steps 1000] [--rounds 7] [--step-ms 5] [--busy] [--json]

Each way trains the same small model by a `tf.function`; a step takes as long as ``--step-ms`` says.

Without ``--busy`` there is one process per way, all of them alive at once and taking turns, by rounds, so
that every way meets the same machine; the loop sleeps for the rest of a step. Shown is CPU time of the whole
process a step, the sending of all spans included, and wall time of a step on the training thread, which has
just been asleep.

With ``--busy`` ops in the graph keep one core busy for all of a step, as training does, and one process goes
through the ways in turns of 20 steps. Shown is wall time of a step alone.

All figures are medians over turns, beside the bare loop of the same turn. Ways:

    bare    nothing
    sdk1    one SDK span a step, with the attributes of our `train_step`
    sdk2    two of them, as we write: `step` and `train_step`
    ours    `otel_tf.instrument()`, spooling and sending

The SDK's spans go through a BatchSpanProcessor and the OTLP/HTTP exporter; all spans go to an endpoint in
another process that says yes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from span_cost import endpoint

WAYS = ("bare", "sdk1", "sdk2", "ours")
FUNCTION = "train_step"
BUSY_TURN = 20
WARM_UP = 50

#: Runs a step, which has the given number.
Run = Callable[[Callable[[], Any], int], None]


def train_step_of(busy_s: float) -> Callable[[], Any]:
    import tensorflow as tf

    weight = tf.Variable(tf.zeros([64, 64]))
    iterations = tf.Variable(0, dtype=tf.int64, trainable=False, name="iterations")
    x = tf.ones([32, 64])

    @tf.function
    def train_step() -> Any:
        if busy_s:
            until = tf.timestamp() + busy_s
            tf.while_loop(lambda _: tf.timestamp() < until, lambda n: (n + 1,), [0])
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ weight - 1.0))
        weight.assign_sub(0.01 * tape.gradient(loss, weight))
        iterations.assign_add(1)
        return loss

    step: Callable[[], Any] = train_step
    return step


def by_sdk(spans: int) -> tuple[Run, Callable[[], Any]]:
    """Returns what runs a step inside SDK spans, and what flushes."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    # As many as there are: what it drops by default would cost it nothing.
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), max_queue_size=200_000))
    tracer = provider.get_tracer("benchmark", "1")

    def attributes(number: int) -> dict[str, Any]:
        return {
            "tensorflow.global_step": number,
            "tensorflow.seq": 2 * number,
            "tensorflow.monotonic_ns": time.monotonic_ns(),
            "tensorflow.local_step": number,
            "tensorflow.function.name": FUNCTION,
            "tensorflow.worker": "local:0",
        }

    def one(step: Callable[[], Any], number: int) -> None:
        with tracer.start_as_current_span("train_step", attributes=attributes(number)):
            step()

    def two(step: Callable[[], Any], number: int) -> None:
        root = {
            "tensorflow.global_step": number,
            "tensorflow.seq": 2 * number,
            "tensorflow.monotonic_ns": time.monotonic_ns(),
        }
        with tracer.start_as_current_span("step", attributes=root):
            one(step, number)

    return (one if spans == 1 else two), functools.partial(provider.force_flush, 60_000)


def by_nobody(step: Callable[[], Any], _: int) -> None:
    step()


def timed(run: Run, step: Callable[[], Any], first: int, count: int, rest_ms: float = 0.0) -> list[float]:
    """Runs steps; returns median and mean of their wall times in µs."""
    walls = []
    for number in range(first, first + count):
        began = time.perf_counter_ns()
        run(step, number)
        walls.append(time.perf_counter_ns() - began)
        rest_s = rest_ms / 1e3 - walls[-1] / 1e9
        if rest_s > 0:
            time.sleep(rest_s)
    return [statistics.median(walls) / 1e3, statistics.fmean(walls) / 1e3]


def one_way(way: str, step_ms: float) -> None:
    """Runs rounds as it is told by lines of its input; answers each with one JSON line."""
    step = train_step_of(0.0)
    run, flush = by_sdk(int(way[3:])) if way.startswith("sdk") else (by_nobody, None)
    if way == "ours":
        import otel_tf

        flush = functools.partial(otel_tf.instrument().flush, 60)
    number = 1
    for line in sys.stdin:
        count = int(line)
        cpu = time.process_time()
        walls = timed(run, step, number, count, step_ms)
        number += count
        if flush is not None:
            flush()
        print(json.dumps([*walls, (time.process_time() - cpu) / count * 1e6]), flush=True)


def all_ways(turns: int, step_ms: float) -> None:
    """Goes through all ways; prints one JSON line, a turn's median and mean by way."""
    import otel_tf

    step = train_step_of(step_ms / 1e3)
    runs: dict[str, Run] = {"sdk1": by_sdk(1)[0], "sdk2": by_sdk(2)[0]}
    found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    timed(by_nobody, step, 1, BUSY_TURN)
    for turn in range(turns):
        for way in WAYS if turn % 2 else reversed(WAYS):
            run = runs.get(way, by_nobody)
            with otel_tf.instrument() if way == "ours" else contextlib.nullcontext():
                timed(run, step, 1, 2)
                found[way].append(timed(run, step, 1, BUSY_TURN))
    print(json.dumps(found), flush=True)


@contextlib.contextmanager
def started(*arguments: str, url: str, folder: str) -> Iterator[subprocess.Popen[str]]:
    """Starts this program as one that measures; it ends with its input."""
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("OTEL_")},
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
        "OTEL_TF_RUN_DIR": folder,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
    }
    with subprocess.Popen(
        [sys.executable, __file__, *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        yield process


def measure(steps: int, rounds: int, step_ms: float) -> dict[str, list[list[float]]]:
    """Returns median, mean and CPU of each round by way, in µs."""
    found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        url, received = stack.enter_context(endpoint())
        with contextlib.ExitStack() as running:
            processes = {
                way: running.enter_context(
                    started("--way", way, "--step-ms", str(step_ms), url=url, folder=folder)
                )
                for way in WAYS
            }

            def turn(way: str, count: int) -> list[float]:
                process = processes[way]
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(f"{count}\n")
                process.stdin.flush()
                answer: list[float] = json.loads(process.stdout.readline())
                return answer

            for way in WAYS:
                turn(way, WARM_UP)  # tracing, imports, the first connection
            for number in range(rounds):
                for way in WAYS if number % 2 else reversed(WAYS):
                    found[way].append(turn(way, steps))
        total = rounds * steps + WARM_UP
        # Beside the steps, ours has written the tracing of the function.
        assert 5 * total <= received() <= 5 * total + 10, "spans were lost"
    return found


def measure_busy(turns: int, step_ms: float) -> dict[str, list[list[float]]]:
    """Returns median and mean of each turn by way, in µs."""
    with tempfile.TemporaryDirectory() as folder, endpoint() as (url, received):
        arguments = ("--way", "all", "--step-ms", str(step_ms), "--rounds", str(turns))
        with started(*arguments, url=url, folder=folder) as process:
            assert process.stdout is not None
            found: dict[str, list[list[float]]] = json.loads(process.stdout.readline())
        assert received() >= 5 * turns * BUSY_TURN, "spans were lost"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1000, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--step-ms", type=float, default=5.0, help="time of a step")
    parser.add_argument("--busy", action="store_true", help="a step computes all the time")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--way", choices=(*WAYS, "all"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way == "all":
        all_ways(args.rounds, args.step_ms)
        return
    if args.way:
        one_way(args.way, args.step_ms)
        return
    load = os.getloadavg()[0]
    found = (
        measure_busy(args.rounds * args.steps // BUSY_TURN, args.step_ms)
        if args.busy
        else measure(args.steps, args.rounds, args.step_ms)
    )

    def over_bare(column: int) -> dict[str, float]:
        return {
            way: round(
                statistics.median(
                    mine[column] - bare[column] for mine, bare in zip(found[way], found["bare"], strict=True)
                ),
                1,
            )
            for way in WAYS[1:]
        }

    bare = [round(statistics.median(column), 1) for column in zip(*found["bare"], strict=True)]
    result: dict[str, Any] = {
        "steps": args.steps,
        "rounds": args.rounds,
        "step_ms": args.step_ms,
        "busy": args.busy,
        "load": [round(load, 2), round(os.getloadavg()[0], 2)],
        "bare_us": dict(zip(("median", "mean", "cpu"), bare, strict=False)),
        "thread_us": over_bare(0),
        "thread_mean_us": over_bare(1),
    }
    if not args.busy:
        result["cpu_us"] = cpu = over_bare(2)
        result["cpu_ratio"] = {way: round(cpu["ours"] / cpu[way], 3) for way in ("sdk1", "sdk2")}
    print(json.dumps(result) if args.json else as_table(result))


def as_table(result: dict[str, Any]) -> str:
    """Returns a result for people."""
    lines = [
        f"{result['rounds']} rounds of {result['steps']} steps of {result['step_ms']:g} ms, load "
        f"{result['load'][0]:g} before and {result['load'][1]:g} after; µs a step, over the bare loop",
        f"{'':<6}{'thread, median':>16}{'thread, mean':>14}"
        + ("" if result["busy"] else f"{'CPU, process':>14}"),
    ]
    for way in WAYS:
        columns = (
            result["bare_us"].values()
            if way == "bare"
            else [result[name][way] for name in ("thread_us", "thread_mean_us", "cpu_us") if name in result]
        )
        row = "".join(f"{value:>{width}}" for value, width in zip(columns, (16, 14, 14), strict=False))
        lines.append(f"{way:<6}{row}" + ("   (the loop itself)" if way == "bare" else ""))
    if "cpu_ratio" in result:
        ratio = result["cpu_ratio"]
        lines.append(f"CPU of ours beside the SDK's: one span a step {ratio['sdk1']}, two {ratio['sdk2']}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
