"""What all seams and the ways in without seams share: one object while a process records."""

from __future__ import annotations

import dataclasses
from typing import Any

from otel_tf import config
from otel_tf.identity import Identity, identify
from otel_tf.instrumentation.cluster import cluster_of
from otel_tf.instrumentation.multi_worker.run_name import awaits_name
from otel_tf.instrumentation.run_spans import RunSpans
from otel_tf.instrumentation.steps import Steps
from otel_tf.telemetry import Pipeline, start

__all__ = ["Core"]


@dataclasses.dataclass(frozen=True)
class Core:
    """A running pipeline, and who counts steps and writes spans into it."""

    pipeline: Pipeline
    settings: config.Settings
    identity: Identity
    steps: Steps
    run_spans: RunSpans

    @classmethod
    def start(cls, strategy: Any, tracer_provider: Any, settings: dict[str, Any], *, agrees: bool) -> Core:
        """Starts recording.

        Args:
            strategy: The strategy that trains, or None.
            tracer_provider: An SDK tracer provider to use, or None.
            settings: Fields of `config.Settings` given in code.
            agrees: Whether there will be seams to agree with other workers on the run's name.

        Raises:
            UserError: A setting that does not exist, or a run id that cannot name a folder.
        """
        in_force = config.resolve(**settings)
        name = None if strategy is None else type(strategy).__name__
        identity = identify(in_force, strategy=name, cluster=cluster_of(strategy))
        provisional = agrees and awaits_name(identity)
        pipeline = start(in_force, identity, tracer_provider=tracer_provider, provisional=provisional)
        steps = Steps(pipeline, identity)
        return cls(pipeline, in_force, identity, steps, RunSpans(pipeline, identity, steps))
