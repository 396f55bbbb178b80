"""Spans of what is in the profiles: ops, regions, and runs that no span of the program is."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from otel_tf import ids, semconv
from otel_tf.profiler._keys import dense, occurrence, used
from otel_tf.profiler.combine import Host, Whole
from otel_tf.profiler.encode import Batch, Layout
from otel_tf.profiler.executor import NONE
from otel_tf.profiler.link import is_server
from otel_tf.profiler.markers import signed

if TYPE_CHECKING:
    from otel_tf.profiler.pipeline import Profile

__all__ = ["Spans", "batches", "joined", "op_ids", "op_spans", "region_ids", "resource_of"]

Int = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_INTERNAL, _PRODUCER, _CONSUMER = 1, 4, 5
_KINDS = {"_Send": _PRODUCER, "_HostSend": _PRODUCER, "_Recv": _CONSUMER, "_HostRecv": _CONSUMER}
_SERVICE = "tensorflow"
#: Ops whose spans are made at once.
_OPS_A_BATCH = 1 << 16
#: Attributes of ops, by the profiler's stat.
_STATS = {
    "group_id": semconv.PROFILER_GROUP_ID,
    "correlation_id": semconv.PROFILER_CORRELATION_ID,
    "run_id": semconv.PROFILER_RUN_ID,
    "context_id": semconv.PROFILER_CONTEXT_ID,
    "group_key": semconv.COLLECTIVE_GROUP_KEY,
    "instance_key": semconv.COLLECTIVE_INSTANCE_KEY,
}


def _hash(*parts: str) -> int:
    digest = hashlib.blake2b("\x1f".join(parts).encode(errors="replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _mixed(values: Int) -> Int:
    """Returns numbers of which each bit depends on all bits of the given ones (SplitMix64's finalizer)."""
    bits = values.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    found: Int = (bits ^ (bits >> np.uint64(31))).astype(np.int64)
    return found


def op_ids(whole: Whole) -> Int:
    """Returns the span id of each op (N,): of its file, run, name and start, the same at every reading."""
    ops = whole.ops
    seeds = np.array([_hash("op", host.session, host.path.name) for host in whole.hosts], np.int64)
    words = np.zeros(len(whole.words) + 1, np.int64)
    for word in used(ops.name):
        words[word] = _hash(whole.words[word])
    step_id = np.append(whole.steps.step_id, NONE)[ops.step]
    found = _mixed(seeds[ops.host] ^ step_id)
    found = _mixed(found ^ words[ops.name])
    found = _mixed(found ^ ops.start_ns)
    ordered = np.sort(found)
    if (ordered[1:] == ordered[:-1]).any():  # one op twice at the same time, on several threads
        found = _mixed(found + occurrence(dense(found)))
    return np.where(found == 0, 1, found)


def region_ids(profile: Profile) -> Int:
    """Returns the span id of each region of a step (R,)."""
    regions, links = profile.regions, profile.links
    scopes = np.array([_hash("region", scope) for scope in regions.scopes] or [0], np.int64)
    return _mixed(_mixed(links.parent[regions.run] ^ scopes[regions.scope]) ^ links.trace_lo[regions.run])


def resource_of(profile: Profile, host: Host) -> dict[str, Any]:
    """Returns the resource of a host's spans: as its task's own spans have it, where the run has any."""
    known = profile.run.tasks.get(host.task)
    process = f"{profile.run.run_id or host.session}/{host.task or host.path.name.partition('.xplane')[0]}"
    services = [who.service for who in profile.run.tasks.values()]
    resource: dict[str, Any] = {
        semconv.SERVICE_NAME: known.service if known else services[0] if services else _SERVICE,
        semconv.SERVICE_INSTANCE_ID: known.process.partition("#")[0] if known else process,
        semconv.HOST_NAME: host.hostname,
        # Nobody says which clock it is: then it is taken for one of its own.
        semconv.CLOCK_DOMAIN: known.domain if known else process,
    }
    if profile.run.run_id:
        resource[semconv.RUN_ID] = profile.run.run_id
    kind, _, index = host.task.rpartition(":")
    if kind:
        resource |= {semconv.TASK_TYPE: kind, semconv.TASK_INDEX: int(index) if index.isdigit() else 0}
    return resource


@dataclasses.dataclass
class Spans:
    """Ids and parents of ops (N,), for whichever of them are written."""

    span: Int
    parent: Int
    trace_hi: Int
    trace_lo: Int


def op_spans(profile: Profile) -> Spans:
    """Returns the ids of all ops and of what they hang under: an op, a region, a step, or the profile."""
    whole, links, regions = profile.whole, profile.links, profile.regions
    ops = whole.ops
    span = op_ids(whole)
    roots = [_root_ids(host) for host in whole.hosts]
    hi, lo, root = (np.array([each[n] for each in roots], np.int64)[ops.host] for n in range(3))
    inside = ops.step >= 0
    at = np.where(inside, ops.step, 0)
    if len(whole.steps):
        hi, lo = np.where(inside, links.trace_hi[at], hi), np.where(inside, links.trace_lo[at], lo)
        root = np.where(inside, links.parent[at], root)
    if len(regions):
        root = np.where(regions.of_op >= 0, region_ids(profile)[regions.of_op], root)
    nested = ops.parent >= 0
    # An op of another step, which cannot be, must not lead into another trace.
    nested &= (hi[ops.parent] == hi) & (lo[ops.parent] == lo)
    return Spans(span, np.where(nested, span[ops.parent], root), hi, lo)


def _root_ids(host: Host) -> tuple[int, int, int]:
    named = (host.session, "profile", host.path.name)
    trace = ids.trace_id(*named)
    return signed(trace >> 64), signed(trace & (1 << 64) - 1), signed(ids.span_id(*named))


def batches(
    profile: Profile, spans: Spans, rows: Int, session: str | None = None
) -> Iterator[tuple[Host, Batch]]:
    """Yields the spans of each host: the ops at ``rows``, all regions, and runs that are no span's.

    Ops come by their names, so that what is written alike is in one batch.

    Args:
        profile: The profiles.
        spans: From `op_spans`.
        rows: Ops to write.
        session: Only its hosts.
    """
    ops = profile.whole.ops
    for number, host in enumerate(profile.whole.hosts):
        if session is not None and host.session != session:
            continue
        mine = rows[ops.host[rows] == number]
        mine = mine[np.argsort(ops.name[mine], kind="stable")]
        for first in range(0, len(mine), _OPS_A_BATCH):
            yield host, _ops(profile, spans, host, mine[first : first + _OPS_A_BATCH])
        parts = [_regions(profile, number), _runs(profile, number)]
        if (ops.step[mine] < 0).any():
            parts.append(_profile(profile, number))
        yield host, joined(parts)


def joined(parts: list[Batch]) -> Batch:
    """Returns several batches as one."""
    first = np.cumsum([0, *(len(part.layouts) for part in parts)]).tolist()
    keys = sorted({key for part in parts for key in part.integers})
    names = [f.name for f in dataclasses.fields(Batch) if f.name not in ("layouts", "layout", "integers")]
    return Batch(
        layouts=[layout for part in parts for layout in part.layouts],
        layout=np.concatenate([part.layout + begin for part, begin in zip(parts, first, strict=False)]),
        integers={
            key: np.concatenate([part.integers.get(key, np.zeros(len(part), np.int64)) for part in parts])
            for key in keys
        },
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names},
    )


