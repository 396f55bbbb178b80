"""The ops in one profile's events, as TensorFlow's executor leaves them.

An op that runs at once is an event ``node:Type`` inside an ``ExecutorState::Process`` that names the
executor's step. One that waits (a receive, a collective) is two events on two threads,
``ProcessAsync::Start`` and ``::Done``: it begins with the first and ends with the second. ``FunctionRun``,
in the thread that called, says which step ids are called from where. Ops of devices are kernels on the
streams of a device's plane; the correlation id leads to the host's event that launched each.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from otel_tf.profiler._keys import dense, match, occurrence
from otel_tf.profiler._metadata import Numbers
from otel_tf.profiler.nesting import Intervals, enclosing
from otel_tf.profiler.xspace import Space

__all__ = ["NONE", "HostEvents", "Narrow", "OpRows"]

Int = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
#: Integers that half the memory is enough for, where there are millions.
Narrow = npt.NDArray[np.signedinteger[Any]]

#: No such number.
NONE = np.iinfo(np.int64).min
_PROCESS = "ExecutorState::Process"
_START, _DONE = "ExecutorState::ProcessAsync::Start", "ExecutorState::ProcessAsync::Done"
_EAGER = "EagerExecute"
_WAITING = ("_Recv", "_HostRecv")
#: Names of calls of a function: its name follows.
_CALLS = ("EagerLocalExecute: ", "EagerLocalExecuteAsync: ")
_PARTITION = "_partitioned_"
_HOST = "/host:CPU"
#: Lines of a device's plane with what ran on it, the first that there are; others repeat them.
_DEVICE_LINES = ("Stream", "XLA Ops", "TensorFlow Ops")


@dataclasses.dataclass
class OpRows:
    """Ops under construction.

    ``row`` is the event that an op begins with, ``caller`` the one whose place tells what is around it.
    """

    row: Narrow
    start_ps: Int
    end_ps: Int
    name: Narrow
    type: Narrow
    device: Narrow
    step_id: Int
    marker: Narrow
    caller: Narrow
    ended: Mask

    @staticmethod
    def joined(parts: list[OpRows]) -> OpRows:
        """Returns several parts as one."""
        fields = [field.name for field in dataclasses.fields(OpRows)]
        return OpRows(*(np.concatenate([getattr(part, field) for part in parts]) for field in fields))

    def take(self, index: Int | Mask) -> OpRows:
        """Returns some of the ops."""
        return OpRows(*(getattr(self, field.name)[index] for field in dataclasses.fields(OpRows)))


class HostEvents:
    """The events of one profile, and the ops among them.

    Attributes:
        space: The events.
        end: When each ended, ps.
        events: The same, for `nesting.enclosing`.
        words: Texts.
        process: Events in which an executor ran ops.
        process_id, step_stat: The step id that an event has as ``id`` and as ``step_id``, `NONE` for none.
        called: The function that events of each name call, -1 for other names.
        marked: TraceMes with the id of a span.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.end = space.end_ps
        self.events = Intervals(space.line, space.start_ps, self.end)
        self.words = Numbers()
        self.text_words = np.array([self.words[text] for text in space.texts], np.int64)
        self.process = self.named(_PROCESS)
        self.process_id = self.dense_stat("id")
        self.step_stat = self.dense_stat("step_id")
        self.called = self._called()
        self.marked = np.zeros(len(space), np.bool_)
        self.marked[space.stat("otel_span").words()[0]] = True

    def named(self, name: str) -> Mask:
        """Returns which events have this name."""
        return self.space.named(lambda other: other == name)

    def _called(self) -> Int:
        """Returns the function that events of each name call, -1 for other names."""
        found = np.full(len(self.space.names), -1, np.int64)
        for number, name in enumerate(self.space.names):
            for prefix in _CALLS:
                if name.startswith(prefix):
                    found[number] = self.words[name.removeprefix(prefix).partition(_PARTITION)[0]]
        return found

    def dense_stat(self, name: str) -> Int:
        """Returns the integers of a stat for all events, `NONE` where there is none."""
        row, value = self.space.stat(name).numbers()
        column = np.full(len(self.space), NONE, np.int64)
        column[row] = value
        return column

    def _has(self, name: str) -> Mask:
        found = np.zeros(len(self.space), np.bool_)
        found[self.space.stat(name).row] = True
        return found

    def word_stat(self, name: str) -> Int:
        """Returns the texts of a stat for all events, -1 where there is none."""
        row, value = self.space.stat(name).words()
        column = np.full(len(self.space), -1, np.int64)
        column[row] = self.text_words[value]
        return column

    def _devices(self) -> Int:
        """Returns the device of each line."""
        names = [
            "/device:CPU:0" if line.plane == _HOST else line.plane.removeprefix("/host:")
            for line in self.space.lines
        ]
        return np.array([self.words[name] for name in names], np.int64)

    def _split_names(self) -> tuple[Int, Int, Mask]:
        """Returns node and type of each event name, and which names are ops'."""
        nodes, types, is_op = [], [], []
        for name, kind in zip(self.space.names, self.space.types, strict=True):
            op = bool(kind) and name.endswith(f":{kind}") and not name.startswith("EagerService:")
            nodes.append(self.words[name[: -len(kind) - 1]] if op else -1)
            types.append(self.words[kind] if op else -1)
            is_op.append(op)
        return np.array(nodes, np.int64), np.array(types, np.int64), np.array(is_op, np.bool_)

    def sync_ops(self) -> OpRows:
        """Returns ops that ran at once."""
        node, kind, is_op = self._split_names()
        on_host = np.array([not line.plane.startswith("/device:") for line in self.space.lines], np.bool_)
        rows = np.flatnonzero(is_op[self.space.name] & on_host[self.space.line])
        around = enclosing(self.events, self.process, rows)
        step = np.where(around >= 0, self.process_id[around], NONE)
        own = self.step_stat[rows]
        step = np.where(own != NONE, own, step)
        rows, step = rows[step != NONE], step[step != NONE]
        name = self.space.name[rows]
        found = self._ops(rows, self.end[rows], node[name], kind[name], step)
        # What waits had no events of its own in old versions: of a receive there is how long it took to ask.
        found.ended = ~np.isin(found.type, [self.words[name] for name in _WAITING])
        return found

    def async_ops(self) -> OpRows:
        """Returns ops that waited; where the profile has only one half, that half."""
        began, done = np.flatnonzero(self.named(_START)), np.flatnonzero(self.named(_DONE))
        produced, consumed = self.dense_stat("_p"), self.dense_stat("_c")
        step, name = self.step_stat, self.word_stat("name")
        partner = match((produced[began], step[began], name[began]), (consumed[done], step[done], name[done]))
        end = np.where(partner >= 0, self.end[done[partner]] if len(done) else 0, self.end[began])
        lost = np.ones(len(done), np.bool_)
        lost[partner[partner >= 0]] = False
        rows = np.concatenate([began, done[lost]])
        end = np.maximum(np.concatenate([end, self.end[done[lost]]]), self.space.start_ps[rows])
        found = self._ops(rows, end, name[rows], self.word_stat("kernel_type")[rows], step[rows])
        found.ended = np.concatenate([partner >= 0, np.ones(int(lost.sum()), np.bool_)])
        return found.take((found.step_id != NONE) & (found.name >= 0))

    def eager_ops(self) -> OpRows:
        """Returns ops that Python ran one by one inside a TraceMe of ours."""
        rows = np.flatnonzero(self.named(_EAGER) & (self.dense_stat("is_func") == 0))
        marker = enclosing(self.events, self.marked, rows)
        rows, marker = rows[marker >= 0], marker[marker >= 0]
        name = self.word_stat("eager_op")[rows]
        found = self._ops(rows, self.end[rows], name, name, np.full(len(rows), NONE, np.int64))
        found.marker = marker
        return found.take(name >= 0)

    def kernels(self) -> OpRows:
        """Returns what ran on devices."""
        lines = self.space.lines
        meant = np.zeros(len(lines), np.bool_)
        for plane in {line.plane for line in lines if line.plane.startswith("/device:")}:
            for start in _DEVICE_LINES:
                these = [
                    n for n, line in enumerate(lines) if line.plane == plane and line.name.startswith(start)
                ]
                if these:
                    meant[these] = True
                    break
        rows = np.flatnonzero(meant[self.space.line])
        node, kind = self._kernel_names(rows)
        step = np.full(len(rows), NONE, np.int64)
        launch = self._launched_by(rows)
        around = enclosing(self.events, self.process, launch)
        step = np.where((launch >= 0) & (around >= 0), self.process_id[around], step)
        found = self._ops(rows, self.end[rows], node, kind, step)
        found.caller = launch
        return found

    def _kernel_names(self, rows: Int) -> tuple[Int, Int]:
        """Returns op and type of kernels: by the annotation of the op, else of XLA's, else their own name."""
        space = self.space
        stats = {name: self.word_stat(name)[rows] for name in ("annotation", "tf_op", "name", "hlo_op")}
        key = dense(space.name[rows].astype(np.int64), *stats.values())
        some = np.zeros(int(key.max(initial=-1)) + 1, np.int64)
        some[key] = np.arange(len(rows))
        texts = list(self.words)
        nodes, types = [], []
        for row in some.tolist():
            about = {name: texts[column[row]] if column[row] >= 0 else "" for name, column in stats.items()}
            own = space.names[space.name[rows[row]]]
            op = about["annotation"].partition("#")[0] or about["tf_op"]
            node, _, op_type = op.rpartition(":")
            if not node or not op_type:
                shown = space.types[space.name[rows[row]]]
                node = about["name"] or about["hlo_op"] or own.removesuffix(f":{shown}")
                op_type = shown or about["hlo_op"].partition(".")[0] or re.split("[<(]", own, maxsplit=1)[0]
            nodes.append(self.words[node])
            types.append(self.words[op_type])
        return np.array(nodes, np.int64)[key], np.array(types, np.int64)[key]

    def _launched_by(self, rows: Int) -> Int:
        """Returns the host's event that launched each kernel, -1 where none is known."""
        correlation = self.dense_stat("correlation_id")
        on_host = np.array([line.plane == _HOST for line in self.space.lines], np.bool_)
        launches = np.flatnonzero((correlation != NONE) & on_host[self.space.line])
        found = match((correlation[rows],), (correlation[launches],))
        return np.where(found >= 0, launches[found] if len(launches) else -1, -1)

    def _ops(self, rows: Int, end: Int, name: Int, kind: Int, step_id: Int) -> OpRows:
        row = rows.astype(np.int32)
        device = self._devices()[self.space.line[rows]].astype(np.int32)
        none = np.full(len(rows), -1, np.int32)
        ended = np.ones(len(rows), np.bool_)
        start = self.space.start_ps[rows]
        texts = name.astype(np.int32), kind.astype(np.int32)
        return OpRows(row, start, end, *texts, device, step_id, none, row, ended)

    def without_halves(self, at_once: OpRows, waiting: OpRows) -> tuple[OpRows, Int]:
        """Returns ops that ran at once without those that are a part of one that waited.

        A collective's kernel runs on a thread of its own, between the two events of its op; only the kernel
        knows the keys. Also returns for each op that waited the event row of its kernel, -1 for none.
        """
        keyed = np.flatnonzero(self._has("instance_key")[at_once.row])
        sides = []
        for ops in (at_once.take(keyed), waiting):
            group = dense(ops.step_id, ops.name)
            sides.append((ops.step_id, ops.name, occurrence(group, ops.start_ps)))
        partner = np.full(len(at_once.row), -1, np.int64)
        partner[keyed] = match(sides[0], sides[1])
        kernel = np.full(len(waiting.row), -1, np.int64)
        kernel[partner[partner >= 0]] = at_once.row[partner >= 0]
        # Its name may be around its start as well, or within it: one op still.
        starts = self.named(_START)
        inside = enclosing(self.events, starts, at_once.row)
        again = (inside >= 0) & (self.word_stat("name")[inside] == at_once.name)
        place = np.full(len(self.space) + 1, -1, np.int64)
        place[at_once.row] = np.arange(len(at_once.row))
        around = place[enclosing(self.events, place[:-1] >= 0, waiting.row)]
        named = (around >= 0) & starts[waiting.row]
        named[named] = at_once.name[around[named]] == waiting.name[named]
        again[around[named]] = True
        return at_once.take((partner < 0) & ~again), kernel

    def ops(self) -> tuple[OpRows, Int, int]:
        """Returns all ops, the event row that has the stats of each, and how many of them ran at once."""
        waiting = self.async_ops()
        at_once, kernel = self.without_halves(self.sync_ops(), waiting)
        others = [self.eager_ops(), self.kernels()]
        found = OpRows.joined([at_once, waiting, *others])
        about = np.concatenate(
            [at_once.row, np.where(kernel >= 0, kernel, waiting.row), *(ops.row for ops in others)]
        )
        return found, about, len(at_once.row)
