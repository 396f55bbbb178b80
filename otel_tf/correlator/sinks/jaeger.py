"""``jaeger=URL``: logical traces over OTLP/HTTP.

The official exporter makes the connection, so the standard variables for headers, certificates, timeout
and compression hold. Ids are made from the run and the step: writing again writes identical spans, which
Jaeger's memory storage shows once.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from otel_tf import semconv
from otel_tf.correlator.sinks.encode_proto import Request, requests
from otel_tf.correlator.sinks.logical import Logical, logical
from otel_tf.errors import UserError

if TYPE_CHECKING:
    from otel_tf.correlator.result import Result
    from otel_tf.telemetry._otlp import Sender
    from otel_tf.telemetry._sinks import Outcome

__all__ = ["endpoint_of", "send_all", "write"]

_TRACES_PATH = "/v1/traces"
_UI_PORT, _GRPC_PORT = 16686, 4317
_ATTEMPTS = 6
_FIRST_PAUSE_S = 0.5
_SAY_EVERY_S = 2.0
_MOST_NAMED = 4


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
    traces = logical(result)
    endpoint = send_all(target, requests(traces), len(traces.span_id), say)
    say(f"{len(traces.span_id):,} spans in {len(traces.traces):,} traces sent to {endpoint}")
    say(_how_to_find(traces))


def send_all(target: str, payloads: Iterable[Request], total: int, say: Callable[[str], None]) -> str:
    """Sends requests, each again while the endpoint says that it may be; returns the endpoint.

    Args:
        target: Where to; see `endpoint_of`.
        payloads: The requests; the next is made while one is on its way.
        total: How many spans are in all of them, for saying how far it is.
        say: Told every few seconds.

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
    progress = _Progress(target, endpoint, total, say)
    # One request is on its way while the next is made.
    with ThreadPoolExecutor(1, "otel-tf-send") as pool:
        under_way: list[Future[None]] = []
        try:
            for request in payloads:
                if under_way:
                    under_way.pop().result()
                under_way.append(pool.submit(_send, connection, request, progress))
            for last in under_way:
                last.result()
        finally:
            exporter.shutdown()
    if progress.rejected:
        counts = f"{progress.rejected:,} of {progress.total:,}"
        raise UserError(f"jaeger={target}: {counts} spans were rejected: {progress.reason}")
    return endpoint


def _how_to_find(traces: Logical) -> str:
    """Returns what to type into Jaeger's search."""
    services = sorted({of[semconv.SERVICE_NAME] for of in traces.resources})
    more = f" and {len(services) - _MOST_NAMED} more" if len(services) > _MOST_NAMED else ""
    named = f"services {', '.join(services[:_MOST_NAMED])}{more}"
    steps = traces.spans["global_step"].drop_null()
    step = f"; one step by Tags, such as {semconv.GLOBAL_STEP}={steps[len(steps) // 2]}" if len(steps) else ""
    return f"in Jaeger's search: {named}{step}"


@dataclasses.dataclass
class _Progress:
    """How far the sending is. Only one request at a time is sent, so nothing here is locked."""

    target: str
    endpoint: str
    total: int
    say: Callable[[str], None]
    sent: int = 0
    rejected: int = 0
    reason: str = ""
    said: float = dataclasses.field(default_factory=time.monotonic)

    def count(self, spans: int, outcome: Outcome) -> None:
        self.sent += spans
        if outcome.rejected:
            self.rejected, self.reason = self.rejected + outcome.rejected, outcome.reason
        if time.monotonic() - self.said > _SAY_EVERY_S:
            self.said = time.monotonic()
            self.say(f"{self.sent:,} of {self.total:,} spans sent to {self.endpoint}")


def _send(connection: Sender, request: Request, progress: _Progress) -> None:
    """Sends one request, again while the endpoint says that it may be (429, 502-504, no connection)."""
    pause_s = _FIRST_PAUSE_S
    for attempt in range(1, _ATTEMPTS + 1):
        outcome = connection.send(request.payload, None)
        if outcome.accepted:
            progress.count(request.spans, outcome)
            return
        never_there = progress.sent == 0 and "refused" in outcome.reason
        if not outcome.retry or never_there or attempt == _ATTEMPTS:
            break
        time.sleep(outcome.retry_after_s if outcome.retry_after_s is not None else pause_s)
        pause_s *= 2
    raise UserError(f"jaeger={progress.target}: {outcome.reason} ({progress.sent:,} spans had been sent)")
