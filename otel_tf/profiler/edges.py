"""What had to happen before what, between machines and without their clocks.

A send and its receive have the same executor step and numbers next to each other: TensorFlow's partitioner
names the two ends of one edge ``<node>/_<n>`` and ``<node>/_<n+1>``. A collective is named by its group and
instance keys and how often the host has met them. Applies to a variable follow one another on its host.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from otel_tf.profiler._keys import dense, match, occurrence, used
from otel_tf.profiler.combine import Whole
from otel_tf.profiler.executor import NONE

__all__ = ["KINDS", "Edges", "edges_of", "is_apply", "is_read", "of_type", "types_that"]

Int = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

KINDS = ("send_recv", "collective", "apply")
_SEND_RECV, _COLLECTIVE, _APPLY = range(3)
_SENDS, _RECEIVES = ("_Send", "_HostSend"), ("_Recv", "_HostRecv")
_END = re.compile(r"(.*/_)(\d+)")
_APPLIES = re.compile(r"Assign(Add|Sub)?VariableOp|(Resource|_Fused)\w*(Apply|Scatter)\w*")
_READS = re.compile(r"_?ReadVariableOp|_ReadVariablesOp|ResourceGather(Nd)?")


@dataclasses.dataclass(frozen=True)
class Edges:
    """Edges between ops (E,): rows of `combine.Ops`.

    Attributes:
        kind: Index into `KINDS`. ``send_recv``: the send began before the receive ended. ``collective``: both
            were in one meeting, so each began before the other ended; the first host's member with each of
            the others. ``apply``: one apply to a variable, and the next on its host.
        src, dst: The ops.
        step_id: The executor's, `NONE` where the two have different ones.
        key: Rendezvous key of a send, number in `Whole.words`; else -1.
        group_key, instance_key, occurrence: Of a collective; else -1.
    """

    kind: Int
    src: Int
    dst: Int
    step_id: Int
    key: Int
    group_key: Int
    instance_key: Int
    occurrence: Int

    def __len__(self) -> int:
        return len(self.src)

    def of(self, kind: str) -> Mask:
        """Returns which are of a kind."""
        found: Mask = self.kind == KINDS.index(kind)
        return found


def is_apply(op_type: str) -> bool:
    """Returns whether ops of this type write a variable."""
    return bool(_APPLIES.fullmatch(op_type))


def is_read(op_type: str) -> bool:
    """Returns whether ops of this type read a variable."""
    return bool(_READS.fullmatch(op_type))


def of_type(whole: Whole, *types: str) -> Mask:
    """Returns which ops are of one of these types (N,)."""
    return types_that(whole, lambda name: name in types)


def types_that(whole: Whole, is_meant: Callable[[str], bool]) -> Mask:
    """Returns which ops are of a type that is meant (N,)."""
    types = used(whole.ops.type)
    table = np.zeros(len(whole.words) + 1, np.bool_)
    table[types] = [is_meant(whole.words[number]) for number in types]
    found: Mask = table[whole.ops.type]
    return found


def edges_of(whole: Whole, variable: Int) -> Edges:
    """Returns all edges, by kind.

    Args:
        whole: The profiles.
        variable: Number of the variable that each op applies to, -1 for none (N,); see `variables`.
    """
    parts = [_send_recv(whole), _collective(whole), _applies(whole, variable)]
    names = [field.name for field in dataclasses.fields(Edges)]
    return Edges(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def _edges(kind: int, src: Int, dst: Int, **more: Int) -> Edges:
    none = np.full(len(src), -1, np.int64)
    columns = {"key": none, "group_key": none, "instance_key": none, "occurrence": none, **more}
    step_id = columns.pop("step_id", np.full(len(src), NONE))
    return Edges(np.full(len(src), kind, np.int64), src, dst, step_id, **columns)


def _step_ids(whole: Whole, rows: Int) -> Int:
    return whole.steps.step_id[whole.ops.step[rows]]


def _send_recv(whole: Whole) -> Edges:
    ops = whole.ops
    inside = ops.step >= 0
    sends = np.flatnonzero(of_type(whole, *_SENDS) & inside)
    receives = np.flatnonzero(of_type(whole, *_RECEIVES) & inside & ops.ended)
    # The name that the other end of each send has, by number of the send's own.
    numbers = {whole.words[number]: number for number in used(ops.name[receives])}
    partner = np.full(len(whole.words), -1, np.int64)
    for number in used(ops.name[sends]):
        end = _END.fullmatch(whole.words[number])
        if end:
            partner[number] = numbers.get(f"{end[1]}{int(end[2]) + 1}", -1)
    wanted = partner[ops.name[sends]]
    sends, wanted = sends[wanted >= 0], wanted[wanted >= 0]
    sides = []
    for rows, name in ((sends, wanted), (receives, ops.name[receives])):
        step_id = _step_ids(whole, rows)
        # In a loop an edge is used again: the n-th send is the n-th receive's.
        sides.append((step_id, name, occurrence(dense(step_id, name), ops.start_ns[rows])))
    found = match(sides[0], sides[1])
    sends, found = sends[found >= 0], found[found >= 0]
    return _edges(
        _SEND_RECV, sends, receives[found], key=ops.send_key[sends], step_id=_step_ids(whole, sends)
    )


def _collective(whole: Whole) -> Edges:
    ops = whole.ops
    none = np.full(len(ops), NONE)
    group, instance = ops.stats.get("group_key", none), ops.stats.get("instance_key", none)
    rows = np.flatnonzero((group != NONE) & (instance != NONE))
    group, instance = group[rows], instance[rows]
    meeting = dense(group, instance)
    # Devices of one process meet too; they share its keys, so they come in the order of their names.
    seat = dense(ops.host[rows], ops.device[rows])
    times = occurrence(dense(meeting, seat), ops.start_ns[rows])
    barrier = dense(meeting, times)
    order = np.lexsort((seat, barrier))
    first = np.flatnonzero(np.append(True, np.diff(barrier[order]) != 0)) if len(rows) else order
    size = np.diff(np.append(first, len(order)))
    leader = np.repeat(order[first], size)
    other = order != leader
    src, dst = leader[other], order[other]
    return _edges(
        _COLLECTIVE,
        rows[src],
        rows[dst],
        group_key=group[src],
        instance_key=instance[src],
        occurrence=times[src],
    )


def _applies(whole: Whole, variable: Int) -> Edges:
    ops = whole.ops
    rows = np.flatnonzero((variable >= 0) & types_that(whole, is_apply))
    order = np.lexsort((ops.start_ns[rows], ops.end_ns[rows], variable[rows], ops.host[rows]))
    rows = rows[order]
    same = (np.diff(variable[rows]) == 0) & (np.diff(ops.host[rows]) == 0)
    return _edges(_APPLY, rows[:-1][same], rows[1:][same])
