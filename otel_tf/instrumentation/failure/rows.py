"""Summarising a tensor where it lives, by ops: only a few numbers travel."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from otel_tf.diagnostics.summary import BOUNDS

__all__ = ["row_of", "summarise", "takes"]

#: Types that are summed as they are; others are converted first.
_WIDE = (tf.float32, tf.float64)


def takes(dtype: Any) -> bool:
    """Returns whether tensors of a type can be summarised."""
    return bool(dtype.is_floating or dtype.is_integer or dtype.is_bool) and not dtype.is_quantized


def row_of(tensor: tf.Tensor, *, histogram: bool, compiled: bool = False) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a tensor's summary, and whether all is finite.

    The summary is float64 by `otel_tf.diagnostics.summary.ROW`, without the time. As long as all elements are
    finite, which the sum of their squares tells, it takes four sums of the tensor as it is. Where they are
    not, or their squares are too large, it looks closer.

    Args:
        tensor: Of a type that `takes` takes.
        histogram: Whether the counts of a histogram follow.
        compiled: Whether XLA compiles it.
    """
    dtype = tensor.dtype
    if dtype not in _WIDE:
        tensor = tf.cast(tensor, tf.float32 if dtype.is_floating and dtype.size < 4 else tf.float64)
    values = tensor if tensor.shape.rank == 1 else tf.reshape(tensor, [-1])
    squares = 2.0 * tf.nn.l2_loss(values)

    def plainly() -> tuple[tf.Tensor, tf.Tensor]:
        sums = [tf.reduce_min(values), tf.reduce_max(values), tf.reduce_sum(values), squares]
        parts = [_counted(values), tf.cast(tf.stack(sums), tf.float64)]
        return tf.concat([*parts, _counts(values, compiled)] if histogram else parts, 0), tf.constant(True)

    def closely() -> tuple[tf.Tensor, tf.Tensor]:
        wide = tf.cast(values, tf.float64)
        finite = tf.math.is_finite(wide)
        size = tf.cast(tf.size(values), tf.float64)
        nan = tf.reduce_sum(tf.cast(tf.math.is_nan(wide), tf.float64))
        count = tf.reduce_sum(tf.cast(finite, tf.float64))
        kept = tf.where(finite, wide, tf.zeros([], tf.float64))
        row = tf.stack(
            [
                size,
                nan,
                size - nan - count,
                tf.reduce_min(tf.where(finite, wide, tf.float64.max)),
                tf.reduce_max(tf.where(finite, wide, tf.float64.min)),
                tf.reduce_sum(kept),
                tf.reduce_sum(kept * kept),
            ]
        )
        if not histogram:
            return row, count >= size
        counts = _counts(kept, compiled)
        # What is not finite was counted as zero.
        among_zeros = tf.one_hot(len(BOUNDS) // 2, len(BOUNDS) + 1, dtype=tf.float64)
        return tf.concat([row, counts - (size - count) * among_zeros], 0), count >= size

    row, finite = tf.cond(tf.math.is_finite(squares), plainly, closely)
    return row, finite


def _counted(values: tf.Tensor) -> tf.Tensor:
    """Returns how many elements there are, and that none of them is NaN or infinite: float64[3]."""
    (size,) = values.shape
    if size is not None:
        return tf.constant([size, 0, 0], tf.float64)
    return tf.stack([tf.cast(tf.size(values), tf.float64), *[tf.zeros([], tf.float64)] * 2])


def _counts(values: tf.Tensor, compiled: bool) -> tf.Tensor:
    """Returns how many elements lie in each bucket: float64."""
    if compiled:
        # XLA has no Bucketize; it makes one loop of this.
        at_least = tf.cast(values[:, None] >= tf.constant(BOUNDS, values.dtype), tf.float64)
        above = tf.reduce_sum(at_least, axis=0)
        size = tf.cast(tf.size(values), tf.float64)
        return tf.concat([size[None], above], 0) - tf.concat([above, tf.zeros([1], tf.float64)], 0)
    buckets = tf.raw_ops.Bucketize(input=values, boundaries=list(BOUNDS))
    counts = tf.raw_ops.DenseBincount(
        input=buckets, size=len(BOUNDS) + 1, weights=tf.constant([], tf.float32), binary_output=False
    )
    return tf.cast(counts, tf.float64)


@functools.cache
def _summarising(dtype: Any) -> Any:
    @tf.function(autograph=False, input_signature=[tf.TensorSpec(None, dtype)])
    def otel_tf_summarise(tensor: tf.Tensor) -> tf.Tensor:
        row, _ = row_of(tf.reshape(tensor, [-1]), histogram=True)
        return tf.concat([tf.zeros([1], tf.float64), row], 0)

    return otel_tf_summarise


def summarise(tensor: tf.Tensor) -> Any:
    """Returns the row of an eager tensor with its histogram, computed on the current device: float64 array.

    Raises:
        tf.errors.OpError: The device is gone, or out of memory.
    """
    return _summarising(tensor.dtype)(tensor).numpy()
