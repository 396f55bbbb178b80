"""Regions of graphs, made by `otel_tf.trace`: which ops belong to one, and one span for each step.

`otel_tf.instrumentation.regions` says how a region is found: the components of its scope occur in those of
the op's name, in their order and without a gap, before the last; of several, the longest scope counts, and
those that it begins with are around it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from otel_tf.profiler._keys import dense, match, used
from otel_tf.profiler.combine import Whole
from otel_tf.profiler.link import Links

__all__ = ["Regions", "regions_of", "scope_of"]

Int = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Regions:
    """Regions of steps (R,).

    Attributes:
        scopes, names: All scopes, and the name of each one's region.
        scope: Index into ``scopes``.
        run: A run of the step that it is in, row of `combine.Steps`.
        host: Whose span it is: the step's worker's, as far as ops of it ran there.
        parent: The region around it, -1 for none (R,).
        start_ns, end_ns: From its first op to its last on its host, regions in it included.
        of_op: The innermost region of each op (N,), -1 for none.
    """

    scopes: tuple[str, ...]
    names: tuple[str, ...]
    scope: Int
    run: Int
    host: Int
    parent: Int
    start_ns: Int
    end_ns: Int
    of_op: Int

    def __len__(self) -> int:
        return len(self.scope)


def scope_of(op: str, scopes: tuple[str, ...]) -> int:
    """Returns which of ``scopes`` an op's name lies in, the longest of several, -1 for none."""
    name = f"/{op}"
    found = [number for number, scope in enumerate(scopes) if f"/{scope}/" in name]
    return max(found, key=lambda number: (scopes[number].count("/"), -number), default=-1)


def regions_of(whole: Whole, links: Links, known: Mapping[str, str]) -> Regions:
    """Returns the regions of all steps.

    Args:
        whole: The profiles.
        links: The span of each run.
        known: Name of the region of each scope.
    """
    scopes = tuple(sorted(known))
    around = _around(scopes)
    ops = whole.ops
    table = np.full(len(whole.words) + 1, -1, np.int64)
    for word in used(ops.name) if scopes else ():
        table[word] = scope_of(whole.words[word], scopes)
    scope = np.where(ops.step >= 0, table[ops.name], -1)
    rows = np.flatnonzero(scope >= 0)
    # A step is what its span says, on all hosts.
    step = dense(links.trace_lo, links.parent)[ops.step[rows]] if len(rows) else rows
    tasks = np.array([host.task for host in whole.hosts], object)
    own = tasks[ops.host[rows]] == links.worker[ops.step[rows]]
    # Of each op its region, and those around it, which may have no other.
    levels, places = [scope[rows]], [np.arange(len(rows))]
    while len(levels[-1]):
        outer = around[levels[-1]]
        places.append(places[-1][outer >= 0])
        levels.append(outer[outer >= 0])
    all_scope, place = np.concatenate(levels), np.concatenate(places)
    all_step, all_op, all_own = step[place], rows[place], own[place].astype(np.bool_)
    number = dense(all_scope, all_step)
    count = int(number.max(initial=-1)) + 1
    # Its own worker's ops decide, if there are any.
    has_own = np.zeros(count, np.bool_)
    has_own[number[all_own]] = True
    host = np.full(count, len(whole.hosts), np.int64)
    told = all_own | ~has_own[number]
    np.minimum.at(host, number[told], ops.host[all_op[told]])
    told &= ops.host[all_op] == host[number]
    start, end = np.full(count, np.iinfo(np.int64).max), np.zeros(count, np.int64)
    np.minimum.at(start, number[told], ops.start_ns[all_op[told]])
    np.maximum.at(end, number[told], ops.end_ns[all_op[told]])
    some = np.zeros(count, np.int64)
    some[number[told]] = np.flatnonzero(told)
    of_op = np.full(len(ops), -1, np.int64)
    of_op[rows] = number[: len(rows)]
    mine, in_step = all_scope[some], all_step[some]
    outside = around[mine] if count else mine
    return Regions(
        scopes=scopes,
        names=tuple(known[each] for each in scopes),
        scope=mine,
        run=ops.step[all_op[some]],
        host=host,
        parent=np.where(outside >= 0, match((outside, in_step), (mine, in_step)), -1),
        start_ns=start,
        end_ns=end,
        of_op=of_op,
    )


def _around(scopes: tuple[str, ...]) -> Int:
    """Returns for each scope the longest other one that it begins with, -1 for none."""
    found = [
        max(
            (n for n, other in enumerate(scopes) if scope.startswith(f"{other}/")),
            key=lambda n: len(scopes[n]),
            default=-1,
        )
        for scope in scopes
    ]
    return np.array(found, np.int64)