def _common(host: Host) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = [(semconv.WORKER, host.task)] if host.task else []
    found.append((semconv.PROFILER_SESSION, host.session))
    if not host.absolute:
        found.append((semconv.TIME_SOURCE, semconv.SOURCE_RELATIVE))
    return found


def _ops(profile: Profile, spans: Spans, host: Host, rows: Int) -> Batch:
    whole, links, regions = profile.whole, profile.links, profile.regions
    ops = whole.ops
    step = ops.step[rows]
    none = np.array([NONE])
    integers = {
        semconv.GLOBAL_STEP: np.append(np.where(links.global_step >= 0, links.global_step, NONE), none)[step],
        semconv.PROFILER_STEP_ID: np.append(whole.steps.step_id, none)[step],
        **{key: ops.stats[name][rows] for name, key in _STATS.items() if name in ops.stats},
    }
    if len(profile.stale.op):
        integers[semconv.STALENESS] = _staleness(profile)[rows]
    text = np.full(len(rows), -1, np.int64)
    context = integers.get(semconv.PROFILER_CONTEXT_ID)
    if context is not None:
        is_text = (context <= -2) & (context >= -1 - len(whole.words))
        text[is_text] = -2 - context[is_text]
        integers[semconv.PROFILER_CONTEXT_ID] = np.where(is_text, NONE, context)
    workers, worker = np.unique(np.append(links.worker, "").astype(str), return_inverse=True)
    # "" sorts first, so 0 is nobody else's.
    elsewhere = np.where(workers == host.task, 0, np.arange(len(workers)))[worker.reshape(-1)[step]]
    region = np.append(regions.scope, -1)[regions.of_op[rows]]
    link = _links(profile)[rows]
    present = (link >= 0).astype(np.int64)
    for values in integers.values():
        present = present * 2 + (values != NONE)
    key = dense(ops.name[rows], ops.type[rows], ops.device[rows], elsewhere, region, text, present)
    some = np.zeros(int(key.max(initial=-1)) + 1, np.int64)
    some[key] = np.arange(len(rows))
    layouts = []
    for at in some.tolist():
        row = rows[at]
        op_type = whole.words[ops.type[row]]
        fixed: list[tuple[str, Any]] = [
            (semconv.OP_NAME, whole.words[ops.name[row]]),
            (semconv.OP_TYPE, op_type),
            (semconv.DEVICE, whole.words[ops.device[row]]),
            *_common(host),
        ]
        if region[at] >= 0:
            fixed.append((semconv.REGION_NAME, regions.names[region[at]]))
        if elsewhere[at]:
            fixed.append((semconv.STEP_WORKER, str(workers[elsewhere[at]])))
        if text[at] >= 0:
            fixed.append((semconv.PROFILER_CONTEXT_ID, whole.words[text[at]]))
        mine = tuple(name for name, values in integers.items() if values[at] != NONE)
        if semconv.STALENESS in mine:
            fixed.append((semconv.STALENESS_SOURCE, semconv.SOURCE_PROFILE))
        kind = _KINDS.get(op_type, _INTERNAL)
        layouts.append(Layout(op_type, kind, tuple(fixed), mine, linked=bool(link[at] >= 0)))
    return Batch(
        layouts=layouts,
        layout=key,
        trace_hi=spans.trace_hi[rows],
        trace_lo=spans.trace_lo[rows],
        span=spans.span[rows],
        parent=spans.parent[rows],
        start_ns=ops.start_ns[rows],
        end_ns=ops.end_ns[rows],
        integers=integers,
        link_hi=spans.trace_hi[link],
        link_lo=spans.trace_lo[link],
        link_span=spans.span[link],
    )


