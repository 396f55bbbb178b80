"""The runs of functions in one profile, and their ops.

``FunctionRun``, in the thread that called, says which step ids are called from where; the ops are found in
`host_ops`.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from otel_tf.profiler.host_ops import NONE, HostEvents, Narrow, OpRows
from otel_tf.profiler.nesting import enclosing, roots
from otel_tf.profiler.xspace import Space

__all__ = ["EXECUTOR_STATS", "NONE", "HostOps", "read_ops"]

Int = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_RUN, _CALLBACK = "FunctionRun", "ExecutorDoneCallback"
#: The stats that runs and ops, and the program's marks, are read from.
EXECUTOR_STATS = (
    *("step_num", "otel_trace", "otel_span", "otel_dispatch", "otel_worker", "id", "step_id", "_p", "_c"),
    *("group_id", "correlation_id", "run_id", "context_id", "instance_key", "group_key", "from", "to", "key"),
    *("kernel_type", "name", "eager_op", "is_func", "annotation", "tf_op", "hlo_op"),
)
_OP_STATS = ("group_id", "correlation_id", "run_id", "context_id", "group_key", "instance_key")


@dataclasses.dataclass(frozen=True)
class HostOps:
    """What ran in one profile. Texts are numbers in ``words``; times count as the space's do.

    Attributes:
        words: Texts.
        step_id: The executor's number of each run of a function (S,), `NONE` for eager ops around no
            function.
        function: Its name (S,), -1 where nothing says it.
        step_start_ps, step_end_ps: From its call, or its first event, to its last (S,).
        marker: Event row of the TraceMe with ``otel_span`` around its call (S,), -1 for none.
        root: The run whose op called it (S,), itself for one that no op called.
        step: Run of each op (N,), -1 for none. Ops are ordered by run and start.
        name, type, device: Of each op (N,).
        start_ps, end_ps: Of each op (N,).
        parent: The op around it (N,), -1 for none.
        ended: Whether ``end_ps`` is when it ended, not only when the part of it ended that is there (N,).
        stats: Of each op, `NONE` where it has none (N,), if any has one; ``context_id`` may be a text, then
            it is -2 less the text's number.
        send_key: Rendezvous key of a send (N,), -1.
    """

    words: tuple[str, ...]
    step_id: Int
    function: Int
    step_start_ps: Int
    step_end_ps: Int
    marker: Int
    root: Int
    step: Int
    name: Narrow
    type: Narrow
    device: Narrow
    start_ps: Int
    end_ps: Int
    parent: Int
    ended: Mask
    stats: dict[str, Int]
    send_key: Int


@dataclasses.dataclass
class _Steps:
    """Runs of functions: `HostOps` has them."""

    step_id: Int
    function: Int
    start_ps: Int
    end_ps: Int
    marker: Int
    root: Int


def _steps(host: HostEvents, ops: OpRows, at_once: int) -> _Steps:
    """Returns the runs of functions; the first ``at_once`` ops lie within events that tell of theirs."""
    space = host.space
    runs = np.flatnonzero(host.named(_RUN) & (host.process_id != NONE))
    spans = host.process | host.named(_CALLBACK) | host.named(_RUN)
    rows = np.flatnonzero(spans & (host.process_id != NONE))
    named = ops.step_id != NONE
    named[:at_once] &= host.step_stat[ops.row[:at_once]] != NONE
    ids = np.concatenate([host.process_id[rows], ops.step_id[named]])
    step_id, number = np.unique(ids, return_inverse=True)
    number = number.reshape(-1)
    called = _calls(host, runs)
    start = np.full(len(step_id), np.iinfo(np.int64).max)
    end = np.zeros(len(step_id), np.int64)
    np.minimum.at(start, number, np.concatenate([space.start_ps[rows], ops.start_ps[named]]))
    np.maximum.at(end, number, np.concatenate([host.end[rows], ops.end_ps[named]]))
    marker, function, caller = (np.full(len(step_id), -1, np.int64) for _ in range(3))
    at = np.searchsorted(step_id, host.process_id[runs])[::-1]  # the first run of each counts
    marker[at] = enclosing(host.events, host.marked, runs)[::-1]
    function[at] = np.where(called >= 0, host.called[space.name[called]], -1)[::-1]
    # Parts of it on other hosts may begin before the function does here, but not before it was called.
    np.minimum.at(start, at[::-1][called >= 0], space.start_ps[called[called >= 0]])
    np.maximum.at(end, at[::-1][called >= 0], host.end[called[called >= 0]])
    around = enclosing(host.events, host.process, runs)
    within = np.where(around >= 0, host.process_id[around], NONE)
    calls = np.minimum(np.searchsorted(step_id, within), max(len(step_id) - 1, 0))
    caller[at] = np.where(within != NONE, calls, -1)[::-1]
    root = roots(np.where(caller == np.arange(len(caller)), -1, caller))
    eager = np.unique(ops.marker[ops.marker >= 0])
    more = np.arange(len(step_id), len(step_id) + len(eager))
    none = np.full(len(eager), -1, np.int64)
    return _Steps(
        np.concatenate([step_id, np.full(len(eager), NONE, np.int64)]),
        np.concatenate([function, none]),
        np.concatenate([start, space.start_ps[eager]]),
        np.concatenate([end, host.end[eager]]),
        np.concatenate([marker, eager]),
        np.concatenate([root, more]),
    )


def _calls(host: HostEvents, runs: Int) -> Int:
    """Returns the event that each run of a function was called in, -1 where there is none."""
    return enclosing(host.events, host.called[host.space.name] >= 0, runs)


def read_ops(space: Space) -> HostOps:
    """Returns the runs of functions and the ops of one profile."""
    host = HostEvents(space)
    ops, about, at_once = host.ops()
    steps = _steps(host, ops, at_once)
    known = len(steps.step_id) - len(np.unique(ops.marker[ops.marker >= 0]))
    step = np.full(len(ops.row), -1, np.int64)
    named = ops.step_id != NONE
    step[named] = np.searchsorted(steps.step_id[:known], ops.step_id[named])
    eager = ops.marker >= 0
    step[eager] = known + np.searchsorted(steps.marker[known:], ops.marker[eager])
    order = _order(step, ops.start_ps)
    ops, about, step = ops.take(order), about[order], step[order]
    stats = {name: host.dense_stat(name)[about] for name in _OP_STATS if len(space.stat(name).row)}
    if "context_id" in stats:
        # CUPTI's contexts are texts such as $$5.
        context = host.word_stat("context_id")[about]
        stats["context_id"] = np.where(context >= 0, -2 - context, stats["context_id"])
    return HostOps(
        words=tuple(host.words),
        step_id=steps.step_id,
        function=steps.function,
        step_start_ps=steps.start_ps,
        step_end_ps=steps.end_ps,
        marker=steps.marker,
        root=steps.root,
        step=step,
        name=ops.name,
        type=ops.type,
        device=ops.device,
        start_ps=ops.start_ps,
        end_ps=ops.end_ps,
        parent=_parents(host, ops),
        ended=ops.ended,
        stats=stats,
        send_key=host.word_stat("key")[ops.row],
    )


def _order(step: Int, start: Int) -> Int:
    """Returns the order by run and start; of the same start as they lie, which is the longest first."""
    span = int(start.max(initial=0)) + 1
    if (int(step.max(initial=0)) + 2) * span < 1 << 62:
        return np.argsort((step + 1) * span + start, kind="stable")
    return np.lexsort((start, step))


def _parents(host: HostEvents, ops: OpRows) -> Int:
    """Returns the op around each, -1 for none."""
    number = np.full(len(host.space), -1, np.int64)
    number[ops.row] = np.arange(len(ops.row))
    placed = np.flatnonzero(ops.caller >= 0)
    around = enclosing(host.events, number >= 0, ops.caller[placed])
    parent = np.full(len(ops.row), -1, np.int64)
    parent[placed] = np.where(around >= 0, number[around], -1)
    return parent
