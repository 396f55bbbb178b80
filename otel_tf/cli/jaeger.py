"""`otel-tf jaeger`: a Jaeger on this machine, with our configuration."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from typing import TYPE_CHECKING

from otel_tf.errors import UserError

if TYPE_CHECKING:
    from otel_tf.jaeger import Jaeger, Ports

_NOTHING_AT_HAND = """no Jaeger 2 binary and no running Docker engine here. Any one of these will do:
  - a release of Jaeger 2, unpacked: put `jaeger` on the PATH, or its path into OTEL_TF_JAEGER_BIN
  - Docker:  {docker}
  - Go 1.25 or newer, in a clone of otel-tf's repository:  make jaeger"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "jaeger",
        help="start a Jaeger on this machine",
        description="Start a Jaeger on 127.0.0.1 from a Jaeger 2 binary (OTEL_TF_JAEGER_BIN, `jaeger` on the "
        "PATH, one built by `make jaeger`) or else its Docker image, keeping traces in memory, until Ctrl-C.",
    )
    parser.add_argument("--detach", action="store_true", help="leave it running and return")
    parser.add_argument(
        "--docker", action="store_true", help="use the Docker image even if there is a binary"
    )
    parser.add_argument(
        "--free-ports", action="store_true", help="listen on free ports, not on Jaeger's usual"
    )
    parser.add_argument("--ui-port", type=int, metavar="N", help="default: 16686")
    parser.add_argument("--otlp-grpc-port", type=int, metavar="N", help="default: 4317")
    parser.add_argument("--otlp-http-port", type=int, metavar="N", help="default: 4318")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Starts it, prints where it is, and stays until Ctrl-C unless `--detach` is given.

    Raises:
        UserError: There is nothing here to run a Jaeger with.
        JaegerError: It did not start, or ended by itself.
    """
    # As Ctrl-C: what we started ends in order.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _start(args) as jaeger:
            _print(jaeger, args.format)
            if not args.detach:
                jaeger.wait()
    except KeyboardInterrupt:
        print("Jaeger is stopped; its traces were in memory and went with it.", file=sys.stderr)
    return 0


def _start(args: argparse.Namespace) -> Jaeger:
    from otel_tf.jaeger import DEFAULT_PORTS, find_binary, find_docker, start, start_in_docker
    from otel_tf.jaeger.docker import run_command

    ports = _ports(args)
    binary = None if args.docker else find_binary()
    if binary is not None:
        print(f"Starting {binary}", file=sys.stderr)
        return start(binary, ports=ports, detached=args.detach)
    docker = find_docker()
    if docker is not None:
        print("Starting Jaeger's Docker image; the first time it is downloaded.", file=sys.stderr)
        return start_in_docker(docker, ports=ports, detached=args.detach)
    by_hand = " ".join(run_command("docker", ports or DEFAULT_PORTS, "jaeger"))
    raise UserError(_NOTHING_AT_HAND.format(docker=by_hand))


def _ports(args: argparse.Namespace) -> Ports:
    import dataclasses

    from otel_tf.jaeger import DEFAULT_PORTS
    from otel_tf.jaeger.ports import free_ports

    wanted = {"ui": args.ui_port, "otlp_grpc": args.otlp_grpc_port, "otlp_http": args.otlp_http_port}
    for name, port in wanted.items():
        if port is not None and not 0 < port < 65536:
            raise UserError(f"--{name.replace('_', '-')}-port {port}: not a port (1 to 65535)")
    base = free_ports() if args.free_ports else DEFAULT_PORTS
    return dataclasses.replace(base, **{name: port for name, port in wanted.items() if port is not None})


def _print(jaeger: Jaeger, how: str) -> None:
    rows = {
        "ui": jaeger.ui,
        "otlp_grpc": jaeger.otlp_grpc,
        "otlp_http": jaeger.otlp_http,
        "query_grpc": jaeger.query_grpc,
        "pid": jaeger.pid,
        "log_file": str(jaeger.log_file),
    }
    if not jaeger.has_ui():
        print(
            "This build of Jaeger has no web interface (its API is complete); a release of Jaeger or its "
            "Docker image has: --docker, or OTEL_TF_JAEGER_BIN.",
            file=sys.stderr,
        )
    ends = f"`kill {jaeger.pid}` ends it" if jaeger.detached else "Ctrl-C ends it"
    print(f"Jaeger is up; {ends}.", file=sys.stderr)
    if how == "json":
        print(json.dumps(rows), flush=True)
    else:
        for name, value in rows.items():
            print(f"{name:<11} {value}", flush=True)
