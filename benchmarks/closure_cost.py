"""What instrumenting costs a closure of ParameterServerStrategy: with and without us, alternating.

    python benchmarks/closure_cost.py [--rounds 12] [--closures 500]

One coordinator, two workers and a parameter server on this machine. Every round runs the same closures
twice, bare and instrumented (attached and undone again within one process), in alternating order; shown
are medians over rounds of wall time a closure and of the coordinator's CPU time a closure, and the ratio.
The workers stamp their steps inside the graph; spans are spooled and not sent.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from otel_tf.demo.clocks import FalseClocks
from otel_tf.demo.cluster import Cluster


def coordinate(rounds: int, closures: int) -> dict[str, list[float]]:
    import tensorflow as tf

    import otel_tf

    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weight = tf.Variable(tf.zeros([64, 64]))
        iterations = tf.Variable(0, dtype=tf.int64, trainable=False, name="iterations")

    def make_step() -> Any:
        @tf.function
        def step(iterator: Any) -> Any:
            x = next(iterator)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(x @ weight - 1.0))
            weight.assign_sub(0.01 * tape.gradient(loss, weight))
            iterations.assign_add(1)
            return loss

        return step

    def dataset() -> Any:
        return tf.data.Dataset.from_tensors(tf.ones([32, 64])).repeat()

    iterator = iter(coordinator.create_per_worker_dataset(dataset))
    steps = {"bare": make_step(), "instrumented": make_step()}
    found: dict[str, list[float]] = {f"{kind}_{what}": [] for kind in steps for what in ("wall", "cpu")}

    def run(kind: str, count: int) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(count):
            coordinator.schedule(steps[kind], args=(iterator,))
        coordinator.join()
        found[f"{kind}_wall"].append((time.perf_counter() - wall) / count * 1e6)
        found[f"{kind}_cpu"].append((time.process_time() - cpu) / count * 1e6)

    # The first round is thrown away: it meets the workers and makes the queues.
    for number in range(rounds + 1):
        for kind in ("bare", "instrumented") if number % 2 else ("instrumented", "bare"):
            if kind == "instrumented":
                handle = otel_tf.instrument(strategy)
                run(kind, 20)  # each attaching wraps and traces the function once
                found["instrumented_wall"].pop(), found["instrumented_cpu"].pop()
                run(kind, closures)
                handle.uninstrument()
            else:
                run(kind, closures)
        if number == 0:
            for values in found.values():
                values.clear()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--closures", type=int, default=500)
    args = parser.parse_args()
    if "TF_CONFIG" in os.environ:
        print(json.dumps(coordinate(args.rounds, args.closures)), flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        variables = {
            "OTEL_TF_RUN_DIR": folder,
            "OTEL_TRACES_EXPORTER": "none",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        cluster = Cluster(2, Path(folder), variables, FalseClocks(None, "not wanted"))
        arguments = ["--rounds", str(args.rounds), "--closures", str(args.closures)]
        found = cluster.run(arguments, program=[str(Path(__file__).resolve())])
    print(f"{args.rounds} rounds of {args.closures} closures")
    print(f"{'a closure, µs':<16}{'bare':>10}{'ours':>10}{'ratio':>8}")
    for what in ("wall", "cpu"):
        bare, ours = (statistics.median(found[f"{kind}_{what}"]) for kind in ("bare", "instrumented"))
        pairs = zip(found[f"bare_{what}"], found[f"instrumented_{what}"], strict=True)
        ratio = statistics.median(ours / bare for bare, ours in pairs)
        print(f"{what:<16}{bare:>10.0f}{ours:>10.0f}{ratio:>8.3f}")


if __name__ == "__main__":
    sys.exit(main())
