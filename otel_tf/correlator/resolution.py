"""How finely each timeline's clock was written down."""

from __future__ import annotations

import numpy as np

from otel_tf.correlator.columns import Columns, Int

__all__ = ["resolutions"]

#: Spans looked at per timeline, about. A grid that so many stamps keep to by chance is none to speak of.
_SAMPLE, _FEWEST = 256, 8
#: float64 seconds since the epoch come in steps of 2^-22 s in this century.
_FLOAT_STEP = 1 << 22
_FLOAT_NS = 239
_SECOND = 1_000_000_000


def resolutions(columns: Columns) -> Int:
    """Returns, per timeline, by how much a stamp may be off for its format alone, ns (T,).

    Found in the differences of stamps: a common divisor (µs or ms clocks, or floats multiplied to ns), or
    multiples of 2^-22 s (seconds as float64, as TensorFlow's timestamp op gives them). 0 for plain ns.
    """
    count = len(columns.timeline_process)
    result = np.zeros(count, dtype=np.int64)
    sizes = np.bincount(columns.timeline, minlength=count)
    # Chosen by id, which no order of rows changes.
    every = np.maximum(sizes // _SAMPLE, 1)
    chosen = np.flatnonzero(columns.span_id % every[columns.timeline] == 0)
    lanes = columns.timeline[chosen]
    start, end = columns.start_ns, columns.end_ns
    for number in np.flatnonzero(sizes >= _FEWEST).tolist():
        rows = chosen[lanes == number]
        if len(rows) < _FEWEST:
            rows = np.flatnonzero(columns.timeline == number)
        stamps = np.concatenate([start[rows], end[rows]])
        result[number] = _resolution(stamps - stamps.min())
    return result


def _resolution(since: Int) -> int:
    divisor = int(np.gcd.reduce(since))
    if divisor > 1:
        # Floats multiplied to ns were rounded once more, to multiples of 2^7 or 2^8 ns.
        return divisor + (_FLOAT_NS if divisor & (divisor - 1) == 0 and divisor >= 128 else 0)
    part = (since % _SECOND) * _FLOAT_STEP % _SECOND
    off = np.minimum(part, _SECOND - part)
    return _FLOAT_NS if since.any() and (off <= 2 * _FLOAT_STEP).all() else 0
