"""The rules of a pipeline without a provider of the program's: sampler and limits, from the environment."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING

from opentelemetry.context import Context
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_OFF,
    DEFAULT_ON,
    Decision,
    ParentBasedTraceIdRatio,
    Sampler,
    TraceIdRatioBased,
)

from otel_tf.telemetry._batch import ProviderShaper
from otel_tf.telemetry._fast import FastShaper

if TYPE_CHECKING:
    from otel_tf.telemetry._batch import Shaper

__all__ = ["private_provider", "shaper"]

_logger = logging.getLogger("otel_tf")

_OWN_SAMPLERS = (
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
)
#: A layout has a few dozen attributes at most; a limit from here up changes none of our spans.
_ENOUGH = 128


def _installed_sampler() -> Sampler | None:
    """Returns a sampler of another package, as ``OTEL_TRACES_SAMPLER`` names it by its entry point."""
    name = os.environ.get("OTEL_TRACES_SAMPLER", "").strip()
    if not name or name.lower() in _OWN_SAMPLERS:
        return None
    for entry in metadata.entry_points(group="opentelemetry_traces_sampler", name=name):
        try:
            made = entry.load()(os.environ.get("OTEL_TRACES_SAMPLER_ARG", ""))
        except Exception as error:
            _logger.warning("OTEL_TRACES_SAMPLER=%s cannot be made (%s)", name, error)
            return None
        return made if isinstance(made, Sampler) else None
    return None


def _limits() -> SpanLimits:
    try:
        return SpanLimits()
    except ValueError as error:
        _logger.warning("%s; spans are not limited", error)
        unset = SpanLimits.UNSET
        return SpanLimits(
            max_attributes=unset,
            max_events=unset,
            max_links=unset,
            max_span_attributes=unset,
            max_event_attributes=unset,
            max_link_attributes=unset,
            max_attribute_length=unset,
            max_span_attribute_length=unset,
        )


def private_provider() -> TracerProvider:
    """Returns a provider that nobody else sees, for the sampler and limits that the environment sets."""
    return TracerProvider(sampler=_installed_sampler(), span_limits=_limits(), shutdown_on_exit=False)


def shaper() -> Shaper:
    """Returns the fast shaper where the environment's rules allow it, else one by way of the SDK."""
    provider = private_provider()
    if not _roomy(_limits()):
        return ProviderShaper(provider)
    sampler = provider.sampler
    if sampler in (ALWAYS_ON, DEFAULT_ON):
        return FastShaper(None)
    if sampler in (ALWAYS_OFF, DEFAULT_OFF) or type(sampler) in (TraceIdRatioBased, ParentBasedTraceIdRatio):
        return FastShaper(_by_trace(sampler))
    return ProviderShaper(provider)


def _by_trace(sampler: Sampler) -> Callable[[int], bool]:
    """Returns the decision of a sampler that looks at nothing but the trace id.

    A parent-based one follows the root's decision, and the root got the same from the same id.
    """
    nowhere = Context()

    def sampled(trace_id: int) -> bool:
        return sampler.should_sample(nowhere, trace_id, "").decision is Decision.RECORD_AND_SAMPLE

    return sampled


def _roomy(limits: SpanLimits) -> bool:
    counts = (
        limits.max_span_attributes,
        limits.max_event_attributes,
        limits.max_link_attributes,
        limits.max_events,
        limits.max_links,
    )
    lengths = (limits.max_attribute_length, limits.max_span_attribute_length)
    return all(count is None or count >= _ENOUGH for count in counts) and all(
        each is None for each in lengths
    )
