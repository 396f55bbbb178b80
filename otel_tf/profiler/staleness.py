"""Exact staleness: how many others applied to a variable between a step's read of it and its own apply.

All of it happens on the variable's host, in whose profile reads and applies lie on one clock: no estimate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from otel_tf.profiler._keys import dense
from otel_tf.profiler.combine import Whole
from otel_tf.profiler.edges import is_apply, is_read, types_that

__all__ = ["Staleness", "staleness_of", "variables"]

Int = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_UNKNOWN = -1


@dataclasses.dataclass(frozen=True)
class Staleness:
    """Applies of gradients to variables of another host (A,).

    Attributes:
        op: The apply, a row of `combine.Ops`.
        read_version: Applies to the variable before the step read it, since the profile began; -1 if
            not exact.
        applied_version: Applies to it before the step's own; -1 if not exact.
        staleness: Their difference; -1 if one of them is not exact.
    """

    op: Int
    read_version: Int
    applied_version: Int
    staleness: Int


def variables(whole: Whole, known: Mapping[str, Mapping[str, str]]) -> tuple[Int, tuple[str, ...]]:
    """Returns the variable that each op reads or writes (N,), -1 for none, and the variables' names.

    Args:
        whole: The profiles.
        known: Of a traced function, the variable of each op; a function that is not there has a variable for
            each op that writes one, named after the op, and none for ops that read one.
    """
    ops, words = whole.ops, whole.words
    names: dict[str, int] = {}
    variable = np.full(len(ops), -1, np.int64)
    meant = types_that(whole, is_apply) | types_that(whole, is_read)
    rows = np.flatnonzero(meant & (ops.step >= 0))
    function = whole.steps.function[ops.step[rows]]
    applies = types_that(whole, is_apply)[rows]
    key = dense(function, ops.name[rows], applies.astype(np.int64))
    some = np.zeros(int(key.max(initial=-1)) + 1, np.int64)
    some[key] = np.arange(len(rows))
    table = np.full(len(some), -1, np.int64)
    for number, row in enumerate(some.tolist()):
        called = words[function[row]] if function[row] >= 0 else ""
        told, node = known.get(called), words[ops.name[rows[row]]]
        name = told.get(node) if told is not None else f"{called}/{node}" if applies[row] else None
        if name is not None:
            table[number] = names.setdefault(name, len(names))
    if len(rows):
        variable[rows] = table[key]
    return variable, tuple(names)


def staleness_of(
    whole: Whole, variable: Int, known: Mapping[str, Mapping[str, str]], remote: Mask
) -> Staleness:
    """Returns the staleness of each apply whose step had read the variable on the same host.

    Where the graph has told which reads are the variable's, the first of them in the step counts. Where it
    has not, any read of the step on this host may be it: then staleness is exact only if it is the same for
    all, and if no other function applied there, whose ops would have other names for the same variable.

    Args:
        whole: The profiles.
        variable: From `variables`.
        known: As given to `variables`.
        remote: Runs that are a part of another host's step (S,).
    """
    ops, steps = whole.ops, whole.steps
    inside = ops.step >= 0
    served = inside & np.append(remote, False)[ops.step]
    applies = np.flatnonzero(types_that(whole, is_apply) & (variable >= 0) & inside)
    reads = np.flatnonzero(types_that(whole, is_read) & served)
    asked = applies[served[applies]]
    told = np.array([word in known for word in whole.words] + [False], np.bool_)
    by_graph = told[np.append(steps.function, -1)[ops.step]]
    result = [np.full(len(asked), _UNKNOWN, np.int64) for _ in range(2)]
    for host in np.unique(ops.host[asked]).tolist():
        _on_host(whole, variable, host, (applies, reads, asked), by_graph, result)
    read, applied = result
    exact = (read >= 0) & (applied >= 0)
    kept = read > -2
    return Staleness(
        asked[kept],
        read[kept],
        applied[kept],
        np.where(exact, applied - read, _UNKNOWN)[kept],
    )


def _on_host(
    whole: Whole,
    variable: Int,
    host: int,
    of: tuple[Int, Int, Int],
    by_graph: Mask,
    result: list[Int],
) -> None:
    """Fills in the versions of the applies on one host."""
    ops = whole.ops
    applies, reads, asked = of
    mine = applies[ops.host[applies] == host]
    seen = reads[ops.host[reads] == host]
    functions = np.unique(whole.steps.function[ops.step[mine[~by_graph[mine]]]])
    for number in np.unique(variable[mine]).tolist():
        to = mine[variable[mine] == number]
        clock = _Clock(ops.start_ns[to], ops.end_ns[to])
        places = np.flatnonzero((variable[asked] == number) & (ops.host[asked] == host))
        step = ops.step[asked[places]]
        graph = bool(by_graph[asked[places]].all()) if len(places) else False
        candidates = seen[variable[seen] == number] if graph else seen[~by_graph[seen]]
        ended = np.full(len(whole.steps), -1, np.int64)
        ended[step] = ops.end_ns[asked[places]]
        # What was read after the apply is no reason for it.
        candidates = candidates[ops.start_ns[candidates] < ended[ops.step[candidates]]]
        low, high, found = _reads(whole, clock, candidates, step, first_only=graph)
        before, at_most = clock.versions(ops.start_ns[asked[places]], ops.end_ns[asked[places]], own=True)
        exact = found & (low == high) & (graph or len(functions) == 1)
        # An op that writes without having read, such as a counter's, has no staleness.
        result[0][places] = np.where(exact, low, np.where(found, _UNKNOWN, -2))
        result[1][places] = np.where(before == at_most, before, _UNKNOWN)


class _Clock:
    """The applies to one variable, as a clock that ticks with each."""

    def __init__(self, start: Int, end: Int) -> None:
        self.start, self.end = np.sort(start), np.sort(end)

    def versions(self, start: Int, end: Int, *, own: bool = False) -> tuple[Int, Int]:
        """Returns how many applies were over when something began, and how many may have been at its end.

        Args:
            start: When it began.
            end: When it ended.
            own: Whether it is one of the applies, which does not count itself.
        """
        low = np.searchsorted(self.end, start, side="right")
        high = np.searchsorted(self.start, end, side="left")
        if own:
            # An instantaneous apply ends as it begins, and has then been counted on either side.
            instant = start == end
            low, high = low - instant, high - ~instant
        return low.astype(np.int64), high.astype(np.int64)


def _reads(whole: Whole, clock: _Clock, reads: Int, step: Int, *, first_only: bool) -> tuple[Int, Int, Mask]:
    """Returns the least and the largest version that each step may have read, and which steps read at all."""
    ops = whole.ops
    if first_only:
        order = np.lexsort((ops.start_ns[reads], ops.step[reads]))
        reads = reads[order]
        reads = reads[np.append(True, np.diff(ops.step[reads]) != 0)[: len(reads)]]
    low, high = clock.versions(ops.start_ns[reads], ops.end_ns[reads])
    count = len(whole.steps)
    least, most = np.full(count, np.iinfo(np.int64).max), np.full(count, -1, np.int64)
    np.minimum.at(least, ops.step[reads], low)
    np.maximum.at(most, ops.step[reads], high)
    return least[step], most[step], most[step] >= 0
