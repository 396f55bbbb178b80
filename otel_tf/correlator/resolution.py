"""How finely each timeline's clock was written down."""

from __future__ import annotations

import itertools

import numpy as np

from otel_tf.correlator.columns import Columns, Int

__all__ = ["resolutions"]

#: Spans looked at per timeline. A grid that so many stamps keep to by chance is no grid to speak of.
_SAMPLE, _FEWEST = 64, 8
#: float64 seconds since the epoch come in steps of 2^-22 s in this century.
_FLOAT_STEP = 1 << 22
_FLOAT_NS = 239


def resolutions(columns: Columns) -> Int:
    """Returns, per timeline, by how much a stamp may be off for its format alone, ns (T,).

    Found in the stamps: a common divisor (µs or ms clocks, or floats multiplied to ns), or multiples of
    2^-22 s (seconds as float64, TensorFlow's timestamp op). 0 for plain ns.
    """
    result = np.zeros(len(columns.timeline_process), dtype=np.int64)
    order = np.argsort(columns.timeline, kind="stable")
    first = np.searchsorted(columns.timeline[order], np.arange(len(result) + 1))
    for number, (begin, end) in enumerate(itertools.pairwise(first)):
        if end - begin < _FEWEST:
            continue
        rows = order[begin : end : max(1, (end - begin) // _SAMPLE)]
        # The largest answer of a biased sample could differ with the rows' order; all starts would not.
        stamps = np.concatenate([columns.start_ns[rows], columns.end_ns[rows]])
        divisor = int(np.gcd.reduce(stamps - stamps[0])) if (stamps != stamps[0]).any() else 1
        divisor = int(np.gcd(divisor, int(stamps[0])))
        part = (stamps % 1_000_000_000) * _FLOAT_STEP % 1_000_000_000
        off = np.minimum(part, 1_000_000_000 - part)
        if divisor > 1:
            # Floats multiplied to ns: the product was rounded as well.
            result[number] = divisor + (_FLOAT_NS if divisor in (128, 256) else 0)
        elif (off <= _FLOAT_STEP).all():
            result[number] = _FLOAT_NS
    return result
