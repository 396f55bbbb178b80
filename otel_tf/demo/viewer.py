"""The Jaeger that shows the demo's run: a given one, one started here, or none."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from otel_tf import semconv
from otel_tf.errors import OtelTfError

if TYPE_CHECKING:
    from otel_tf.correlator import Result

__all__ = ["Viewer"]


@dataclasses.dataclass(frozen=True)
class Viewer:
    """Where the spans are sent and seen.

    Attributes:
        note: A line on how it came to be there, or why there is none.
        otlp: OTLP/HTTP base URL; None: nothing is sent.
        ui: Base URL of the user interface and its API, where known.
        grpc: ``host:port`` of its query API over gRPC, where known and not the usual one beside ``ui``.
        has_pages: Whether there is a web interface at ``ui``, and not just the API.
    """

    note: str
    otlp: str | None = None
    ui: str | None = None
    grpc: str | None = None
    has_pages: bool = True

    @classmethod
    def find(cls, given: str | None) -> Viewer:
        """Returns the Jaeger at ``given`` (``none`` for no Jaeger), else starts one that stays.

        Raises:
            OtelTfError: A Jaeger is at hand but does not start.
        """
        if given == "none":
            return cls("Nothing was sent to a Jaeger (--jaeger none).")
        if given:
            return cls(f"Sent to {given}.", given.rstrip("/"))
        from otel_tf.jaeger import DEFAULT_PORTS, JaegerError, find_binary, start

        binary = find_binary()
        if binary is None:
            return cls(
                "No Jaeger binary is at hand (`make jaeger` builds one where Go is installed; "
                "`otel-tf jaeger` tells the other ways)."
            )
        jaeger = None
        if not DEFAULT_PORTS.taken():
            # Unless another takes one of them at this moment.
            with contextlib.suppress(JaegerError):
                jaeger = start(binary, ports=DEFAULT_PORTS, detached=True)
        usual = jaeger is not None
        jaeger = jaeger or start(binary, detached=True)
        return cls(
            f"A Jaeger was started for it and stays, with the traces in memory; to end it: kill {jaeger.pid}",
            jaeger.otlp_http,
            jaeger.ui,
            None if usual else jaeger.query_grpc,
            jaeger.has_ui(),
        )

    def source(self, run_id: str) -> str:
        """Returns the run in this Jaeger as a source of ``otel-tf correlate``."""
        return f"jaeger+{self.ui}?run={run_id}" + (f"&grpc={self.grpc}" if self.grpc else "")

    def search(self, service: str, step: int) -> str:
        """Returns the address that shows the trace of a step: a page, or the API's JSON where none is."""
        tags = f'{{"{semconv.GLOBAL_STEP}":"{step}"}}'
        query = {"service": service, "tags": tags}
        path = "search" if self.has_pages else "api/traces"
        return f"{self.ui}/{path}?{urlencode(query, quote_via=quote)}"

    def environment(self) -> dict[str, str]:
        """Returns the variables that make the cluster's processes send there, or nowhere."""
        if self.otlp is None:
            return {"OTEL_TRACES_EXPORTER": "none"}
        return {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": self.otlp}

    def write_back(self, result: Result, say: Callable[[str], None]) -> None:
        """Writes the run's logical traces there; what cannot be sent is said, the demo goes on."""
        if self.otlp is None:
            return
        from otel_tf.correlator import sinks

        try:
            sinks.write(result, f"jaeger={self.otlp}", say)
        except OtelTfError as error:
            say(f"The logical traces were not sent: {error}")
