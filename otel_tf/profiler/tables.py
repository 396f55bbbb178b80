"""What a profile holds, as Arrow tables; `otel_tf.profiler` says what their columns are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from otel_tf.profiler import xspace
from otel_tf.profiler.edges import KINDS
from otel_tf.profiler.executor import NONE
from otel_tf.profiler.link import HOW

if TYPE_CHECKING:
    from otel_tf.profiler.pipeline import Profile

__all__ = ["edges", "events", "hosts", "ops", "regions", "staleness", "steps"]

Int = npt.NDArray[np.int64]


def _numbers(values: Int, missing: int = NONE) -> pa.Array:
    return pa.array(values, mask=values == missing)


def _texts(codes: Int, names: tuple[str, ...] | list[str]) -> pa.Array:
    """Returns texts by their numbers; null for -1."""
    index = pa.array(codes.astype(np.int32), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(index, pa.array(list(names), pa.string()))


def _optional(values: Any) -> pa.Array:
    """Returns texts; null for ""."""
    return pa.array([value or None for value in values], pa.string()).dictionary_encode()


def _ids(*halves: Int) -> pa.Array:
    # Stacking would bring back the machine's own byte order.
    data = np.stack(halves, axis=1).astype(">i8").tobytes()
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(8 * len(halves)), len(halves[0]), [None, pa.py_buffer(data)]
    )


def hosts(profile: Profile) -> pa.Table:
    """Returns a row a file."""
    rows = profile.whole.hosts
    return pa.table(
        {
            "host": pa.array(range(len(rows)), pa.int64()),
            "file": pa.array([str(row.path) for row in rows], pa.string()),
            "session": pa.array([row.session for row in rows], pa.string()),
            "task": pa.array([row.task or None for row in rows], pa.string()),
            "hostname": pa.array([row.hostname for row in rows], pa.string()),
            "base_ns": pa.array([row.base_ns for row in rows], pa.int64()),
            "end_ns": pa.array([row.end_ns for row in rows], pa.int64()),
            "absolute": pa.array([row.absolute for row in rows], pa.bool_()),
            "events": pa.array([row.events for row in rows], pa.int64()),
            "lacking": pa.array([row.lacking for row in rows], pa.int64()),
        }
    )


def events(profile: Profile) -> pa.Table:
    """Returns a row an event, with the stats that are kept."""
    return pa.concat_tables(
        _events(number, xspace.read_file(host.path)) for number, host in enumerate(profile.whole.hosts)
    ).unify_dictionaries()


def _events(host: int, space: xspace.Space) -> pa.Table:
    line = space.line.astype(np.int64)
    names = space.name.astype(np.int64)
    planes = sorted({each.plane for each in space.lines})
    plane = np.array([planes.index(each.plane) for each in space.lines], np.int64)
    columns = {
        "host": pa.array(np.full(len(space), host, np.int64)),
        "plane": _texts(plane[line], planes),
        "line": pa.array(line),
        "line_id": pa.array(np.array([each.id for each in space.lines], np.int64)[line]),
        "line_name": _texts(line, [each.name for each in space.lines]),
        "name": _texts(names, space.names),
        "type": _texts(
            np.where(np.array([bool(each) for each in space.types])[names], names, -1), space.types
        ),
        "start_ps": pa.array(space.start_ps),
        "duration_ps": pa.array(space.duration_ps),
    }
    for stat in xspace.STATS:
        columns["node" if stat == "name" else stat] = _stat(space, stat)
    return pa.table(columns)


#: Stats whose values are texts; a text in another, such as CUPTI's contexts ``$$5``, is left out.
_TEXT_STATS = frozenset(
    {
        *("otel_trace", "otel_span", "otel_dispatch", "otel_worker", "from", "to", "key", "kernel_type"),
        *("name", "eager_op", "annotation", "tf_op", "hlo_op", "step_name"),
    }
)


def _stat(space: xspace.Space, name: str) -> pa.Array:
    if name in _TEXT_STATS:
        codes = np.full(len(space), -1, np.int64)
        rows, words = space.stat(name).words()
        codes[rows] = words
        return _texts(codes, space.texts)
    column = np.full(len(space), NONE, np.int64)
    rows, values = space.stat(name).numbers()
    column[rows] = values
    return _numbers(column)


def steps(profile: Profile) -> pa.Table:
    """Returns a row a run of a function on a host."""
    rows, links = profile.whole.steps, profile.links
    return pa.table(
        {
            "host": pa.array(rows.host),
            "step_id": _numbers(rows.step_id),
            "function": _texts(rows.function, profile.whole.words),
            "start_ns": pa.array(rows.start_ns),
            "end_ns": pa.array(rows.end_ns),
            "worker": _optional(links.worker),
            "global_step": _numbers(links.global_step, -1),
            "trace_id": _ids(links.trace_hi, links.trace_lo),
            "span_id": _ids(links.step_span),
            "linked": _texts(np.where(links.how > 0, links.how, -1), HOW),
        }
    )


def ops(profile: Profile) -> pa.Table:
    """Returns a row an op."""
    from otel_tf.profiler.spans import op_ids

    whole = profile.whole
    rows = whole.ops
    return pa.table(
        {
            "host": pa.array(rows.host),
            "step": pa.array(rows.step),
            "name": _texts(rows.name, whole.words),
            "type": _texts(rows.type, whole.words),
            "device": _texts(rows.device, whole.words),
            "start_ns": pa.array(rows.start_ns),
            "end_ns": pa.array(rows.end_ns),
            "parent": pa.array(rows.parent),
            "region": pa.array(profile.regions.of_op),
            "variable": _texts(profile.variable, profile.variables),
            "span_id": pa.array(op_ids(whole)),
        }
    )


def regions(profile: Profile) -> pa.Table:
    """Returns a row a region of a step."""
    from otel_tf.profiler.spans import region_ids

    found = profile.regions
    return pa.table(
        {
            "name": _texts(found.scope, found.names),
            "scope": _texts(found.scope, found.scopes),
            "step": pa.array(found.run),
            "host": pa.array(found.host),
            "parent": pa.array(found.parent),
            "start_ns": pa.array(found.start_ns),
            "end_ns": pa.array(found.end_ns),
            "span_id": pa.array(region_ids(profile)),
        }
    )


def edges(profile: Profile) -> pa.Table:
    """Returns a row an edge."""
    found = profile.edge
    keys = _texts(found.key, profile.whole.words).cast(pa.string()).to_pylist()
    for row in np.flatnonzero(found.of("collective")).tolist():
        keys[row] = f"{found.group_key[row]}/{found.instance_key[row]}/{found.occurrence[row]}"
    for row in np.flatnonzero(found.of("apply")).tolist():
        keys[row] = profile.variables[profile.variable[found.src[row]]]
    return pa.table(
        {
            "src": pa.array(found.src),
            "dst": pa.array(found.dst),
            "kind": _texts(found.kind, KINDS),
            "step_id": _numbers(found.step_id),
            "key": pa.array(keys, pa.string()),
        }
    )


def staleness(profile: Profile) -> pa.Table:
    """Returns a row a gradient that was applied on another host."""
    found = profile.stale
    return pa.table(
        {
            "op": pa.array(found.op),
            "step": pa.array(profile.whole.ops.step[found.op]),
            "variable": _texts(profile.variable[found.op], profile.variables),
            "read_version": _numbers(found.read_version, -1),
            "applied_version": _numbers(found.applied_version, -1),
            "staleness": _numbers(found.staleness, -1),
        }
    )
