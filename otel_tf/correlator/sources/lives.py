"""Processes that were restarted under the same name: each of their lives is a timeline of its own.

A restarted task has the name of its predecessor, but another process: its sequence numbers begin again,
and between the two nothing is known of their order but what the clock says.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from otel_tf.correlator.sources.attributes import Texts
from otel_tf.correlator.sources.chunks import CREATED, PID, Chunk

__all__ = ["SECOND_LIFE", "apart"]

#: Between a process's name and the number of its life, from the second on.
SECOND_LIFE = "#"

Int = npt.NDArray[np.int64]


class _Who(NamedTuple):
    """What tells the lives of a process apart, as far as a resource says it."""

    run: str | None
    process: str
    created: str | None
    pid: str | None


def apart(chunk: Chunk) -> Chunk:
    """Returns the spans with the processes of a run named apart where one name had several lives.

    The first life keeps the name; the second becomes ``name#2``, and so on by the time of their first
    span. A clock domain that is nothing but the process's name follows it.
    """
    spans = chunk.spans.drop_columns([CREATED, PID])
    columns = [chunk.spans[name].combine_chunks() for name in ("run", "process", CREATED, PID)]
    if all(len(column.dictionary) == 0 for column in columns[2:]):
        return Chunk(spans, chunk.links)
    code, rows = _distinct(columns)
    whos = [_Who(*(column[row].as_py() for column in columns)) for row in rows.tolist()]
    names = _names(whos, code, chunk.spans["start_ns"])
    if all(name == who.process for name, who in zip(names, whos, strict=True)):
        return Chunk(spans, chunk.links)
    domain = spans["domain"].combine_chunks()
    texts = domain.dictionary.to_pylist()
    index = domain.indices.to_numpy(zero_copy_only=False)
    follows = np.array([[text == who.process for text in texts] for who in whos], np.bool_)
    for column, values in (
        ("process", Texts(code.astype(np.int32), names)),
        (
            "domain",
            Texts(np.where(follows[code, index], len(texts) + code, index).astype(np.int32), texts + names),
        ),
    ):
        at = spans.schema.get_field_index(column)
        spans = spans.set_column(at, spans.schema.field(at), values.array())
    return Chunk(spans, chunk.links)


def _distinct(columns: list[pa.DictionaryArray]) -> tuple[Int, Int]:
    """Returns rows' numbers such that rows with the same texts have the same, and a row of each number."""
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        index = column.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        code = code * (len(column.dictionary) + 1) + index + 1
    encoded = pa.array(code).dictionary_encode()
    numbers: Int = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    rows = np.empty(len(encoded.dictionary), np.int64)
    rows[numbers[::-1]] = np.arange(len(numbers))[::-1]
    return numbers, rows


def _names(whos: list[_Who], code: Int, start_ns: pa.ChunkedArray) -> list[str]:
    by_name: dict[tuple[str | None, str], list[int]] = defaultdict(list)
    for number, who in enumerate(whos):
        by_name[who.run, who.process].append(number)
    names = [who.process for who in whos]
    several = {name: lives for name, them in by_name.items() if len(lives := _lives(whos, them)) > 1}
    if not several:
        return names
    first = pa.table({"who": code, "start": start_ns}).group_by("who").aggregate([("start", "min")])
    begin = dict(zip(first["who"].to_pylist(), first["start_min"].to_pylist(), strict=True))
    for (_, process), lives in several.items():
        ordered = sorted(lives, key=lambda numbers: min(begin[number] for number in numbers))
        for life, numbers in enumerate(ordered[1:], 2):
            for number in numbers:
                names[number] = f"{process}{SECOND_LIFE}{life}"
    return names


def _lives(whos: list[_Who], numbers: list[int]) -> list[list[int]]:
    """Returns the members of ``numbers``, all of one name, by life.

    Spans that another process wrote on behalf of this one know its pid, but not when it began; some know
    neither, which is as good as the name where that had one life.
    """
    created_by_pid: dict[str | None, set[str]] = defaultdict(set)
    for number in numbers:
        if (created := whos[number].created) is not None:
            created_by_pid[whos[number].pid].add(created)
    lives: dict[tuple[str | None, str | None], list[int]] = defaultdict(list)
    for number in numbers:
        _, _, created, pid = whos[number]
        known = created_by_pid.get(pid, set())
        if created is None and len(known) == 1:
            created = next(iter(known))
        lives[(created, None) if created is not None else (None, pid)].append(number)
    unknown = lives.pop((None, None), [])
    found = list(lives.values())
    return [found[0] + unknown] if len(found) == 1 else [*found, unknown] if unknown else found
