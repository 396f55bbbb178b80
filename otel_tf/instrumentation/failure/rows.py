"""Summarising a tensor where it lives, by ops: only a few numbers travel."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from otel_tf.diagnostics.summary import BOUNDS

__all__ = ["row_of", "summarise", "takes"]


def takes(dtype: Any) -> bool:
    """Returns whether tensors of a type can be summarised."""
    return bool(dtype.is_floating or dtype.is_integer or dtype.is_bool) and not dtype.is_quantized


def row_of(tensor: tf.Tensor, time_s: tf.Tensor, *, histogram: bool, compiled: bool = False) -> tf.Tensor:
    """Returns a tensor's summary, float64 by `otel_tf.diagnostics.summary.ROW`.

    Args:
        tensor: Of a type that `takes` takes.
        time_s: When, float64 s.
        histogram: Whether the counts of a histogram follow.
        compiled: Whether XLA compiles it.
    """
    if not histogram and tensor.shape.rank == 0:
        return _row_of_scalar(tf.cast(tensor, tf.float64), time_s)
    values = tf.reshape(tf.cast(tensor, tf.float64), [-1])
    size = tf.cast(tf.size(values), tf.float64)
    zero = tf.zeros([], tf.float64)
    finite = tf.math.is_finite(values)
    nan = tf.reduce_sum(tf.cast(tf.math.is_nan(values), tf.float64))
    count = tf.reduce_sum(tf.cast(finite, tf.float64))
    kept = tf.where(finite, values, zero)
    some = count > 0
    row = [
        time_s,
        size,
        nan,
        size - nan - count,
        tf.where(some, tf.reduce_min(tf.where(finite, values, tf.float64.max)), zero),
        tf.where(some, tf.reduce_max(tf.where(finite, values, tf.float64.min)), zero),
        tf.math.divide_no_nan(tf.reduce_sum(kept), count),
        tf.sqrt(tf.reduce_sum(kept * kept)),
    ]
    stacked = tf.stack(row)
    if not histogram:
        return stacked
    if compiled:
        # No gather of counts that XLA would take; it fuses this.
        at_least = tf.cast(values[:, None] >= tf.constant(BOUNDS, tf.float64), tf.float64)
        above = tf.reduce_sum(tf.where(finite[:, None], at_least, zero), axis=0)
        counts = tf.concat([[count], above], 0) - tf.concat([above, [zero]], 0)
    else:
        buckets = tf.raw_ops.Bucketize(input=tf.boolean_mask(values, finite), boundaries=list(BOUNDS))
        counts = tf.cast(tf.math.bincount(buckets, minlength=len(BOUNDS) + 1), tf.float64)
    return tf.concat([stacked, counts], 0)


def _row_of_scalar(value: tf.Tensor, time_s: tf.Tensor) -> tf.Tensor:
    """Returns the row of a single number with as few ops as there can be: a loss is watched every step."""
    one = tf.ones([], tf.float64)
    nan = tf.cast(tf.math.is_nan(value), tf.float64)
    inf = tf.cast(tf.math.is_inf(value), tf.float64)
    return tf.stack([time_s, one, nan, inf, value, value, value, tf.abs(value)])


@functools.cache
def _summarising(dtype: Any) -> Any:
    @tf.function(autograph=False, input_signature=[tf.TensorSpec(None, dtype)])
    def otel_tf_summarise(tensor: tf.Tensor) -> tf.Tensor:
        return row_of(tf.reshape(tensor, [-1]), tf.zeros([], tf.float64), histogram=True)

    return otel_tf_summarise


def summarise(tensor: tf.Tensor) -> Any:
    """Returns the row of an eager tensor with its histogram, computed on the current device: float64 array.

    Raises:
        tf.errors.OpError: The device is gone, or out of memory.
    """
    return _summarising(tensor.dtype)(tensor).numpy()
