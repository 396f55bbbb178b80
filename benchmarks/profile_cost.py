"""What profiles cost: the link while none is taken, and a closure of ParameterServerStrategy while one is.

    python benchmarks/profile_cost.py [--rounds 10] [--closures 300] [--json]

Link: nanoseconds a step of asking whether a profile is taken, beside TensorFlow's own `Trace` with the same
metadata, idle and while a profile is taken; and beside the run of a small `tf.function`.

Capture: one coordinator, two workers and a parameter server on this machine; every round runs the same
closures three times, in changing order: with no profile, with one of all tasks as we take it (every op), and
with `tf.profiler.experimental.client.trace` of the servers alone (cheap ops left out). Shown are medians over
rounds of the wall time a closure, the ratio to none of the same round, and what it takes afterwards to hand
the profile over and write it, off the training thread.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import threading
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

from otel_tf.demo.clocks import FalseClocks
from otel_tf.demo.cluster import Cluster

WAYS = ("none", "ours", "client")


def link_cost() -> dict[str, float]:
    """Returns ns a step."""
    import tensorflow as tf

    from otel_tf.instrumentation.profiler import link

    weight = tf.Variable(tf.zeros([64, 64]))

    @tf.function
    def step() -> None:
        weight.assign_add(tf.ones([64, 64]))

    def ours() -> None:
        mark = link.begin_step() if link.enabled() else None
        if mark is not None:
            link.end_step(mark, 41_207, 1 << 100, 1 << 60)

    def theirs() -> None:
        with tf.profiler.experimental.Trace(
            "train", step_num=41_207, _r=1, otel_trace=f"t-{1 << 100:032x}", otel_span=f"s-{1 << 60:016x}"
        ):
            pass

    def per_call(call: Callable[[], Any], number: int) -> float:
        return min(timeit.repeat(call, number=number, repeat=5)) / number * 1e9

    step()
    found = {
        "function": per_call(step, 2_000),
        "call": per_call(lambda: None, 200_000),
        "idle_ours": per_call(ours, 200_000),
        "idle_trace": per_call(theirs, 50_000),
    }
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        found["taken_ours"] = per_call(ours, 5_000)
        found["taken_trace"] = per_call(theirs, 5_000)
        tf.profiler.experimental.stop(save=False)
    return found


def closures_of(strategy: Any, coordinator: Any) -> Callable[[int], float]:
    """Returns what runs as many closures as it is told, and returns µs a closure."""
    import tensorflow as tf

    with strategy.scope():
        weight = tf.Variable(tf.zeros([64, 64]))
        iterations = tf.Variable(0, dtype=tf.int64, trainable=False, name="iterations")

    @tf.function
    def step(iterator: Any) -> Any:
        x = next(iterator)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ weight - 1.0))
        weight.assign_sub(0.01 * tape.gradient(loss, weight))
        iterations.assign_add(1)
        return loss

    def dataset() -> Any:
        return tf.data.Dataset.from_tensors(tf.ones([32, 64])).repeat()

    iterator = iter(coordinator.create_per_worker_dataset(dataset))

    def run(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        return (time.perf_counter() - began) / count * 1e6

    return run


def coordinate(rounds: int, closures: int) -> dict[str, list[float]]:
    """Returns µs a closure by way, and seconds of handing over."""
    import tensorflow as tf

    import otel_tf
    from otel_tf.instrumentation.profiler.sessions import LocalSession, RemoteSession, server_addresses

    strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    otel_tf.instrument(strategy)
    run_closures = closures_of(strategy, coordinator)
    found: dict[str, list[float]] = {name: [] for name in (*WAYS, "hand_over", "bytes")}

    def run(way: str) -> None:
        found[way].append(run_closures(closures))

    def ours(folder: Path) -> None:
        local, remote = LocalSession(), RemoteSession(server_addresses())
        local.start(folder)
        remote.start(60.0)
        time.sleep(0.3)
        run("ours")
        remote.end()
        began = time.perf_counter()
        local.save(folder / "chief-0.xplane.pb")
        remote.save(folder, threading.Event(), 1.0)
        found["hand_over"].append(time.perf_counter() - began)
        found["bytes"].append(sum(file.stat().st_size for file in folder.iterdir()) / closures)

    def client(folder: Path) -> None:
        where = ",".join(f"grpc://{address}" for address in server_addresses().values())
        # It must be told beforehand how long: as long as the round before, and half as long again.
        lasts_s = max(found["none"][-1:] + found["ours"][-1:]) * closures / 1e6 * 1.5 + 0.5
        other = threading.Thread(
            target=tf.profiler.experimental.client.trace, args=(where, str(folder), int(lasts_s * 1000))
        )
        other.start()
        time.sleep(0.3)
        run("client")
        other.join()

    run("none")
    found["none"].clear()
    for number in range(rounds):
        for way in (WAYS, WAYS[::-1])[number % 2]:
            with tempfile.TemporaryDirectory() as folder:
                if way == "none":
                    run("none")
                elif way == "ours":
                    ours(Path(folder))
                else:
                    client(Path(folder))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--closures", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if "TF_CONFIG" in os.environ:
        # TensorFlow's client prints to the standard output.
        with contextlib.redirect_stdout(sys.stderr):
            found = coordinate(args.rounds, args.closures)
        print(json.dumps(found), flush=True)
        return
    link = link_cost()
    with tempfile.TemporaryDirectory() as folder:
        variables = {
            "OTEL_TF_RUN_DIR": folder,
            "OTEL_TRACES_EXPORTER": "none",
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }
        cluster = Cluster(2, Path(folder), variables, FalseClocks(None, "not wanted"))
        arguments = ["--rounds", str(args.rounds), "--closures", str(args.closures)]
        found = cluster.run(arguments, program=[str(Path(__file__).resolve())])
    none = found["none"]
    capture = {way: statistics.median(found[way]) for way in WAYS}
    ratios = {
        way: statistics.median(mine / bare for mine, bare in zip(found[way], none, strict=False))
        for way in WAYS[1:]
    }
    if args.json:
        print(json.dumps({"link_ns": link, "closure_us": capture, "ratio": ratios}))
        return
    print("the link, ns a step")
    print(f"  an empty call              {link['call']:>10.0f}")
    print(f"  ours, no profile           {link['idle_ours']:>10.0f}")
    print(f"  tf's Trace, no profile     {link['idle_trace']:>10.0f}")
    print(f"  ours, in a profile         {link['taken_ours']:>10.0f}")
    print(f"  tf's Trace, in a profile   {link['taken_trace']:>10.0f}")
    print(f"  a run of a small function  {link['function']:>10.0f}")
    print(f"a closure, µs: {args.rounds} rounds of {args.closures}")
    print(f"  no profile                 {capture['none']:>10.0f}")
    for way, text in (("ours", "all tasks, every op"), ("client", "client.trace")):
        print(f"  {text:<27}{capture[way]:>10.0f}  ratio {ratios[way]:.3f}")
    print(
        f"handing over and writing: {statistics.median(found['hand_over']):.2f} s, "
        f"{statistics.median(found['bytes']):.0f} bytes a closure"
    )


if __name__ == "__main__":
    sys.exit(main())
