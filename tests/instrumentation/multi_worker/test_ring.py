"""The ring in one process: what a graph leaves there, and that it never waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from otel_tf.instrumentation.multi_worker import ring


@pytest.fixture(autouse=True)
def empty_ring() -> None:
    ring.fetch()


def stamped() -> Callable[..., Any]:
    @tf.function
    def run(x: Any, key: Any) -> Any:
        start = ring.stamp([x])
        with tf.control_dependencies([start]):
            y = x + 1.0
        ring.RingEnd().push(start, ring.stamp([y]), 3, key)
        return y

    return run


def test_entries_come_out_as_they_went_in() -> None:
    run = stamped()
    for key in range(5):
        before_s = time.time()
        run(tf.ones([]), tf.constant(2**31 - 1 - key))
        after_s = time.time()
    entries = ring.fetch()
    assert entries[:, 2].tolist() == [3.0] * 5
    assert entries[:, 3].tolist() == [2.0**31 - 1 - key for key in range(5)]
    start_s, end_s = entries[-1, :2]
    # float64 seconds: a step of 0.24 µs.
    assert before_s - 1e-6 <= start_s <= end_s <= after_s + 1e-6
    assert len(ring.fetch()) == 0


def test_a_full_ring_lets_the_step_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "MOST_ENTRIES", 4)
    run = stamped()
    for key in range(20):
        run(tf.ones([]), tf.constant(key))
    assert ring.fetch()[:, 3].tolist() == [0.0, 1.0, 2.0, 3.0]
    run(tf.ones([]), tf.constant(20))
    assert ring.fetch()[:, 3].tolist() == [20.0]


def test_what_a_failing_run_had_left_is_there() -> None:
    @tf.function
    def fail(x: Any) -> Any:
        start = ring.stamp([x])
        ring.RingEnd().push(start, ring.stamp([start]), 1, tf.constant(7))
        while tf.raw_ops.QueueSizeV2(handle=ring._ring()) == 0:
            pass
        tf.debugging.assert_less(x, 0.0)
        return x

    with pytest.raises(tf.errors.InvalidArgumentError):
        fail(tf.ones([]))
    assert ring.fetch()[:, 3].tolist() == [7.0]


def test_stamps_leave_the_order_of_stateful_ops_alone() -> None:
    """Where one device's waited for another's, two devices that meet in a collective would hang."""

    @tf.function
    def run(x: Any) -> None:
        end = ring.RingEnd()
        for key in range(2):
            tf.print("the user's own, in their order", output_stream="file:///dev/null")
            end.push(ring.stamp([x]), ring.stamp([x]), 1, tf.constant(key))

    operations = run.get_concrete_function(tf.ones([])).graph.get_operations()
    stateful = [op for op in operations if op.type in ("Timestamp", "PrintV2", "QueueEnqueueManyV2")]
    assert len(stateful) == 2 * (1 + 2 + 1)
    for op in stateful:
        before = {each.type for each in op.control_inputs} - {"Placeholder"}
        assert before <= {"PrintV2"} if op.type == "PrintV2" else before == set()


def test_a_graph_without_automatic_order_takes_no_stamps() -> None:
    with tf.Graph().as_default() as graph:
        assert not ring.can_take(graph)


def test_fetching_needs_no_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It happens beside the training, which must not wait for TensorFlow's tracing lock."""
    from tensorflow.python.eager.polymorphic_function import tracing_compilation

    def traced(*_: Any, **__: Any) -> None:
        raise AssertionError("traced")

    stamped()(tf.ones([]), tf.constant(1))
    monkeypatch.setattr(tracing_compilation, "_create_concrete_function", traced)
    assert np.array_equal(ring.fetch()[:, 2:], [[3.0, 1.0]])
