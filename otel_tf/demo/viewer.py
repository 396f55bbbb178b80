"""The Jaeger that shows the demo's run: a given one, one started here, or none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from otel_tf.errors import OtelTfError

if TYPE_CHECKING:
    from otel_tf.correlator import Result

__all__ = ["Viewer"]


@dataclasses.dataclass(frozen=True)
class Viewer:
    """Where the spans are sent and seen.

    Attributes:
        otlp: OTLP/HTTP base URL; None: nothing is sent.
        ui: Base URL of the user interface and its API, where known.
        note: A line on how it came to be there, or why there is none.
    """

    otlp: str | None
    ui: str | None
    note: str

    @classmethod
    def find(cls, given: str | None) -> Viewer:
        """Returns the Jaeger at ``given`` (``none`` for no Jaeger), else starts one that stays.

        Raises:
            OtelTfError: A Jaeger is at hand but does not start.
        """
        if given == "none":
            return cls(None, None, "Nothing was sent to a Jaeger (--jaeger none).")
        if given:
            return cls(given.rstrip("/"), None, f"Sent to {given}.")
        from otel_tf.jaeger import find_binary, start

        binary = find_binary()
        if binary is None:
            return cls(
                None,
                None,
                "No Jaeger binary is at hand (`make jaeger` builds one where Go is installed; "
                "`otel-tf jaeger` tells the other ways).",
            )
        jaeger = start(binary, detached=True)
        return cls(
            jaeger.otlp_http,
            jaeger.ui,
            f"Jaeger was started for this and stays; its traces are in memory. To end it: kill {jaeger.pid}",
        )

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
