"""Where a result goes: ``parquet=DIR``, ``jaeger=URL``, ``otlp=FILE``, ``perfetto=FILE``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from otel_tf.errors import UserError

if TYPE_CHECKING:
    from otel_tf.correlator.result import Result

__all__ = ["KINDS", "check", "write"]

#: Kind, and what it wants after the ``=``. Each is a module here with ``write(result, target, say)``.
KINDS = {"parquet": "DIR", "jaeger": "URL", "otlp": "FILE", "perfetto": "FILE"}


def check(spec: str, kinds: Mapping[str, str] = KINDS) -> None:
    """Says no to a sink that cannot be, before the work is done.

    Args:
        spec: ``kind=target``.
        kinds: Those there are, and what each wants.

    Raises:
        UserError: ``spec`` is no ``kind=target`` with one of ``kinds``, or no address of an endpoint.
    """
    kind, _, target = spec.partition("=")
    if kind not in kinds or not target:
        known = ", ".join(f"{name}={what}" for name, what in kinds.items())
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
