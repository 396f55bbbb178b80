"""Starts Collectors that end with their test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.collector.support import Collector

StartCollector = Callable[..., Collector]


@pytest.fixture
def collector(collector_binary: Path, tmp_path: Path) -> Iterator[StartCollector]:
    """Makes a Collector at each call, and starts it unless told ``started=False``."""
    with contextlib.ExitStack() as running:
        count = 0

        def make(kind: str, *overlays: str, started: bool = True, **variables: Any) -> Collector:
            nonlocal count
            count += 1
            one = Collector(collector_binary, kind, tmp_path / f"{kind}-{count}", *overlays, **variables)
            running.callback(one.stop)
            return one.start() if started else one

        yield make
