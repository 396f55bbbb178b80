"""`otel-tf replay`: send an endpoint the spans of a run that its copy lacks."""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from otel_tf.errors import UserError

__all__ = ["add_parser", "run"]

_HTTP, _GRPC = "http/protobuf", "grpc"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "replay",
        help="send spans that did not reach the endpoint while the job ran",
        description="Send the spans of a run's spool that its OTLP endpoint has not acknowledged. Beside "
        "each spool file stands what was; backends append, so nothing is sent twice. For a job that has "
        "ended: one that runs may be sending the same spans itself.",
        epilog="Headers, certificates, time limit and compression come from OTEL_EXPORTER_OTLP_*. "
        "Exit codes: 0 all there now, 1 some spans were not accepted, 2 bad usage or input.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run directory, or one *.traces.jsonl of it")
    parser.add_argument(
        "--endpoint",
        metavar="URL",
        help="OTLP endpoint; default: OTEL_EXPORTER_OTLP_ENDPOINT, else http://localhost:4318",
    )
    parser.add_argument(
        "--protocol",
        choices=(_HTTP, _GRPC),
        help="default: OTEL_EXPORTER_OTLP_PROTOCOL, else grpc for port 4317 and http/protobuf elsewhere",
    )
    parser.add_argument(
        "--query",
        metavar="URL",
        help="ask this Jaeger what it has, not the ledger: http://localhost:16686, with ?grpc=HOST:PORT "
        "after it where its gRPC port is not 16685",
    )
    parser.add_argument("--all", action="store_true", help="send everything, also what is known to be there")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Sends, and prints what became of the spans.

    Raises:
        UserError: There is no spool, or an address is none.
    """
    from otel_tf.telemetry._jaeger_has import JaegerHas
    from otel_tf.telemetry._replay import Replay, run_of, spool_files, wait_until_stored

    files = spool_files(args.run)
    endpoint, protocol = _destination(args, os.environ)
    if args.query:
        wait_until_stored(files, _say)
    replay = Replay(
        _sender(endpoint, protocol),
        known=JaegerHas(args.query, run_of(files), _say) if args.query else None,
        everything=args.all,
        say=_say,
    )
    count = replay.run(files)
    if count.handed_over:
        print(
            f"otel-tf: the program's own tracer provider took over {count.handed_over} of them; whether its "
            "exporter sent them is not known here (--query asks a Jaeger, --all sends them)",
            file=sys.stderr,
        )
    if count.already_there and not count.sent and not count.failed and not args.query:
        _say("all was acknowledged before; what a Jaeger has lost since, as after a restart: --query")
    if args.format == "json":
        found = {"sent": count.sent, "already_there": count.already_there, "failed": count.failed}
        print(json.dumps({**found, "unreadable_lines": count.unreadable, "endpoint": endpoint}))
    else:
        print(
            f"{endpoint}: {count.sent:,} spans sent, {count.already_there:,} already there, "
            f"{count.failed:,} failed"
        )
    return 1 if count.failed else 0


def _say(line: str) -> None:
    print(f"otel-tf: {line}", file=sys.stderr)


def _sender(endpoint: str, protocol: str) -> Any:
    from otel_tf.telemetry._otlp import OtlpSink
    from otel_tf.telemetry._sinks import exporter_class

    name, cls = exporter_class("otlp", {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol})
    return OtlpSink(name, functools.partial(cls, endpoint=endpoint)).send


def _destination(args: argparse.Namespace, environ: Mapping[str, str]) -> tuple[str, str]:
    """Returns the endpoint, as the exporter takes it, and the protocol.

    Raises:
        UserError: The endpoint is no http(s) address.
    """
    protocol = args.protocol or _first(
        environ, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"
    )
    whole = args.endpoint is None and _first(environ, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    given = args.endpoint or whole or _first(environ, "OTEL_EXPORTER_OTLP_ENDPOINT")
    text = given or ("http://localhost:4317" if protocol == _GRPC else "http://localhost:4318")
    url = urlsplit(text if "://" in text else f"http://{text}")
    try:
        port = url.port
    except ValueError:
        port = -1
    if url.scheme not in ("http", "https") or not url.hostname or port == -1:
        raise UserError(f"--endpoint {text}: no http or https address")
    if protocol not in (_HTTP, _GRPC):
        protocol = _GRPC if port == 4317 else _HTTP
    if protocol == _HTTP and not whole:
        # The base address, as in OTEL_EXPORTER_OTLP_ENDPOINT, or the whole one.
        path = url.path.rstrip("/")
        url = url._replace(path=path if path.endswith("/v1/traces") else f"{path}/v1/traces")
    return urlunsplit(url), protocol


def _first(environ: Mapping[str, str], *names: str) -> str:
    return next((environ[name].strip() for name in names if environ.get(name, "").strip()), "")
