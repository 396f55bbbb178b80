"""``jaeger=URL``: logical traces over OTLP/HTTP.

The official exporter makes the connection, so the standard variables for headers, certificates, timeout
and compression hold. Ids are made from the run and the step: writing again writes identical spans, which
Jaeger's memory storage shows once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from otel_tf.correlator.sinks.encode_proto import requests
from otel_tf.correlator.sinks.logical import logical
from otel_tf.errors import UserError

if TYPE_CHECKING:
    from otel_tf.correlator.result import Result
    from otel_tf.telemetry._otlp import Sender

__all__ = ["endpoint_of", "write"]

_TRACES_PATH = "/v1/traces"
_UI_PORT, _GRPC_PORT = 16686, 4317
_ATTEMPTS = 6
_FIRST_PAUSE_S = 0.5
_SAY_EVERY_S = 2.0


def endpoint_of(url: str) -> str:
    """Returns the full OTLP/HTTP address that ``url`` means.

    Raises:
        UserError: It is none: not http(s), without a host, or the port of Jaeger's UI or of gRPC.
    """
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        raise UserError(f"jaeger={url}: the port is not a number") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"jaeger={url}: wanted is http(s)://HOST:PORT of an OTLP/HTTP endpoint")
    if port in (_UI_PORT, _GRPC_PORT):
        what = "Jaeger's UI" if port == _UI_PORT else "OTLP over gRPC"
        raise UserError(
            f"jaeger={url}: port {port} is {what}; wanted is OTLP/HTTP, mostly http://{parts.hostname}:4318"
        )
    path = parts.path.rstrip("/")
    if not path.endswith(_TRACES_PATH):
        path += _TRACES_PATH
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def write(result: Result, target: str, say: Callable[[str], None]) -> None:
    """Sends the logical traces to ``target``.

    Raises:
        UserError: It is no OTLP/HTTP endpoint, cannot be reached, or refuses the spans.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    from otel_tf.telemetry._otlp import sender

    endpoint = endpoint_of(target)
    exporter: Any = OTLPSpanExporter(endpoint=endpoint)
    connection = sender(exporter)
    if connection is None:
        raise UserError("jaeger=: the installed opentelemetry-exporter-otlp-proto-http is not one we know")
    traces = logical(result)
    total, sent, rejected, reason = len(traces.span_id), 0, 0, ""
    said = time.monotonic()
    try:
        for request in requests(traces):
            outcome = _send(connection, request.payload, target, sent)
            sent += request.spans
            if outcome.rejected:
                rejected, reason = rejected + outcome.rejected, outcome.reason
            if time.monotonic() - said > _SAY_EVERY_S:
                said = time.monotonic()
                say(f"{sent:,} of {total:,} spans sent to {endpoint}")
    finally:
        exporter.shutdown()
    if rejected:
        raise UserError(f"jaeger={target}: {rejected:,} of {total:,} spans were rejected: {reason}")
    say(f"{sent:,} spans in {len(traces.traces):,} traces sent to {endpoint}")


def _send(connection: Sender, payload: bytes, target: str, sent: int) -> Any:
    """Sends one request, again while the endpoint says that it may be (429, 502-504, no connection)."""
    pause_s = _FIRST_PAUSE_S
    for attempt in range(1, _ATTEMPTS + 1):
        outcome = connection.send(payload, None)
        if outcome.accepted:
            return outcome
        if not outcome.retry or attempt == _ATTEMPTS or (sent == 0 and "refused" in outcome.reason):
            break
        time.sleep(outcome.retry_after_s if outcome.retry_after_s is not None else pause_s)
        pause_s *= 2
    raise UserError(f"jaeger={target}: {outcome.reason} ({sent:,} spans had been sent)")
