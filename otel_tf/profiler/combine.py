"""The profiles of several hosts as one: one numbering of runs, ops and texts, times in wall-clock ns."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from otel_tf.profiler._keys import match
from otel_tf.profiler._metadata import Numbers
from otel_tf.profiler.executor import NONE, HostOps, read_ops
from otel_tf.profiler.markers import Markers, read_markers
from otel_tf.profiler.xspace import Space

__all__ = ["Host", "Ops", "Steps", "Whole", "combine", "session_of", "task_of"]

#: How a capture of our own names the file of a task.
_OWN_NAME = re.compile(r"(chief|master|worker|ps|evaluator)-(\d+)")

Int = npt.NDArray[np.int64]
#: Integers as narrow as they can be, where there are millions; or truth values.
Column = npt.NDArray[Any]


@dataclasses.dataclass
class Host:
    """One profile.

    Attributes:
        path: Its file.
        session: The name of its folder: what TensorBoard calls the run.
        task: Whose it is, ``worker:0``; "" where nothing says it.
        hostname, base_ns, absolute, lacking, dropped: Of `xspace.Space`.
        end_ns: When its last event ended.
        events: How many there are.
        markers: The program's own marks in it.
    """

    path: Path
    session: str
    task: str
    hostname: str
    base_ns: int
    end_ns: int
    absolute: bool
    events: int
    lacking: int
    dropped: int
    markers: Markers


@dataclasses.dataclass
class Steps:
    """Runs of functions, of all hosts (S,); see `executor.HostOps`. Times in ns."""

    host: Int
    step_id: Int
    function: Int
    start_ns: Int
    end_ns: Int
    root: Int
    marker: Int  # index into the host's markers, -1 for none

    def __len__(self) -> int:
        return len(self.host)


@dataclasses.dataclass
class Ops:
    """Ops, of all hosts (N,), by host, run and start; see `executor.HostOps`. Times in ns."""

    stats: dict[str, Int]
    host: Column
    step: Column
    name: Column
    type: Column
    device: Column
    start_ns: Int
    end_ns: Int
    parent: Column
    ended: Column
    send_key: Column

    def __len__(self) -> int:
        return len(self.host)


@dataclasses.dataclass
class Whole:
    """All profiles.

    Attributes:
        words: Texts that the numbers of ``steps`` and ``ops`` are of.
        hosts: In the order of their files.
        steps: Runs of functions.
        ops: Their ops.
    """

    words: tuple[str, ...]
    hosts: list[Host]
    steps: Steps
    ops: Ops


def session_of(path: Path) -> str:
    """Returns the name of the folder of a profile: ``…/plugins/profile/<session>/<host>.xplane.pb``."""
    return path.resolve().parent.name


def task_of(path: Path, cluster: Mapping[str, str]) -> str:
    """Returns the task whose address a file is named by, or that it is named by, "" if it is none's.

    Args:
        path: ``localhost_32101.xplane.pb``; ``worker-0.xplane.pb``, as captures of our own are called.
        cluster: Task by address: ``{"localhost:32101": "worker:0"}``.
    """
    stem = path.name.partition(".xplane")[0]
    for address, task in cluster.items():
        if address.removeprefix("grpc://").replace(":", "_") == stem:
            return task
    named = _OWN_NAME.fullmatch(stem)
    return f"{named[1]}:{named[2]}" if named else ""


def combine(spaces: Iterable[Space], cluster: Mapping[str, str]) -> Whole:
    """Returns all profiles as one. Each space is done with when the next is asked for.

    Args:
        spaces: The files.
        cluster: Task by address.
    """
    words = Numbers()
    hosts: list[Host] = []
    steps: list[list[Column]] = []
    ops: list[list[Column]] = []
    stats: list[dict[str, Int]] = []
    first_step = first_op = 0
    for number, space in enumerate(spaces):
        found, markers = read_ops(space), read_markers(space)
        hosts.append(_host(space, markers, cluster))
        code = np.array([words[word] for word in found.words] + [-1], np.int32)
        steps.append(_steps(found, space, markers, code, number, first_step))
        ops.append(_ops(found, space, code, number, first_step, first_op))
        stats.append({name: _renumbered(name, column, code) for name, column in found.stats.items()})
        first_step += len(found.step_id)
        first_op += len(found.step)
    columns = [np.concatenate(parts) for parts in zip(*ops, strict=True)]
    every = {
        name: np.concatenate(
            [one.get(name, np.full(len(part[0]), NONE)) for one, part in zip(stats, ops, strict=True)]
        )
        for name in sorted(set().union(*stats))
    }
    joined = Ops(every, *columns)
    runs = Steps(*map(np.concatenate, zip(*steps, strict=True)))
    # A part of a function, elsewhere, may not say what it is a part of; its step id does.
    named = np.flatnonzero((runs.function >= 0) & (runs.step_id != NONE))
    nameless = np.flatnonzero((runs.function < 0) & (runs.step_id != NONE))
    at = match((runs.step_id[nameless],), (runs.step_id[named],))
    runs.function[nameless[at >= 0]] = runs.function[named[at[at >= 0]]]
    return Whole(tuple(words), hosts, runs, joined)


def _host(space: Space, markers: Markers, cluster: Mapping[str, str]) -> Host:
    return Host(
        path=space.path,
        session=session_of(space.path),
        task=task_of(space.path, cluster),
        hostname=space.hostname,
        base_ns=space.base_ns,
        end_ns=space.base_ns + int(space.end_ps.max(initial=0)) // 1000,
        absolute=space.absolute,
        events=space.events,
        lacking=space.lacking,
        dropped=space.dropped,
        markers=markers,
    )


def _steps(
    found: HostOps, space: Space, markers: Markers, code: Column, number: int, first: int
) -> list[Column]:
    place = np.full(len(space) + 1, -1, np.int64)
    place[markers.row] = np.arange(len(markers.row))
    return [
        np.full(len(found.step_id), number, np.int64),
        found.step_id,
        code[found.function],
        space.base_ns + found.step_start_ps // 1000,
        space.base_ns + found.step_end_ps // 1000,
        found.root + first,
        place[found.marker],
    ]


def _ops(
    found: HostOps, space: Space, code: Column, number: int, first_step: int, first: int
) -> list[Column]:
    return [
        np.full(len(found.step), number, np.int16),
        np.where(found.step >= 0, found.step + first_step, -1).astype(np.int32),
        code[found.name],
        code[found.type],
        code[found.device],
        space.base_ns + found.start_ps // 1000,
        space.base_ns + found.end_ps // 1000,
        np.where(found.parent >= 0, found.parent + first, -1).astype(np.int32),
        found.ended,
        code[found.send_key],
    ]


def _renumbered(name: str, column: Int, code: Column) -> Int:
    """Returns a stat with its texts, if it may be one, by their new numbers."""
    if name != "context_id":
        return column
    text = (column <= -2) & (column >= -1 - len(code))
    return np.where(text, -2 - code[np.where(text, -2 - column, -1)], column)
