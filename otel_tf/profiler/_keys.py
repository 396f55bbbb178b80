"""Joins of integer columns that numpy does not have."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["dense", "match", "occurrence", "used"]

Int = npt.NDArray[np.int64]


def dense(*keys: Int) -> Int:
    """Returns a number for each row such that rows with the same keys have the same; in the keys' order."""
    number, span = np.zeros(len(keys[0]), np.int64), 1
    if not len(number):
        return number
    for key in keys:
        least, largest = int(key.min()), int(key.max())
        if largest - least >= 1 << 31:
            key, least = _ranks(key, None), 0  # noqa: PLW2901
            largest = int(key.max())
        if span * (largest - least + 1) >= 1 << 62:
            number = _ranks(number, span)
            span = int(number.max()) + 1
        number = number * (largest - least + 1) + (key - least)
        span *= largest - least + 1
    return _ranks(number, span)


def _ranks(key: Int, span: int | None) -> Int:
    """Returns the rank of each value among the distinct ones; ``span`` if all are from 0 to below it."""
    if span is not None and span <= 8 * len(key) + 1024:
        present = np.zeros(span, np.bool_)
        present[key] = True
        found: Int = (np.cumsum(present) - 1)[key]
        return found
    return np.unique(key, return_inverse=True)[1].reshape(-1).astype(np.int64)


def used(codes: npt.NDArray[np.signedinteger[Any]]) -> list[int]:
    """Returns the distinct ones of small numbers, without those below 0."""
    found: list[int] = np.flatnonzero(np.bincount(codes + 1)[1:]).tolist()
    return found


def occurrence(group: Int, *order: Int) -> Int:
    """Returns how many rows of the same group come before each row, by ``order`` and then as they lie."""
    rows = np.lexsort((*reversed(order), group)) if order else np.argsort(group, kind="stable")
    ordered = group[rows]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(rows) else rows
    length = np.diff(np.append(first, len(rows)))
    number = np.empty(len(rows), np.int64)
    number[rows] = np.arange(len(rows)) - np.repeat(first, length)
    return number


def match(left: tuple[Int, ...], right: tuple[Int, ...]) -> Int:
    """Returns for each row of ``left`` a row of ``right`` with the same keys, the first; -1 for none."""
    count = len(left[0])
    if not count or not len(right[0]):
        return np.full(count, -1, np.int64)
    number = dense(*(np.concatenate(both) for both in zip(left, right, strict=True)))
    row = np.full(int(number.max()) + 1, -1, np.int64)
    row[number[count:][::-1]] = np.arange(len(right[0]))[::-1]
    found: Int = row[number[:count]]
    return found
