"""Bytes that are already encoded, over the official OTLP exporters' own connections.

The exporters take SDK spans only, and building and encoding those costs more than the step they tell
of. So the official exporter is made as ever, with everything it reads from the environment, and our
bytes go through its connection: one attempt at a time, since when to try again is the shipper's to say
(and the exporters' own back-off draws from the program's global random stream). Where an exporter's
inside is not as known here, its public ``export`` is used, with SDK spans.
"""

from __future__ import annotations

import contextlib
import datetime
import email.utils
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from otel_tf.telemetry._signals import TRACES, Signal
from otel_tf.telemetry._sinks import ExporterSink, Outcome, quiet

if TYPE_CHECKING:
    from otel_tf.telemetry._batch import Batch

__all__ = ["OtlpSink", "Sender", "sender", "why"]

#: https://opentelemetry.io/docs/specs/otlp/#retryable-response-codes
_RETRY_HTTP = frozenset({429, 502, 503, 504})
#: https://opentelemetry.io/docs/specs/otlp/#failures; RESOURCE_EXHAUSTED only with a delay given.
_RETRY_GRPC = frozenset(
    {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
)


class Sender(Protocol):
    """Sends encoded requests over one exporter's connection."""

    endpoint: str

    def send(self, payload: bytes, timeout_s: float | None) -> Outcome:
        """Makes one attempt; ``timeout_s`` only ever shortens the exporter's own time limit."""


class OtlpSink:
    """An OTLP exporter, fed with bytes where its inside allows, with SDK spans elsewhere.

    Args:
        name: The exporter's name, for people.
        make: Makes the exporter.
        signal: What it exports.
    """

    acknowledges = True

    def __init__(self, name: str, make: Callable[[], Any], signal: Signal = TRACES) -> None:
        self._public = ExporterSink(name, make, signal)
        self._signal = signal
        self._sender: Sender | None = None
        self._known = False
        self._target = ""

    @property
    def target(self) -> str:
        """The endpoint."""
        if self._sender is not None:
            self._target = self._sender.endpoint
        return self._target or self._public.target

    def deliver(self, batch: Batch, timeout_s: float | None) -> Outcome:
        """Sends the batch."""
        outcome = self._attempt(batch.payload, timeout_s)
        return self._public.deliver(batch, timeout_s) if outcome is None else outcome

    def send(self, payload: bytes) -> Outcome:
        """Sends a request that exists only as bytes."""
        outcome = self._attempt(lambda: payload, None)
        if outcome is None:
            return Outcome(
                accepted=False, reason=f"{self.target} is of an unknown version and takes no bytes"
            )
        return outcome

    def close(self) -> None:
        """Closes the connection; the next batch makes a new one."""
        self._target = self.target
        self._sender, self._known = None, False
        self._public.close()

    def _attempt(self, payload: Callable[[], bytes], timeout_s: float | None) -> Outcome | None:
        """Makes one attempt with bytes; None where the exporter cannot be made to take them."""
        try:
            if not self._known:
                self._sender = sender(self._public.exporter(), self._signal)
                self._known = True
            if self._sender is None:
                return None
            with quiet():
                outcome = self._sender.send(payload(), timeout_s)
        except Exception as error:
            return Outcome(accepted=False, reason=f"{type(error).__name__}: {error}")
        if outcome.retry and isinstance(self._sender, GrpcSender):
            # A channel that failed waits up to two minutes before it connects again; a new one does not.
            self.close()
        return outcome


def sender(exporter: Any, signal: Signal = TRACES) -> Sender | None:
    """Returns a way to send bytes over an official exporter's connection; None where none is known."""
    for cls in _SENDERS:
        with contextlib.suppress(AttributeError):
            return cls(exporter, signal)
    return None


class HttpClientSender:
    """The HTTP exporter as it is since 1.4x: a client object over a transport.

    Raises:
        AttributeError: This exporter is built otherwise.
    """

    def __init__(self, exporter: Any, signal: Signal) -> None:
        self._signal = signal
        client = exporter._client
        self._submit, self._compress = client._submit, client._compress
        self._connection_error = client._transport.is_connection_error
        self._timeout_s = float(client._timeout)
        self.endpoint = str(exporter._endpoint)

    def send(self, payload: bytes, timeout_s: float | None) -> Outcome:
        """Posts one request."""
        result = self._submit(self._compress(payload), _shorter(self._timeout_s, timeout_s))
        if result.status_code is not None:
            return _http_outcome(
                self._signal, result.status_code, result.reason, result.headers(), result.content()
            )
        return Outcome(
            accepted=False, retry=bool(self._connection_error(result.error)), reason=why(result.error)
        )


class HttpSessionSender:
    """The HTTP exporter as it was before: one method that posts bytes over a ``requests`` session.

    Raises:
        AttributeError: This exporter is built otherwise.
    """

    def __init__(self, exporter: Any, signal: Signal) -> None:
        self._signal = signal
        exporter._session.post  # noqa: B018 - only to see that it is there
        self._export = exporter._export
        self._exporter = exporter
        self._timeout_s = float(exporter._timeout)
        self.endpoint = str(exporter._endpoint)

    def send(self, payload: bytes, timeout_s: float | None) -> Outcome:
        """Posts one request."""
        import requests

        self._exporter._timeout = _shorter(self._timeout_s, timeout_s)
        try:
            response = self._export(payload)
        except requests.exceptions.RequestException as error:
            connection = isinstance(error, (requests.exceptions.ConnectionError, requests.exceptions.Timeout))
            return Outcome(accepted=False, retry=connection, reason=why(error))
        return _http_outcome(
            self._signal, response.status_code, response.reason, response.headers, response.content
        )


class GrpcSender:
    """The gRPC exporter: its stub, which takes the official message.

    Raises:
        AttributeError: This exporter is built otherwise.
    """

    def __init__(self, exporter: Any, signal: Signal) -> None:
        self._signal = signal
        self._call = exporter._client.Export
        self.endpoint = str(exporter._endpoint)
        self._headers = exporter._headers
        self._timeout_s = float(exporter._timeout)

    def send(self, payload: bytes, timeout_s: float | None) -> Outcome:
        """Makes one call."""
        import grpc

        try:
            answer = self._call(
                request=self._signal.request().FromString(payload),
                metadata=self._headers,
                timeout=_shorter(self._timeout_s, timeout_s),
            )
        except grpc.RpcError as error:
            return _grpc_outcome(error)
        return _partial(self._signal, answer.partial_success)


_SENDERS: tuple[type[HttpClientSender | HttpSessionSender | GrpcSender], ...] = (
    HttpClientSender,
    HttpSessionSender,
    GrpcSender,
)


def _shorter(own_s: float, timeout_s: float | None) -> float:
    return own_s if timeout_s is None else max(min(own_s, timeout_s), 0.01)


def why(error: BaseException | None) -> str:
    """Returns the innermost cause: 'Connection refused' says more than the layers around it."""
    seen = error
    while seen is not None:
        inner = getattr(seen, "reason", None) or seen.__cause__ or seen.__context__
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        if not isinstance(inner, BaseException):
            nested = next((arg for arg in seen.args if isinstance(arg, BaseException)), None)
            if nested is None:
                return f"{type(seen).__name__}: {seen}" if str(seen) else type(seen).__name__
            inner = nested
        seen = inner
    return "no answer"


def _http_outcome(
    signal: Signal, status: int, reason: str | None, headers: Mapping[str, str], body: bytes
) -> Outcome:
    if 200 <= status < 300:
        return _http_accepted(signal, body)
    said = f"HTTP {status} {reason or ''}".strip()
    if status in _RETRY_HTTP:
        return Outcome(
            accepted=False, retry=True, retry_after_s=_retry_after(headers.get("retry-after")), reason=said
        )
    return Outcome(accepted=False, reason=said)


def _retry_after(value: str | None) -> float | None:
    """Reads ``Retry-After``: seconds, or an HTTP date (RFC 9110, 10.2.3)."""
    if not value:
        return None
    with contextlib.suppress(ValueError):
        seconds = float(value)
        return max(seconds, 0.0) if math.isfinite(seconds) else None
    with contextlib.suppress(ValueError, TypeError):
        moment = email.utils.parsedate_to_datetime(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.timezone.utc)
        return max((moment - datetime.datetime.now(datetime.timezone.utc)).total_seconds(), 0.0)
    return None


def _http_accepted(signal: Signal, body: bytes) -> Outcome:
    from google.protobuf.message import DecodeError

    if not body:
        return Outcome(accepted=True)
    try:
        return _partial(signal, signal.response().FromString(body).partial_success)
    except DecodeError:
        # Some endpoints answer 200 with a text of their own.
        return Outcome(accepted=True)


def _partial(signal: Signal, partial: Any) -> Outcome:
    """Reads a ``partial_success``: what was rejected must not be sent again."""
    return Outcome(accepted=True, rejected=signal.rejected(partial), reason=partial.error_message)


def _grpc_outcome(error: Any) -> Outcome:
    code = error.code()
    delay = _grpc_delay(error)
    retry = code.name in _RETRY_GRPC or (code.name == "RESOURCE_EXHAUSTED" and delay is not None)
    details = (error.details() or "").partition("\n")[0][:200]
    return Outcome(
        accepted=False,
        retry=retry,
        retry_after_s=delay,
        reason=f"{code.name}: {details}" if details else code.name,
    )


def _grpc_delay(error: Any) -> float | None:
    from google.protobuf.message import DecodeError
    from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]

    with contextlib.suppress(DecodeError, TypeError):
        info = dict(error.trailing_metadata() or ()).get("google.rpc.retryinfo-bin")
        if info is not None:
            delay = RetryInfo.FromString(info).retry_delay
            return float(delay.seconds + delay.nanos / 1e9)
    return None
