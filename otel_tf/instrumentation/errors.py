"""TensorFlow's exceptions as the error of a span."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import error_codes_pb2

from otel_tf import semconv
from otel_tf.diagnostics.attributes import of_enclosing, of_error, of_payloads, of_roots
from otel_tf.diagnostics.messages import parse
from otel_tf.instrumentation.failure.nodes import with_ops
from otel_tf.telemetry import SpanError, SpanEvent

__all__ = ["describe_error", "status_only"]

_MESSAGE_LIMIT = 16_384


def describe_error(error: BaseException, graph: Any = None) -> SpanError:
    """Returns what is to be said of an exception; ``error.type`` is its TensorFlow code, if any.

    Args:
        error: The exception.
        graph: The graph that ran, where the types of ops can be looked up.
    """
    attributes: dict[str, Any] = {}
    events: tuple[SpanEvent, ...] = ()
    if isinstance(error, tf.errors.OpError):
        kind = error_codes_pb2.Code.Name(error.error_code)
        message = error.message
        # Where TensorFlow itself raises from Python, something else may stand there.
        given = error.experimental_payloads
        payloads = (
            {_text(name): content for name, content in given.items()} if isinstance(given, Mapping) else {}
        )
        parsed = with_ops(parse(message, payloads), error, graph)
        attributes = {**of_error(parsed), **of_payloads(payloads)}
        events = tuple(SpanEvent(semconv.EVENT_ROOT_ERROR, 0, each) for each in of_roots(parsed))
    else:
        kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
        message = str(error)
    return SpanError(
        type=kind,
        message=message[:_MESSAGE_LIMIT],
        exception_type=f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins."),
        stacktrace="".join(traceback.format_exception(error))[:_MESSAGE_LIMIT],
        attributes=attributes,
        events=events,
    )


def _text(name: str | bytes) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else name


def status_only(error: SpanError) -> SpanError:
    """Returns the error for an enclosing span: what is known of a failure is on the span it happened in."""
    return dataclasses.replace(
        error, exception_type=None, stacktrace=None, attributes=of_enclosing(error.attributes), events=()
    )
