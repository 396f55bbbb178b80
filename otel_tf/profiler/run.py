"""What a run's own spans say about its profiles: steps, who the tasks are, regions, variables."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from otel_tf import semconv
from otel_tf.errors import UserError
from otel_tf.telemetry._spool import TRACES_SUFFIX

__all__ = ["Identity", "Run", "RunSteps", "read_cluster", "read_run"]

Int = npt.NDArray[np.int64]

CLUSTER_SUFFIX, GRAPH_SUFFIX = ".cluster.json", ".graph.json"
_STEPS = (semconv.SPAN_TRAIN_STEP, semconv.SPAN_EXECUTE)


@dataclasses.dataclass(frozen=True)
class Identity:
    """How a task's own spans name their process, service, clock and run."""

    service: str
    process: str
    domain: str
    run: str


@dataclasses.dataclass(frozen=True)
class RunSteps:
    """The steps of a run, a row each (K,); ids as in the correlator.

    ``own_clock`` says that the times are the worker's own, and not those of who dispatched it;
    ``global_step`` is -1 where there is none.
    """

    worker: npt.NDArray[np.object_]
    trace_hi: Int
    trace_lo: Int
    span: Int
    start_ns: Int
    end_ns: Int
    global_step: Int
    own_clock: npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Run:
    """A run, as far as profiles need it.

    Attributes:
        run_id: Its id, "" for none.
        steps: Its steps.
        tasks: Who each task is.
        process_of_span: Worker of every dispatch, by its span id.
        regions: Scope of every region that was built into a graph, and its name.
        cluster: Task by address.
        variables: Of a traced function, the variable that each op reads or writes.
    """

    run_id: str = ""
    steps: RunSteps | None = None
    tasks: Mapping[str, Identity] = dataclasses.field(default_factory=dict)
    process_of_span: Mapping[int, str] = dataclasses.field(default_factory=dict)
    regions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    cluster: Mapping[str, str] = dataclasses.field(default_factory=dict)
    variables: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)


def read_run(sources: Sequence[str], say: Callable[[str], None] = lambda _: None) -> Run:
    """Returns what the spans of a run say.

    Args:
        sources: As `correlator.sources.read` takes them; of directories also the files ``*.cluster.json``
            and ``*.graph.json``.
        say: Told what is going on.

    Raises:
        UserError: A source cannot be read or has no spans.
    """
    from otel_tf.correlator import sources as correlator_sources

    spans = correlator_sources.read([file for each in sources for file in _files(each)], say=say).spans
    folders = [Path(source) for source in sources if "://" not in source and Path(source).is_dir()]
    cluster: dict[str, str] = {}
    variables: dict[str, dict[str, str]] = {}
    for folder in folders:
        for path in sorted(folder.rglob(f"*{CLUSTER_SUFFIX}")):
            cluster |= read_cluster(path)
        for path in sorted(folder.rglob(f"*{GRAPH_SUFFIX}")):
            for entry in _objects(path.read_text(errors="replace")):
                variables.setdefault(str(entry.get("function")), {}).update(entry.get("variables") or {})
    return Run(
        run_id=next((run for run in spans["run"].to_pylist() if run), "") if spans.num_rows else "",
        steps=_steps(spans),
        tasks=_tasks(spans),
        process_of_span=_dispatchers(spans),
        regions=_regions(spans),
        cluster=cluster,
        variables=variables,
    )


def _files(source: str) -> list[str]:
    """Returns what to read of a source: of a run directory the spool, and not the ops that it has already."""
    if "://" in source or not Path(source).is_dir():
        return [source]
    spool = [str(file) for file in sorted(Path(source).rglob(f"*{TRACES_SUFFIX}")) if file.stat().st_size]
    return spool or [source]


