"""What an idle `otel_tf.watch` costs a training step of about a millisecond, beside the same step without.

Four steps of one process take turns, in blocks, so that whatever else the machine does hits all of them:
bare, with the loss watched, with a gradient watched, with that one's histogram too. Nothing goes wrong and
nobody asks for what is watched, as in a training that is well. The ratio is that of the lower quartiles.

Two builds of one step differ by some per cent already, so a watch is also measured by itself: twenty of them
in one graph, beside the graph without, in µs for each.

    python benchmarks/watch_cost.py [--blocks 80] [--steps 25] [--size 150] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
WAYS = ("bare", "loss", "gradient", "histogram")
#: Watches in one graph, where they are measured by themselves.
MANY = 20


def step_of(way: str, size: int, compiled: bool) -> Any:
    import tensorflow as tf

    import otel_tf

    weights = [tf.Variable(tf.random.stateless_uniform([size, size], [1, n]) / size) for n in range(4)]
    x = tf.ones([size, size])

    @tf.function(jit_compile=compiled)
    def step() -> Any:
        with tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.nn.relu(y @ weight)
            loss = tf.reduce_mean(tf.square(y - 1.0))
            if way == "loss":
                loss = otel_tf.watch(f"{way}/{compiled}", loss)
        gradients = tape.gradient(loss, weights)
        if way in ("gradient", "histogram"):
            gradients[0] = otel_tf.watch(f"{way}/{compiled}", gradients[0], histogram=way == "histogram")
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(1e-6 * gradient)
        return loss

    return step


def measure(blocks: int, steps: int, size: int, compiled: bool) -> dict[str, float]:
    """Returns µs of a step for each way."""
    made = {way: step_of(way, size, compiled) for way in WAYS}
    for step in made.values():
        for _ in range(20):
            step()
    took: dict[str, list[float]] = {way: [] for way in WAYS}
    for block in range(blocks):
        order = WAYS if block % 2 else WAYS[::-1]
        for way in order:
            step = made[way]
            begun = time.perf_counter()
            for _ in range(steps):
                step()
            took[way].append((time.perf_counter() - begun) / steps * 1e6)
    # The lower quartile: a busy machine only ever adds.
    return {way: statistics.quantiles(times, n=4)[0] for way, times in took.items()}


def alone(blocks: int, size: int, compiled: bool) -> dict[str, float]:
    """Returns µs of one watch of a number and of a square tensor, of twenty in one graph."""
    import tensorflow as tf

    import otel_tf

    def made(shape: list[int], watched: bool) -> Any:
        @tf.function(jit_compile=compiled)
        def chain(x: Any) -> Any:
            for number in range(MANY):
                x = x * 1.0001
                if watched:
                    x = otel_tf.watch(f"{number} of {len(shape)}/{compiled}", x)
            return x

        return chain.get_concrete_function(tf.TensorSpec(shape))

    shapes: dict[str, list[int]] = {"number": [], "tensor": [size, size]}
    chains = {(kind, watched): made(shapes[kind], watched) for kind in shapes for watched in (False, True)}
    inputs = {kind: tf.ones(shape) for kind, shape in shapes.items()}
    took: dict[Any, list[float]] = {key: [] for key in chains}
    for block in range(-30, blocks):
        for key, chain in chains.items():
            begun = time.perf_counter()
            for _ in range(5):
                chain(inputs[key[0]])
            if block >= 0:
                took[key].append((time.perf_counter() - begun) / 5 / MANY * 1e6)
    lower = {key: statistics.quantiles(times, n=4)[0] for key, times in took.items()}
    return {kind: round(lower[kind, True] - lower[kind, False], 1) for kind in shapes}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=80)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--size", type=int, default=150)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    import otel_tf

    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, otel_tf.instrument(run_dir=folder):
        for compiled in (False, True):
            took = measure(args.blocks, args.steps, args.size, compiled)
            result["xla" if compiled else "graph"] = {
                "step_us": {way: round(value, 1) for way, value in took.items()},
                "ratio": {way: round(took[way] / took["bare"], 3) for way in WAYS[1:]},
                "alone_us": alone(args.blocks, args.size, compiled),
            }
    if args.json:
        print(json.dumps(result))
        return
    for kind, found in result.items():
        print(f"{kind}: a step without takes {found['step_us']['bare']:.0f} µs; with a watch of")
        for way, ratio in found["ratio"].items():
            print(f"  {way:10} {found['step_us'][way]:8.0f} µs   ratio {ratio:.3f}")
        for what, cost in found["alone_us"].items():
            print(f"  a watch of a {what} by itself: {cost} µs")


if __name__ == "__main__":
    main()
