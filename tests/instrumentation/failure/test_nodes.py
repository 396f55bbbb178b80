"""Ops by the names that errors give their nodes."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from otel_tf.diagnostics.messages import parse
from otel_tf.instrumentation.failure.nodes import with_ops


@tf.function
def inner(x: Any) -> Any:
    with tf.name_scope("attention"):
        tf.debugging.assert_less(x, 1.0, message="too large")
    return x + tf.gather(x, 0)


@tf.function
def outer(x: Any) -> Any:
    for _ in tf.range(3):
        x = inner(x) + 1.0
    return x


@pytest.fixture(scope="module")
def graph() -> Any:
    return outer.get_concrete_function(tf.TensorSpec([2])).graph


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("while", "While"),
        ("attention/assert_less/Assert/AssertGuard/Assert", "Assert"),
        ("attention/assert_less/Assert/AssertGuard", "If"),
        ("GatherV2", "GatherV2"),
        ("not/there", None),
    ],
)
def test_type_of_node(graph: Any, name: str, kind: str | None) -> None:
    message = f"failed\n\t [[{{{{node {name}}}}}]]"
    root = with_ops(parse(message), tf.errors.InternalError(None, None, message), graph).first
    assert (root.node, root.op) == (name, kind)


def test_a_stack_that_the_message_lacks(graph: Any) -> None:
    message = (
        "Detected at node GatherV2 defined at:\n<stack traces unavailable>\nbad\n\t [[{{node GatherV2}}]]"
    )
    error = tf.errors.InvalidArgumentError(None, None, message)
    root = with_ops(parse(message), error, graph).first
    assert root.op == "GatherV2"
    assert str(root.stack[-1]).endswith("in inner")
    assert {frame.file for frame in root.stack} & {__file__}
    assert not any("/tensorflow/" in frame.file for frame in root.stack)
