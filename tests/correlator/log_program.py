"""One side of a conversation: it records spans and log lines, under whatever clock it runs.

Run with ``asks`` or ``answers``, the port, and how many rounds; speaks over TCP on 127.0.0.1.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time

from otel_tf import config, ids
from otel_tf.identity import identify
from otel_tf.logs.capture import LogCapture, StepNow
from otel_tf.telemetry import SpanKind, start


def main(side: str, port: int, rounds: int) -> None:
    settings = config.resolve(flush_interval_ms=50)
    pipeline = start(settings, identify(settings))
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    now: list[StepNow] = [StepNow(None)]
    LogCapture(pipeline.log, pipeline.now, pipeline.identity.task, lambda: now[0]).attach()
    kind = SpanKind.CLIENT if side == "asks" else SpanKind.SERVER
    layout = pipeline.layout(
        "train_step",
        kind=kind,
        fields=("tensorflow.seq", "tensorflow.monotonic_ns", "tensorflow.global_step"),
        remote_parent=True,
    )
    log = logging.getLogger("job")
    if side == "answers":
        with socket.create_server(("127.0.0.1", port)) as server:
            print("ready", flush=True)
            connection, _ = server.accept()
    else:
        connection = socket.create_connection(("127.0.0.1", port))
    with connection:
        for number in range(rounds):
            own = ids.span_id("r", side, number)
            parent = ids.span_id("r", "asks", number) if side == "answers" else 0
            if side == "answers":
                connection.recv(1)
            seq, mono, wall = pipeline.now()
            # Half of the lines are in a step that nobody tells them: the correlator finds it by time.
            now[0] = StepNow(number) if number % 2 else StepNow(None)
            if side == "asks":
                log.info("%d: asking", number)
                connection.send(b"x")
                connection.recv(1)
                log.info("%d: has the answer", number)
            else:
                log.info("%d: answering", number)
                time.sleep(0.002)
            end = time.monotonic_ns()
            now[0] = StepNow(None)
            pipeline.record(
                layout, ids.trace_id("r", number), own, parent, wall, wall + end - mono, (seq, mono, number)
            )
            if side == "answers":
                connection.send(b"y")
    pipeline.shutdown(5)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    os._exit(0)
