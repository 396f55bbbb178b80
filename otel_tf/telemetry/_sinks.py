"""Where the network copy goes: OpenTelemetry's exporters, as the environment names them.

``OTEL_TRACES_EXPORTER`` unset means ``otlp`` here, over HTTP unless ``OTEL_EXPORTER_OTLP_PROTOCOL`` says
``grpc``; ``none`` turns the network off; ``console`` and every other name of the entry point group
``opentelemetry_traces_exporter`` work, also as a comma list; ``OTEL_LOGS_EXPORTER`` is
read likewise, but unset it means ``none``. Endpoint, headers, certificates, timeout and compression
(``OTEL_EXPORTER_OTLP_*``) are read by the exporters themselves.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from otel_tf.telemetry._signals import TRACES, Signal

if TYPE_CHECKING:
    from otel_tf.telemetry._batch import Batch

__all__ = ["ExporterSink", "Outcome", "Sink", "configured", "exporter_class", "quiet"]

_logger = logging.getLogger("otel_tf")

_PROTOCOLS = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


class Outcome(NamedTuple):
    """What became of one attempt.

    Attributes:
        accepted: Whether the endpoint took the batch.
        retry: Whether another attempt makes sense.
        retry_after_s: How long the endpoint asked us to wait, in s, if it did.
        rejected: Spans of an accepted batch that the endpoint refused for good.
        reason: What went wrong, for people.
    """

    accepted: bool
    retry: bool = False
    retry_after_s: float | None = None
    rejected: int = 0
    reason: str = ""


class Sink(Protocol):
    """One destination. Used by one thread only, but for `target`."""

    #: Whether an accepted batch may be entered in the ledger that `otel-tf replay` reads.
    acknowledges: bool

    @property
    def target(self) -> str:
        """The destination, for people."""

    def deliver(self, batch: Batch, timeout_s: float | None) -> Outcome:
        """Makes one attempt, within ``timeout_s`` where the exporter lets us choose; never raises."""

    def close(self) -> None:
        """Releases connections."""


class ExporterSink:
    """Any exporter, through its public ``export``."""

    acknowledges = False

    def __init__(self, name: str, make: Callable[[], Any], signal: Signal = TRACES) -> None:
        self._name = name
        self._make = make
        self._signal = signal
        self._exporter: Any = None

    @property
    def target(self) -> str:
        """The exporter's endpoint, or its name."""
        endpoint = getattr(self._exporter, "_endpoint", None)
        return endpoint if isinstance(endpoint, str) else f"the exporter {self._name!r}"

    def exporter(self) -> Any:
        """Returns the exporter, made in the thread that uses it: gRPC channels do not survive a fork."""
        if self._exporter is None:
            self._exporter = self._make()
        return self._exporter

    def deliver(self, batch: Batch, timeout_s: float | None) -> Outcome:
        """Exports the batch as SDK spans."""
        with quiet() as said:
            try:
                result = self.exporter().export(batch.spans())
            except Exception as error:
                return Outcome(accepted=False, reason=f"{type(error).__name__}: {error}")
        if result is self._signal.success():
            return Outcome(accepted=True)
        return Outcome(accepted=False, reason=said[-1] if said else "the exporter reports a failure")

    def close(self) -> None:
        """Shuts the exporter down."""
        exporter, self._exporter = self._exporter, None
        if exporter is not None:
            with quiet(), contextlib.suppress(Exception):
                exporter.shutdown()


class _Quiet(logging.Filter):
    """Keeps one thread's lines of a logger to itself; other users of the exporters keep theirs."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()
        self.said: list[str] = []

    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread != self._thread:
            return True
        self.said.append(record.getMessage())
        return False


@contextlib.contextmanager
def quiet() -> Iterator[list[str]]:
    """Silences the official exporters' loggers for this thread; yields what they would have said.

    They log a line for every batch that fails; we say it once, with what it means for the run.
    """
    said = _Quiet()
    # A filter on a parent logger does not see its children's records: each module's logger gets it.
    loggers = [
        logging.getLogger(name)
        for name in list(logging.Logger.manager.loggerDict)
        if name.startswith("opentelemetry.exporter")
    ]
    for logger in loggers:
        logger.addFilter(said)
    try:
        yield said.said
    finally:
        for logger in loggers:
            logger.removeFilter(said)


def configured(environ: Mapping[str, str] | None = None, signal: Signal = TRACES) -> list[Callable[[], Sink]]:
    """Returns a maker for each sink that the environment names for a signal.

    A name that cannot be used is said in the log and left out: it must not stop a training.
    """
    environ = os.environ if environ is None else environ
    variable = signal.exporter_variable
    names = environ.get(variable, "").strip() or signal.default
    makers: list[Callable[[], Sink]] = []
    for name in dict.fromkeys(part.strip() for part in names.split(",")):
        if name.lower() in ("none", ""):
            continue
        try:
            kind, cls = exporter_class(name, environ, signal)
        except LookupError as error:
            _logger.warning("%s=%s: %s; %s", variable, names, error.args[0], signal.verb)
            continue
        except Exception as error:
            _logger.warning("%s=%s cannot be loaded (%s); %s", variable, name, error, signal.verb)
            continue
        makers.append(_maker(kind, cls, signal))
    return makers


def _maker(kind: str, cls: Any, signal: Signal) -> Callable[[], Sink]:
    if kind in _PROTOCOLS.values():
        from otel_tf.telemetry._otlp import OtlpSink

        if kind == "otlp_proto_http":
            # The exporter imports it when it is made, which is on another thread.
            import requests  # noqa: F401

        return lambda: OtlpSink(kind, cls, signal)
    return lambda: ExporterSink(kind, cls, signal)


def exporter_class(name: str, environ: Mapping[str, str], signal: Signal = TRACES) -> tuple[str, Any]:
    """Returns an exporter's entry point name and class.

    Raises:
        LookupError: No exporter of that name is installed.
    """
    if name == "otlp":
        variable = next(
            (variable for variable in signal.protocol_variables if environ.get(variable, "").strip()), None
        )
        protocol = environ[variable].strip() if variable else "http/protobuf"
        if protocol not in _PROTOCOLS:
            _logger.warning("%s=%r is not known; using http/protobuf", variable, protocol)
            protocol = "http/protobuf"
        name = _PROTOCOLS[protocol]
    found = metadata.entry_points(group=signal.group, name=name)
    for entry in found:
        return name, entry.load()
    raise LookupError(f"no exporter {name!r} is installed (entry point group {signal.group})")