def read_cluster(path: Path) -> dict[str, str]:
    """Returns the task of each address.

    Args:
        path: JSON, or lines of it: ``{"localhost:1": "worker:0"}``, a ClusterSpec ``{"worker":
            ["localhost:1"]}``, or one in ``{"cluster": …}``, as in ``TF_CONFIG``.

    Raises:
        UserError: It cannot be read or is none of these.
    """
    try:
        text = path.read_text()
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        spec = json.loads(text)
    except ValueError as error:
        # What a run notes is a line each time; the last one holds.
        lines = _objects(text)
        if not lines:
            raise UserError(f"{path}: {error}") from None
        spec = lines[-1]
    spec = spec.get("cluster", spec) if isinstance(spec, dict) else spec
    found: dict[str, str] = {}
    for key, value in spec.items() if isinstance(spec, dict) else ():
        if isinstance(value, str):
            found[key] = value
        elif isinstance(value, list) and all(isinstance(address, str) for address in value):
            found |= {address: f"{key}:{index}" for index, address in enumerate(value)}
        elif isinstance(value, dict):  # a sparse ClusterSpec
            found |= {str(address): f"{key}:{index}" for index, address in value.items()}
        else:
            raise UserError(f"{path}: {key!r} is neither a task nor a list of addresses")
    if not found:
        raise UserError(f'{path}: no ClusterSpec, such as {{"worker": ["localhost:32101"]}}')
    return found


def _objects(text: str) -> list[dict[str, Any]]:
    """Returns the objects of JSON lines; a last line that was cut off is left out."""
    entries = []
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            entries.append(entry)
    return entries


def _named(spans: pa.Table, *names: str) -> pa.Table:
    return spans.filter(pc.is_in(spans["name"].cast(pa.string()), value_set=pa.array(names)))


def _steps(spans: pa.Table) -> RunSteps | None:
    steps = _named(spans, *_STEPS)
    steps = steps.filter(pc.is_valid(steps["worker"]))
    if not steps.num_rows:
        return None
    steps = steps.take(pc.sort_indices(steps, [("start_ns", "ascending"), ("span_id", "ascending")]))
    marked = pc.match_substring(
        steps["attributes"], f'"{semconv.TIME_SOURCE}":"{semconv.SOURCE_COORDINATOR}"'
    ).fill_null(False)
    return RunSteps(
        worker=np.array(steps["worker"].to_pylist(), object),
        trace_hi=steps["trace_hi"].to_numpy(),
        trace_lo=steps["trace_lo"].to_numpy(),
        span=steps["span_id"].to_numpy(),
        start_ns=steps["start_ns"].to_numpy(),
        end_ns=steps["end_ns"].to_numpy(),
        global_step=steps["global_step"].fill_null(-1).to_numpy(),
        own_clock=~marked.to_numpy(),
    )


def _tasks(spans: pa.Table) -> dict[str, Identity]:
    """Returns who each task is: the process that most of its spans are of."""
    columns = ["worker", "service", "process", "domain", "run"]
    plain = pa.table({name: spans[name].cast(pa.string()) for name in columns})
    counted = plain.group_by(columns).aggregate([([], "count_all")])
    rows = sorted(counted.to_pylist(), key=lambda row: row["count_all"])
    found = {}
    for row in rows:
        # A coordinator writes its workers' steps under their own resource, but its dispatches under its own.
        task = row["worker"]
        if task and row["process"].partition("#")[0].endswith(f"/{task}"):
            found[task] = Identity(row["service"], row["process"], row["domain"], row["run"] or "")
    for row in rows:
        task = row["worker"]
        if task and task not in found:
            found[task] = Identity(row["service"], row["process"], row["domain"], row["run"] or "")
    return found


def _dispatchers(spans: pa.Table) -> dict[int, str]:
    found = _named(spans, semconv.SPAN_DISPATCH)
    return {
        span: process.partition("#")[0].rpartition("/")[2]
        for span, process in zip(found["span_id"].to_pylist(), found["process"].to_pylist(), strict=True)
    }


def _regions(spans: pa.Table) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in _named(spans, semconv.SPAN_TRACE_REGION)["attributes"].to_pylist():
        about = json.loads(text or "{}")
        scope, name = about.get(semconv.REGION_SCOPE), about.get(semconv.REGION_NAME)
        if isinstance(scope, str) and scope:
            found[scope] = name if isinstance(name, str) else scope
    return found
