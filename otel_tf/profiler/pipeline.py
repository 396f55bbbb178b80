"""Everything from files to linked runs, ops, regions, edges and staleness; see `otel_tf.profiler`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from otel_tf.errors import UserError
from otel_tf.profiler import tables, xspace
from otel_tf.profiler.combine import Whole, combine
from otel_tf.profiler.edges import KINDS, Edges, edges_of
from otel_tf.profiler.executor import EXECUTOR_STATS
from otel_tf.profiler.link import HOW, Links, is_server, link
from otel_tf.profiler.regions import Regions, regions_of
from otel_tf.profiler.run import Run, read_run
from otel_tf.profiler.staleness import Staleness, staleness_of, variables

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Profile", "profile"]

Int = npt.NDArray[np.int64]

#: What makes up half of a profile and says nothing of ops.
_NO_OPS = frozenset(
    {
        *("ThreadpoolListener::Record", "ThreadpoolListener::StartRegion", "ThreadpoolListener::StopRegion"),
        *("MemoryAllocation", "MemoryDeallocation", "ExecutorPropagateOutputs"),
    }
)


@dataclasses.dataclass(frozen=True)
class Profile:
    """What profiles hold, and what of a run it belongs to.

    Attributes:
        whole: Hosts, runs of functions, ops.
        links: The span of each run of a function.
        regions: Regions of graphs.
        variable: The variable of each op (N,), index into ``variables``, -1 for none.
        variables: Names.
        edge: What happened before what.
        stale: Staleness of applies.
        run: What the run said.
        skipped: Files and parts of files that could not be read, by reason.
        first_skipped: The first example of each reason.
    """

    whole: Whole
    links: Links
    regions: Regions
    variable: Int
    variables: tuple[str, ...]
    edge: Edges
    stale: Staleness
    run: Run
    skipped: dict[str, int]
    first_skipped: dict[str, str]

    @property
    def hosts(self) -> pa.Table:
        """A row a file; see `otel_tf.profiler`."""
        return tables.hosts(self)

    @property
    def events(self) -> pa.Table:
        """All events, read again from the files."""
        return tables.events(self)

    @property
    def steps(self) -> pa.Table:
        """A row a run of a function."""
        return tables.steps(self)

    @property
    def ops(self) -> pa.Table:
        """A row an op."""
        return tables.ops(self)

    @property
    def region_spans(self) -> pa.Table:
        """A row a region of a step."""
        return tables.regions(self)

    @property
    def edges(self) -> pa.Table:
        """A row an edge between two ops."""
        return tables.edges(self)

    @property
    def staleness(self) -> pa.Table:
        """A row a gradient that was applied on another host."""
        return tables.staleness(self)

    @property
    def report(self) -> dict[str, Any]:
        """The object that ``otel-tf profile --format json`` prints."""
        hosts, links = self.whole.hosts, self.links
        linked = links.how > 0
        return {
            "files": len(hosts),
            "hosts": [
                {
                    "file": str(host.path),
                    "session": host.session,
                    "task": host.task or None,
                    "events": host.events,
                    "absolute_time": host.absolute,
                }
                for host in hosts
            ],
            "op_spans": len(self.whole.ops),
            "steps": _distinct(links, np.ones(len(linked), np.bool_)),
            "linked_steps": _distinct(links, linked),
            "linked_by": {name: int((links.how == code).sum()) for code, name in enumerate(HOW) if code},
            "regions": len(self.regions),
            "edges": {kind: int(self.edge.of(kind).sum()) for kind in KINDS},
            "staleness": {
                "exact": int((self.stale.staleness >= 0).sum()),
                "not_exact": int((self.stale.staleness < 0).sum()),
                "max": int(self.stale.staleness.max(initial=-1)) if len(self.stale.op) else None,
            },
            "absolute_time": all(host.absolute for host in hosts),
            "skipped": self.skipped,
            "first_skipped": self.first_skipped,
        }


def _distinct(links: Links, which: npt.NDArray[np.bool_]) -> int:
    return len(np.unique(links.step_span[which]))


def profile(
    paths: Sequence[str | Path],
    *,
    run: Sequence[str] = (),
    cluster: Mapping[str, str] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Profile:
    """Reads profiles and ties them to the spans of a run.

    Args:
        paths: Log directories and files of XSpaces. A file that cannot be read is counted, unless it is the
            only one.
        run: Sources of the run's spans, as `correlate` takes them.
        cluster: Task by address, over what the run says.
        say: Told what is going on, one line at a time.

    Raises:
        UserError: There is no profile, none can be read, or the run cannot.
    """
    files = list(dict.fromkeys(file for path in paths for file in xspace.find(Path(path))))
    known = read_run(run, say) if run else Run()
    reader = _Reader()
    whole = combine(reader.spaces(files), {**known.cluster, **(cluster or {})})
    links = link(whole, known)
    variable, names = variables(whole, known.variables)
    tasks = np.array([host.task for host in whole.hosts], object)[whole.steps.host]
    elsewhere = (links.worker != "") & (tasks != "") & (links.worker != tasks)
    remote = elsewhere | np.array([is_server(task) for task in tasks], np.bool_)
    return Profile(
        whole=whole,
        links=links,
        regions=regions_of(whole, links, known.regions),
        variable=variable,
        variables=names,
        edge=edges_of(whole, variable),
        stale=staleness_of(whole, variable, known.variables, remote),
        run=known,
        skipped=reader.skipped,
        first_skipped=reader.first,
    )


class _Reader:
    """Reads files one after the other, and counts what cannot be read."""

    def __init__(self) -> None:
        self.skipped: dict[str, int] = {}
        self.first: dict[str, str] = {}

    def spaces(self, files: Sequence[Path]) -> Iterator[xspace.Space]:
        """Yields what can be read.

        Raises:
            UserError: Nothing can.
        """
        errors: list[str] = []
        for file in files:
            try:
                space = xspace.read_file(file, without=_NO_OPS, stats=EXECUTOR_STATS)
            except UserError as error:
                errors.append(str(error))
                self._count("unreadable_files", 1, str(error))
                continue
            self._count("bytes_cut_off_or_damaged", space.lacking, str(file))
            self._count("events_without_name_or_time", space.dropped, str(file))
            yield space
        if len(errors) == len(files):
            raise UserError(errors[0] + (f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""))

    def _count(self, reason: str, number: int, example: str) -> None:
        if number:
            self.skipped[reason] = self.skipped.get(reason, 0) + number
            self.first.setdefault(reason, example)
