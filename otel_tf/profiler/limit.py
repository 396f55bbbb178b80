"""Which ops of a step Jaeger is given: the longest, and one span that sums up the others."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from otel_tf import semconv
from otel_tf.profiler._keys import dense, occurrence
from otel_tf.profiler.encode import Batch, Layout
from otel_tf.profiler.spans import Spans

if TYPE_CHECKING:
    from otel_tf.profiler.pipeline import Profile

__all__ = ["MOST_OPS", "longest", "summaries"]

Int = npt.NDArray[np.int64]

#: Ops of one trace: more make its page in Jaeger slow.
MOST_OPS = 2000


def longest(profile: Profile, spans: Spans, most: int | None = None) -> tuple[Int, Spans]:
    """Returns the ops that are shown, in their order, and ids with whose parents are all shown.

    Args:
        profile: The profiles.
        spans: Ids of all ops.
        most: Of each trace, as many ops as this are shown; default `MOST_OPS`.
    """
    ops = profile.whole.ops
    trace = dense(spans.trace_hi, spans.trace_lo)
    shown = occurrence(trace, ops.start_ns - ops.end_ns, ops.start_ns) < (MOST_OPS if most is None else most)
    rows = np.flatnonzero(shown)
    parent = spans.parent.copy()
    over = ops.parent.copy()
    # An op whose parent is left out hangs under what that one hung under.
    while True:
        orphans = rows[(over[rows] >= 0) & ~shown[over[rows]]]
        if not len(orphans):
            break
        parent[orphans] = spans.parent[over[orphans]]
        over[orphans] = ops.parent[over[orphans]]
    return rows, Spans(spans.span, parent, spans.trace_hi, spans.trace_lo)


def summaries(profile: Profile, spans: Spans, rows: Int, host: int) -> Batch:
    """Returns, for each step of a host with ops that are not among ``rows``, a span that sums those up.

    Args:
        profile: The profiles.
        spans: Ids of ops.
        rows: The ops that are shown.
        host: Number of the host.
    """
    whole, links = profile.whole, profile.links
    ops = whole.ops
    left_out = np.ones(len(ops), np.bool_)
    left_out[rows] = False
    others = np.flatnonzero(left_out & (ops.host == host))
    # What ran in no function is in one trace, of the profile.
    key = dense(ops.step[others])
    order = np.argsort(key, kind="stable")
    bounds = np.searchsorted(key[order], np.arange(int(key.max(initial=-1)) + 2)).tolist()
    layouts: list[Layout] = []
    columns: list[list[int]] = []
    for begin, end in itertools.pairwise(bounds):
        some = others[order[begin:end]]
        step = int(ops.step[some[0]])
        fixed = _sums(profile, some)
        task, function = whole.hosts[host].task, int(whole.steps.function[step]) if step >= 0 else -1
        if function >= 0:
            fixed.append((semconv.FUNCTION_NAME, whole.words[function]))
        fixed += [(semconv.WORKER, task)] if task else []
        if step >= 0 and links.global_step[step] >= 0:
            fixed.append((semconv.GLOBAL_STEP, int(links.global_step[step])))
        layouts.append(Layout(semconv.SPAN_FUNCTION_RUN, 1, tuple(fixed)))
        first = int(some[0])
        # Its own id is that of the first op that it stands for.
        columns.append(
            [
                int(spans.trace_hi[first]),
                int(spans.trace_lo[first]),
                int(spans.span[first]),
                int(links.parent[step]) if step >= 0 else int(spans.parent[first]),
                int(ops.start_ns[some].min()),
                int(ops.end_ns[some].max()),
            ]
        )
    hi, lo, span, parent, start, end_ns = np.array(columns, np.int64).reshape(-1, 6).T
    none = np.zeros(len(layouts), np.int64)
    layout = np.arange(len(layouts), dtype=np.int64)
    return Batch(layouts, layout, hi, lo, span, parent, start, end_ns, {}, none, none, none)


def _sums(profile: Profile, rows: Int) -> list[tuple[str, Any]]:
    ops, words = profile.whole.ops, profile.whole.words
    types, kind = np.unique(ops.type[rows], return_inverse=True)
    count = np.bincount(kind.reshape(-1))
    time_ns = np.bincount(kind.reshape(-1), weights=ops.end_ns[rows] - ops.start_ns[rows])
    order = np.argsort(-time_ns, kind="stable")
    return [
        (semconv.PROFILER_SESSION, profile.whole.hosts[ops.host[rows[0]]].session),
        (semconv.OMITTED_OPS, len(rows)),
        (semconv.OMITTED_TYPES, [words[types[n]] for n in order.tolist()]),
        (semconv.OMITTED_COUNTS, count[order].tolist()),
        (semconv.OMITTED_DURATIONS, (time_ns[order] / 1e9).tolist()),
    ]
