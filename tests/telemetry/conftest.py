"""Pipelines that cannot reach anything by accident, and collectors for those that are to."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace

from otel_tf import _guard, config
from otel_tf.identity import identify
from otel_tf.telemetry import Pipeline, start
from tests.telemetry import support


@pytest.fixture(autouse=True)
def strict_guards() -> Iterator[None]:
    before = _guard.strict(True)
    yield
    _guard.strict(before)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the machine's reaches a test, and no test reaches the machine's collector."""
    for name in list(os.environ):
        if name.startswith(("OTEL_", "TF_CONFIG", "SLURM_", "RAY_", "KUBERNETES_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")


@pytest.fixture
def own_global_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a test set the global tracer provider, which OpenTelemetry allows once in a process."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", type(trace._TRACER_PROVIDER_SET_ONCE)())


StartPipeline = Callable[..., Pipeline]


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[StartPipeline]:
    """Starts a pipeline at each call; takes settings and ``tracer_provider``."""
    with contextlib.ExitStack() as running:

        def start_one(tracer_provider: Any = None, **settings: Any) -> Pipeline:
            settings.setdefault("run_dir", tmp_path / "run")
            settings.setdefault("run_id", "r1")
            settings.setdefault("flush_interval_ms", 20)
            resolved = config.resolve(**settings)
            one = start(resolved, identify(resolved), tracer_provider=tracer_provider)
            running.callback(one.shutdown, 1.0)
            return one

        yield start_one


@pytest.fixture
def collector() -> Iterator[support.Collector]:
    with support.http_collector() as running:
        yield running


@pytest.fixture
def grpc_collector() -> Iterator[support.Collector]:
    with support.grpc_collector() as running:
        yield running


@pytest.fixture
def send_to(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Points the pipelines of a test at an endpoint."""

    def set_endpoint(endpoint: str, protocol: str = "http/protobuf") -> None:
        monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)

    return set_endpoint