def _staleness(profile: Profile) -> Int:
    found = np.full(len(profile.whole.ops), NONE, np.int64)
    exact = profile.stale.staleness >= 0
    found[profile.stale.op[exact]] = profile.stale.staleness[exact]
    return found


def _links(profile: Profile) -> Int:
    """Returns the send of each receive, -1 for none (N,)."""
    found = np.full(len(profile.whole.ops), -1, np.int64)
    pairs = profile.edge.of("send_recv")
    found[profile.edge.dst[pairs]] = profile.edge.src[pairs]
    return found


def _plain(layouts: list[Layout], layout: Int, integers: dict[str, Int], **columns: Int) -> Batch:
    none = np.zeros(len(layout), np.int64)
    return Batch(layouts, layout, integers=integers, link_hi=none, link_lo=none, link_span=none, **columns)


def _regions(profile: Profile, number: int) -> Batch:
    regions, links, host = profile.regions, profile.links, profile.whole.hosts[number]
    span = region_ids(profile)
    rows = np.flatnonzero(regions.host == number)
    run = regions.run[rows]
    step = links.global_step[run]
    known = (step >= 0).astype(np.int64)
    layouts = [
        Layout(
            semconv.SPAN_REGION,
            _INTERNAL,
            ((semconv.REGION_NAME, name), (semconv.REGION_SCOPE, scope), *_common(host)),
            (semconv.GLOBAL_STEP,) if has_step else (),
        )
        for name, scope in zip(regions.names, regions.scopes, strict=True)
        for has_step in (False, True)
    ]
    outer = regions.parent[rows]
    return _plain(
        layouts,
        2 * regions.scope[rows] + known,
        {semconv.GLOBAL_STEP: step},
        trace_hi=links.trace_hi[run],
        trace_lo=links.trace_lo[run],
        span=span[rows],
        parent=np.where(outer >= 0, span[outer], links.parent[run]) if len(rows) else rows,
        start_ns=regions.start_ns[rows],
        end_ns=regions.end_ns[rows],
    )


def _runs(profile: Profile, number: int) -> Batch:
    """Returns a root for each run, on one or several hosts, that is no span of the program's."""
    whole, links = profile.whole, profile.links
    steps, host = whole.steps, whole.hosts[number]
    made = np.flatnonzero(links.how == 0)
    servers = np.array([is_server(each.task) for each in whole.hosts], np.int64)[steps.host[made]]
    called = (steps.root[made] != made).astype(np.int64)
    order = made[np.lexsort((steps.start_ns[made], steps.host[made], called, servers))]
    _, first = np.unique(links.step_span[order], return_index=True)
    rows = np.sort(order[first])
    rows = rows[steps.host[rows] == number]
    key = dense(steps.function[rows])
    some = np.zeros(int(key.max(initial=-1)) + 1, np.int64)
    some[key] = rows
    layouts = []
    for row in some.tolist():
        function = steps.function[row]
        named = ((semconv.FUNCTION_NAME, whole.words[function]),) if function >= 0 else ()
        layouts.append(
            Layout(
                semconv.SPAN_FUNCTION_RUN, _INTERNAL, (*named, *_common(host)), (semconv.PROFILER_STEP_ID,)
            )
        )
    return _plain(
        layouts,
        key,
        {semconv.PROFILER_STEP_ID: steps.step_id[rows]},
        trace_hi=links.trace_hi[rows],
        trace_lo=links.trace_lo[rows],
        span=links.step_span[rows],
        parent=np.zeros(len(rows), np.int64),
        start_ns=steps.start_ns[rows],
        end_ns=steps.end_ns[rows],
    )


def _profile(profile: Profile, number: int) -> Batch:
    """Returns the root of what ran in no function."""
    host = profile.whole.hosts[number]
    hi, lo, span = _root_ids(host)
    one = {"trace_hi": hi, "trace_lo": lo, "span": span, "parent": 0}
    one |= {"start_ns": host.base_ns, "end_ns": host.end_ns}
    layout = Layout(semconv.SPAN_PROFILE, _INTERNAL, tuple(_common(host)))
    columns = {name: np.array([value], np.int64) for name, value in one.items()}
    return _plain([layout], np.zeros(1, np.int64), {}, **columns)
