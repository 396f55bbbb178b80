"""What a log line costs the thread that logs it: plain logging, our capture, OpenTelemetry's handler.

Beside it, what a line of stderr costs that goes through the reader. Every figure is the median of several
rounds, taken in turn, so that a busy moment of the machine hits all of them.

    python benchmarks/log_cost.py [--lines 20000] [--rounds 7]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LIMIT_US = 20.0


class _Nowhere(logging.Handler):
    """A program's own handler, as cheap as one can be: it formats."""

    def emit(self, record: logging.LogRecord) -> None:
        self.format(record)


@contextmanager
def plain() -> Iterator[None]:
    yield


@contextmanager
def ours() -> Iterator[None]:
    """The capture as `instrument` attaches it, in a step, into a spool."""
    from otel_tf import config
    from otel_tf.identity import identify
    from otel_tf.logs.capture import LogCapture, StepNow
    from otel_tf.telemetry import start

    with tempfile.TemporaryDirectory() as folder:
        settings = config.resolve(run_dir=Path(folder), run_id="benchmark")
        pipeline = start(settings, identify(settings))
        step = StepNow(41207, lambda: (1 << 100, 1 << 50))
        capture = LogCapture(pipeline.log, pipeline.now, "worker:1", lambda: step)
        capture.attach()
        try:
            yield
        finally:
            capture.detach()
            pipeline.shutdown(10)


@contextmanager
def handler() -> Iterator[None]:
    """OpenTelemetry's own handler with its batch processor; the exporter keeps everything in memory."""
    import warnings

    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, InMemoryLogRecordExporter

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opentelemetry.sdk._logs import LoggingHandler

        provider = LoggerProvider(shutdown_on_exit=False)
        provider.add_log_record_processor(BatchLogRecordProcessor(InMemoryLogRecordExporter()))
        attached = LoggingHandler(logger_provider=provider)
    logger = logging.getLogger("benchmark")
    logger.addHandler(attached)
    try:
        yield
    finally:
        logger.removeHandler(attached)
        provider.shutdown()


def per_line_us(lines: int) -> float:
    """Returns the CPU time of one line on this thread; what other threads do meanwhile is not in it."""
    logger = logging.getLogger("benchmark")
    started = time.thread_time_ns()
    for number in range(lines):
        logger.info("step %d: loss %.4f, %d examples a second", number, 0.123456, 217)
    return (time.thread_time_ns() - started) / lines / 1000


def stderr_us(lines: int, *, captured: bool) -> float:
    """Returns the time of one line written to file descriptor 2, read at its other end by somebody."""
    code = (
        "import os, sys, time\n"
        + ("import otel_tf; otel_tf.capture_native_logs()\n" if captured else "")
        + "text = b'I0000 00:00:1796106511.548127   14477 local_rendezvous.cc:412] an ordinary line\\n'\n"
        f"started = time.perf_counter_ns()\nfor _ in range({lines}): os.write(2, text)\n"
        f"print((time.perf_counter_ns() - started) / {lines} / 1000)\n"
    )
    import subprocess

    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "OTEL_TF_RUN_DIR": folder, "OTEL_TF_RUN_ID": "benchmark"},
            capture_output=True,
            check=True,
            timeout=120,
        )
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    os.environ.setdefault("OTEL_TRACES_EXPORTER", "none")
    logger = logging.getLogger("benchmark")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(_Nowhere())
    ways: dict[str, Callable[[], object]] = {
        "plain logging": plain,
        "otel-tf": ours,
        "OpenTelemetry": handler,
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(arguments.rounds):
        for name, way in ways.items():
            with way():  # type: ignore[attr-defined]
                per_line_us(200)
                found[name].append(per_line_us(arguments.lines))
    figures = {name: statistics.median(values) for name, values in found.items()}
    base = figures["plain logging"]
    for name, value in figures.items():
        print(
            f"{name:<16} {value:6.1f} µs a line on the logging thread, {value - base:+6.1f}", file=sys.stderr
        )
    direct, through = (
        statistics.median(stderr_us(arguments.lines, captured=captured) for _ in range(3))
        for captured in (False, True)
    )
    print(
        f"{'stderr':<16} {direct:6.1f} µs a line directly, {through:.1f} through the reader", file=sys.stderr
    )
    added = figures["otel-tf"] - base
    print(
        json.dumps(
            {
                "plain_us": round(base, 2),
                "otel_tf_added_us": round(added, 2),
                "opentelemetry_added_us": round(figures["OpenTelemetry"] - base, 2),
                "limit_us": LIMIT_US,
                "stderr_direct_us": round(direct, 2),
                "stderr_captured_us": round(through, 2),
            }
        )
    )
    sys.exit(added > LIMIT_US)


if __name__ == "__main__":
    main()
