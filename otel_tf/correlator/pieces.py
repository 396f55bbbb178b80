"""Work on long arrays piece by piece, on all cores.

numpy lets go of Python's lock while it computes, and pieces that stay in the processor's cache cost less than
whole columns that have to be fetched, and first given out by the kernel, for every intermediate result.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from otel_tf.correlator.columns import Int

__all__ = ["cores", "each", "flatnonzero", "mapped", "widened"]

S = TypeVar("S")
T = TypeVar("T")

#: Numbers at a time.
_PIECE = 1 << 17


def cores() -> int:
    """Returns how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def each(count: int, work: Callable[[slice], T]) -> list[T]:
    """Returns what ``work`` makes of each piece of ``count`` rows, in their order.

    Pieces are worked on at the same time: what they write to must not overlap. An even number of rows is
    in every piece but the last.
    """
    return mapped(work, [slice(begin, min(begin + _PIECE, count)) for begin in range(0, count, _PIECE)])


def mapped(work: Callable[[S], T], items: Sequence[S]) -> list[T]:
    """Returns what ``work`` makes of each item, in their order; several are worked on at the same time."""
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(cores(), "otel-tf-correlate") as pool:
        return list(pool.map(work, items))


def widened(values: npt.NDArray[np.signedinteger[Any]]) -> Int:
    """Returns integers as int64."""
    wide = np.empty(len(values), dtype=np.int64)

    def fill(piece: slice) -> None:
        wide[piece] = values[piece]

    each(len(wide), fill)
    return wide


def flatnonzero(count: int, marked: Callable[[slice], npt.NDArray[np.bool_]]) -> Int:
    """Returns the rows that ``marked`` marks, ascending."""
    found = each(count, lambda piece: np.flatnonzero(marked(piece)) + piece.start)
    return np.concatenate(found) if found else np.zeros(0, np.int64)
