"""Which step a collective belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from otel_tf import config
from otel_tf.identity import identify
from otel_tf.instrumentation.multi_worker.collective_spans import CollectiveSpans, Fetched
from otel_tf.telemetry import Pipeline, Record, start
from otel_tf.telemetry._metrics import instruments

S = 1_000_000_000
MS = 1_000_000
#: The wall clock is ahead of the monotonic one by this much.
AHEAD = 1_700_000_000 * S


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipeline]:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    settings = config.resolve(run_id="test", run_dir=tmp_path)
    one = start(settings, identify(settings))
    yield one
    one.shutdown(1.0)


@pytest.fixture
def spans(pipeline: Pipeline) -> CollectiveSpans:
    return CollectiveSpans(pipeline, "worker:1")


def ended(spans: CollectiveSpans, number: int, begun_ms: int, end_ms: int) -> None:
    begun = (number, begun_ms * MS, AHEAD + begun_ms * MS)
    spans.step_ended(number, begun, end_ms * MS, 1000 + number, 2000 + number)


def fetched(at_ms: float, *entries: tuple[float, float, int, int]) -> Fetched:
    rows = [((AHEAD + a * MS) / 1e9, (AHEAD + b * MS) / 1e9, group, key) for a, b, group, key in entries]
    return Fetched(AHEAD + int(at_ms * MS), np.array(rows, dtype=np.float64).reshape(-1, 4))


def steps_of(records: list[Record]) -> list[tuple[int, int]]:
    """(step, instance key) of each record."""
    return [(int(record.values[1] or 0), int(record.values[3] or 0)) for record in records]


def test_each_goes_to_the_step_in_whose_time_it_lies(spans: CollectiveSpans) -> None:
    ended(spans, 1, 0, 10)
    ended(spans, 2, 11, 20)
    records = spans.make(fetched(30, (2, 4, 5, 100), (5, 9, 5, 101), (12, 19, 5, 102)))
    assert steps_of(records) == [(1, 100), (1, 101), (2, 102)]
    first = records[0]
    assert (first.trace_id, first.parent_id) == (1001, 2001)
    assert abs(first.start_ns - (AHEAD + 2 * MS)) < 500
    assert abs(first.end_ns - (AHEAD + 4 * MS)) < 500
    assert first.values == (first.start_ns - AHEAD, 1, 5, 100)
    assert len({record.span_id for record in records}) == 3


def test_a_step_waits_once(
    pipeline: Pipeline, spans: CollectiveSpans, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = InMemoryMetricReader()
    monkeypatch.setattr(
        pipeline,
        "metrics",
        instruments(pipeline, MeterProvider([reader], shutdown_on_exit=False).get_meter("x")),
    )
    ended(spans, 1, 0, 10)
    ended(spans, 2, 11, 20)
    spans.make(fetched(30, (2, 4, 5, 100), (5, 9, 5, 101), (12, 19, 5, 102)))
    (point,) = points(reader, "tensorflow.collective.wait")
    assert (point.count, round(point.sum, 4)) == (2, 0.013)
    assert (round(point.min, 4), round(point.max, 4)) == (0.006, 0.007)
    assert point.attributes == {"tensorflow.worker": "worker:1"}


def points(reader: InMemoryMetricReader, name: str) -> list[Any]:
    data = reader.get_metrics_data()
    assert data is not None
    (scope,) = data.resource_metrics[0].scope_metrics
    (metric,) = [metric for metric in scope.metrics if metric.name == name]
    return list(metric.data.data_points)


def test_those_of_a_running_step_wait_for_its_end(spans: CollectiveSpans) -> None:
    ended(spans, 1, 0, 10)
    assert steps_of(spans.make(fetched(15, (2, 4, 5, 100), (12, 13, 5, 101)))) == [(1, 100)]
    assert spans.make(fetched(16)) == []
    ended(spans, 2, 11, 20)
    assert steps_of(spans.make(fetched(21, (14, 15, 5, 102)))) == [(2, 101), (2, 102)]


def test_a_step_that_ends_during_a_fetch_is_remembered(spans: CollectiveSpans) -> None:
    # Its last entry was not there yet when the ring was emptied; its end was told before that was read.
    ended(spans, 1, 0, 10)
    assert steps_of(spans.make(fetched(9, (2, 4, 5, 100)))) == [(1, 100)]
    assert steps_of(spans.make(fetched(12, (5, 9.5, 5, 101)))) == [(1, 101)]


def test_what_lies_in_no_step_has_no_span(spans: CollectiveSpans) -> None:
    ended(spans, 1, 0, 10)
    ended(spans, 2, 20, 30)
    assert spans.make(fetched(40, (12, 18, 5, 100), (8, 12, 5, 101), (19, 25, 5, 102))) == []
    ended(spans, 3, 41, 50)
    assert spans.make(fetched(60)) == []


def test_rounding_does_not_put_one_outside_its_step(spans: CollectiveSpans) -> None:
    ended(spans, 1, 0, 10)
    (record,) = spans.make(fetched(20, (-0.0004, 10.0004, 5, 100)))
    assert (record.start_ns, record.end_ns) == (AHEAD, AHEAD + 10 * MS)


def test_order_of_arrival_does_not_matter(spans: CollectiveSpans) -> None:
    ended(spans, 2, 11, 20)  # another thread's
    ended(spans, 1, 0, 10)
    assert steps_of(spans.make(fetched(30, (12, 19, 5, 102), (2, 4, 5, 100)))) == [(2, 102), (1, 100)]
