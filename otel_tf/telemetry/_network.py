"""The second copy: through the program's own tracer provider where there is one, else our exporters."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from otel_tf.telemetry._environment import positive

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider as ApiTracerProvider

    from otel_tf.telemetry._batch import Batch, Shaper
    from otel_tf.telemetry._shipper import Shipper
    from otel_tf.telemetry._spool import Spool

__all__ = ["Limits", "Network"]

#: Spans that may wait for a slow endpoint, some 50 MB; the spool has them all.
_MAX_UNSENT = 100_000
#: How long spans gather before they are sent.
_SCHEDULE_DELAY_MS = 2_000


class Limits(NamedTuple):
    """How much waits and travels at once.

    Attributes:
        max_waiting: Spans that may wait for the endpoint.
        max_spans: Spans of one request.
        delay_s: How long spans gather before they are sent, in s.
    """

    max_waiting: int
    max_spans: int
    delay_s: float

    @classmethod
    def in_force(cls, max_spans: int) -> Limits:
        """Returns the limits that the environment sets, with ``max_spans`` in one request."""
        return cls(
            positive("OTEL_BSP_MAX_QUEUE_SIZE", _MAX_UNSENT),
            max_spans,
            positive("OTEL_BSP_SCHEDULE_DELAY", _SCHEDULE_DELAY_MS) / 1000,
        )


class Network:
    """Decides how records are shaped, and where batches go.

    Args:
        given: A tracer provider that the program handed over; it need not be the global one.
        spool: The spool, whose ledger notes what was accepted; None where spooling is off.
        limits: How much waits for each destination, and travels at once.
        adopt: Told of the resource of the program's provider, once one is found.
    """

    def __init__(
        self,
        given: ApiTracerProvider | None,
        *,
        spool: Spool | None,
        limits: Limits,
        adopt: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._given = given
        self._spool = spool
        self._limits = limits
        self._adopt = adopt
        self._provider: Any = None
        self._shaper: Shaper | None = None
        self._shippers: list[Shipper] | None = None

    def prepare(self) -> None:
        """Imports and sets up what the first spans need, on the caller's thread."""
        self.shaper()
        if self._provider is None:
            self._shippers = self._make_shippers()

    def start(self) -> None:
        """Starts the shippers' threads."""
        for shipper in self._shippers or ():
            shipper.start()

    @property
    def not_sent(self) -> int:
        """Spans that our exporters gave up; the spool may have them."""
        return sum(shipper.not_sent for shipper in self._shippers or ())

    def shaper(self) -> Shaper:
        """Returns the shaper in force; a provider that the program set meanwhile takes over."""
        provider = self._sdk_provider()
        if provider is not None and provider is not self._provider:
            from otel_tf.telemetry._batch import ProviderShaper

            self._provider = provider
            self._adopt(provider.resource.attributes)
            self._shaper = ProviderShaper(provider)
        if self._shaper is None:
            from otel_tf.telemetry._rules import shaper

            self._shaper = shaper()
        return self._shaper

    def _sdk_provider(self) -> Any:
        """Returns the program's provider where it is the SDK's.

        Another implementation of the API hides sampler, resource and ids: our spans go their own way.
        """
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider

        provider = self._given if self._given is not None else trace.get_tracer_provider()
        return provider if isinstance(provider, TracerProvider) else None

    def offer(self, batch: Batch) -> None:
        """Hands a batch on; the provider has had its spans already."""
        if self._provider is not None:
            if self._spool is not None and batch.place is not None:
                self._spool.acknowledge(batch.place, batch.count, via="provider")
            return
        if batch.sampled:
            if self._shippers is None:
                self._shippers = self._make_shippers()
            for shipper in self._shippers:
                shipper.offer(batch)

    def _make_shippers(self) -> list[Shipper]:
        from otel_tf.telemetry._shipper import Shipper
        from otel_tf.telemetry._sinks import configured

        return [
            Shipper(make, limits=self._limits, acknowledge=self._acknowledge, advice=self._advice)
            for make in configured(os.environ)
        ]

    def _acknowledge(self, batch: Batch, rejected: int) -> None:
        if self._spool is not None and batch.place is not None:
            self._spool.acknowledge(batch.place, batch.count, rejected)

    def _advice(self, endpoint: str) -> str:
        if self._spool is None or self._spool.failed:
            return f"training goes on, and up to {self._limits.max_waiting} spans are kept in memory"
        where = self._spool.directory
        return (
            f"training goes on, and all spans lie in {where}; send them later with: "
            f"otel-tf replay {where} --endpoint {_as_option(endpoint)}"
        )

    def flush(self, timeout_s: float, *, provider: bool = True) -> bool:
        """Waits until all that was offered was tried; returns whether all was accepted.

        Args:
            timeout_s: The longest wait, in s.
            provider: Whether to flush the program's provider, where there is one.
        """
        deadline = time.monotonic() + timeout_s
        if self._provider is not None:
            return self._flush_provider(timeout_s) if provider else True
        done = True
        for shipper in self._shippers or ():
            before = shipper.not_sent
            done = (
                shipper.flush(max(deadline - time.monotonic(), 0.0)) and shipper.not_sent == before and done
            )
        return done

    def _flush_provider(self, timeout_s: float) -> bool:
        """Flushes the program's provider on a thread: its processors do not keep to a time limit."""
        result: list[bool] = []

        def flush() -> None:
            result.append(self._provider.force_flush(int(timeout_s * 1000)))

        thread = threading.Thread(target=flush, name="otel-tf flush", daemon=True)
        thread.start()
        thread.join(timeout_s)
        return result == [True]

    def stop(self) -> None:
        """Ends the shippers' threads; what they still hold counts as not sent."""
        for shipper in self._shippers or ():
            shipper.stop()

    def abandon(self) -> None:
        """In a fork's child: threads and connections are the parent's."""
        self._shippers = None
        self._shaper = None
        self._provider = None


def _as_option(endpoint: str) -> str:
    if "://" in endpoint:
        return endpoint
    # The gRPC exporter's is a host and port; other exporters have none.
    return "URL" if not endpoint or " " in endpoint else f"{endpoint} --protocol grpc"
