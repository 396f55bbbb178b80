"""How long the command line takes to start, beside an interpreter that does nothing.

    python benchmarks/startup.py [--runs 20]

Prints medians in ms and their ratio. The two are run in turns, so that both see the same machine.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

COMMANDS: dict[str, Sequence[str]] = {
    "python -c pass": (sys.executable, "-c", "pass"),
    "import otel_tf": (sys.executable, "-c", "import otel_tf"),
    "otel-tf --help": (str(Path(sys.executable).with_name("otel-tf")), "--help"),
}


def seconds(command: Sequence[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(runs):
        for name, command in COMMANDS.items():
            taken[name].append(seconds(command))
    medians = {name: statistics.median(times) for name, times in taken.items()}
    base = medians["python -c pass"]
    for name, median in medians.items():
        print(f"{name:<16}{1000 * median:8.1f} ms{median / base:8.2f} ×")


if __name__ == "__main__":
    main()
