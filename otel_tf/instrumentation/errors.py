"""TensorFlow's exceptions as the error of a span."""

from __future__ import annotations

import dataclasses
import re
import traceback

import tensorflow as tf
from tensorflow.core.protobuf import error_codes_pb2

from otel_tf import semconv
from otel_tf.telemetry import SpanError

__all__ = ["describe_error", "status_only"]

#: A failure inside a distributed function names each hop; the innermost one is where it began.
_REMOTE_TARGET = re.compile(r"remote target /job:(\w+)/replica:\d+/task:(\d+)")
#: The coordination service says which task failed, or fell silent, to all the others.
_REPORTED_FROM = re.compile(r"Error reported from /job:(\w+)(?:/replica:\d+)?/task:(\d+)")
_MESSAGE_LIMIT = 16_384


def describe_error(error: BaseException) -> SpanError:
    """Returns type, message and origin of an exception; ``error.type`` is its TensorFlow code, if any."""
    if isinstance(error, tf.errors.OpError):
        kind = error_codes_pb2.Code.Name(error.error_code)
        message = error.message
    else:
        kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
        message = str(error)
    attributes = {}
    if hops := _REMOTE_TARGET.findall(message) or _REPORTED_FROM.findall(message):
        attributes[semconv.ERROR_ORIGIN_WORKER] = ":".join(hops[-1])
    return SpanError(
        type=kind,
        message=message[:_MESSAGE_LIMIT],
        exception_type=f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins."),
        stacktrace="".join(traceback.format_exception(error))[:_MESSAGE_LIMIT],
        attributes=attributes,
    )


def status_only(error: SpanError) -> SpanError:
    """Returns the error for an enclosing span: an exception is one event, on the span it happened in."""
    return dataclasses.replace(error, exception_type=None, stacktrace=None)
