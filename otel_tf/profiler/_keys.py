"""Joins of integer columns that numpy does not have."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["dense", "match", "occurrence"]

Int = npt.NDArray[np.int64]


def dense(*keys: Int) -> Int:
    """Returns a number for each row such that rows with the same keys have the same."""
    if not len(keys[0]):
        return np.zeros(0, np.int64)
    number = np.unique(keys[0], return_inverse=True)[1].reshape(-1).astype(np.int64)
    for key in keys[1:]:
        other = np.unique(key, return_inverse=True)[1].reshape(-1)
        number = np.unique(number * (int(other.max()) + 1) + other, return_inverse=True)[1].reshape(-1)
    return number


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
