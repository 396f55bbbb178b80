"""What instrumenting costs a step of MultiWorkerMirroredStrategy: with and without us, alternating.

    python benchmarks/collective_cost.py [--rounds 10] [--steps 200] [--size 64]

Two workers on this machine, two collectives a step (the gradients of three matrices, the loss). Every round
runs the same steps twice, bare and instrumented (attached and undone again within one process), in
alternating order; shown are medians over all steps of wall time, over rounds of the first worker's CPU time
a step, and the ratio. Collectives are stamped inside the graph; spans are spooled and not sent.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def work(rounds: int, steps: int, size: int) -> dict[str, list[float]]:
    import tensorflow as tf

    import otel_tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weights = [tf.Variable(tf.random.stateless_normal([size, size], [0, n]) * 0.05) for n in range(3)]

    def replica_step(x: Any) -> Any:
        context = tf.distribute.get_replica_context()
        with tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.nn.tanh(y @ weight)
            loss = tf.reduce_mean(tf.square(y))
        for weight, gradient in zip(
            weights, context.all_reduce("SUM", tape.gradient(loss, weights)), strict=True
        ):
            weight.assign_sub(0.01 * gradient)
        return context.all_reduce("SUM", loss)

    def make_step() -> Any:
        return tf.function(lambda x: strategy.run(replica_step, args=(x,)))

    x = tf.ones([64, size])
    bare, ours = make_step(), make_step()
    found: dict[str, list[float]] = {
        f"{kind}_{what}": [] for kind in ("bare", "ours") for what in ("wall", "cpu")
    }

    def run(kind: str, step: Any) -> None:
        cpu = time.process_time()
        for _ in range(steps):
            wall = time.perf_counter()
            step(x)
            found[f"{kind}_wall"].append((time.perf_counter() - wall) * 1e6)
        found[f"{kind}_cpu"].append((time.process_time() - cpu) / steps * 1e6)

    # The first round is thrown away: it traces.
    for number in range(rounds + 1):
        for kind in ("bare", "ours") if number % 2 else ("ours", "bare"):
            if kind == "bare":
                run(kind, bare)
            else:
                with otel_tf.instrument(strategy):
                    run(kind, ours)
        if number == 0:
            for values in found.values():
                values.clear()
    return found


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--size", type=int, default=64, help="of the matrices")
    args = parser.parse_args()
    if "TF_CONFIG" in os.environ:
        print(json.dumps(work(args.rounds, args.steps, args.size)), flush=True)
        return
    cluster = {"worker": [free_address(), free_address()]}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        processes = []
        for index in range(2):
            environment = {
                **os.environ,
                "OTEL_TF_RUN_DIR": folder,
                "OTEL_TF_RUN_ID": "benchmark",
                "OTEL_TRACES_EXPORTER": "none",
                "TF_CPP_MIN_LOG_LEVEL": "2",
                "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}),
            }
            command = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:]]
            process = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        said = processes[0].communicate()[0]
        if processes[0].returncode != 0:
            sys.exit("a worker failed; run it by hand to see why")
        found = json.loads(said)
    print(f"{args.rounds} rounds of {args.steps} steps, matrices of {args.size}²")
    print(f"{'a step, µs':<12}{'bare':>10}{'ours':>10}{'ratio':>8}")
    for what in ("wall", "cpu"):
        bare, ours = (statistics.median(found[f"{kind}_{what}"]) for kind in ("bare", "ours"))
        print(f"{what:<12}{bare:>10.0f}{ours:>10.0f}{ours / bare:>8.3f}")


if __name__ == "__main__":
    main()
