"""Where a result goes: ``parquet=DIR``, ``jaeger=URL``, ``otlp=FILE``, ``perfetto=FILE``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from otel_tf.errors import UserError

if TYPE_CHECKING:
    from otel_tf.correlator.result import Result

__all__ = ["KINDS", "check", "write"]

#: Kind, and what it wants after the ``=``. Each is a module here with ``write(result, target, say)``.
KINDS = {"parquet": "DIR", "jaeger": "URL", "otlp": "FILE", "perfetto": "FILE"}


def check(spec: str) -> None:
    """Says no to a sink that cannot be, before the work is done.

    Raises:
        UserError: ``spec`` is no ``kind=target`` with a kind of `KINDS`, or no address of an endpoint.
    """
    kind, _, target = spec.partition("=")
    if kind not in KINDS or not target:
        known = ", ".join(f"{name}={what}" for name, what in KINDS.items())
        raise UserError(f"--to {spec}: not one of {known}")
    if kind == "jaeger":
        importlib.import_module("otel_tf.correlator.sinks.jaeger").endpoint_of(target)


def write(result: Result, spec: str, say: Callable[[str], None]) -> None:
    """Writes ``result`` to one sink.

    Args:
        result: What was correlated.
        spec: ``kind=target``.
        say: Told what was written, one line at a time.

    Raises:
        UserError: The sink is unknown, cannot be reached or written.
    """
    check(spec)
    kind, _, target = spec.partition("=")
    importlib.import_module(f"otel_tf.correlator.sinks.{kind}").write(result, target, say)
