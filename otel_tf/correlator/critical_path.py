"""The critical path to an event: walking back to whatever finished last among what had to come before."""

from __future__ import annotations

import dataclasses

import numpy as np

from otel_tf.correlator.columns import Int
from otel_tf.correlator.edges import LINK, Edges

__all__ = ["CriticalPath", "Leg"]


@dataclasses.dataclass(frozen=True)
class Leg:
    """A stretch of the path.

    Attributes:
        row: Span that the time was spent in; of a leg between two spans, the later one.
        begin_ns, end_ns: Corrected times.
        tied: Whether something else finished within the error bars of what it waited for: the path may
            as well have gone there.
    """

    row: int
    begin_ns: int
    end_ns: int
    tied: bool


class CriticalPath:
    """Answers which way a run's events led up to one of them.

    An end waits for its own start and for its edges' sources (children, callees, the last one to enter a
    barrier); a start waits for its edges' sources and for the latest sibling that had ended by then.

    Args:
        edges: Accepted edges between events of spans.
        time_ns: Corrected time of every event, ns (2N,).
        error_ns: Half-width of its bar (2N,).
    """

    def __init__(self, edges: Edges, time_ns: Int, error_ns: Int) -> None:
        self._time = time_ns
        self._error = error_ns
        order = np.argsort(edges.dst, kind="stable")
        self._sources = edges.src[order]
        self._first = np.searchsorted(edges.dst[order], np.arange(len(time_ns) + 1))
        # Children by parent, for siblings: edges between the starts of spans.
        starts = ((edges.src | edges.dst) & 1 == 0) & (edges.kind < LINK)
        parent, child = edges.src[starts] >> 1, edges.dst[starts] >> 1
        self._parent = np.full(len(time_ns) // 2, -1, dtype=np.int64)
        self._parent[child] = parent
        by_parent = np.lexsort((time_ns[2 * child + 1], parent))
        self._children = child[by_parent]
        self._family = np.searchsorted(parent[by_parent], np.arange(len(time_ns) // 2 + 1))

    def to(self, event: int, *, since_ns: int | None = None) -> list[Leg]:
        """Returns the path to ``event``, first leg first.

        Args:
            event: The event it ends with, e.g. the end of a step: 2·row + 1.
            since_ns: Where to stop; default: where nothing came before.
        """
        legs: list[Leg] = []
        while True:
            causes = self._causes(event)
            if not len(causes):
                break
            best = causes[np.lexsort((causes, self._time[causes]))[-1]]
            others = causes[causes != best]
            # Own start is where a span's own work began; being close to that is no tie.
            others = others[others != event - 1] if event & 1 else others
            slack = self._time[best] - self._time[others] - self._error[others] - self._error[best]
            tied = bool((slack < 0).any()) and not (event & 1 and best == event - 1)
            begin = int(self._time[best])
            legs.append(Leg(event >> 1, begin, int(self._time[event]), tied))
            event = int(best)
            if since_ns is not None and begin <= since_ns:
                break
        return legs[::-1]

    def _causes(self, event: int) -> Int:
        causes: Int = self._sources[self._first[event] : self._first[event + 1]]
        row = event >> 1
        if event & 1:
            causes = np.append(causes, event - 1)
        else:
            causes = np.concatenate([causes, self._sibling_before(row)])
        earlier: Int = causes[self._time[causes] <= self._time[event]]
        return earlier

    def _sibling_before(self, row: int) -> Int:
        """Returns the end of the sibling that ended last before ``row`` started, as an array of 0 or 1."""
        parent = self._parent[row]
        if parent < 0:
            return np.zeros(0, dtype=np.int64)
        family = self._children[self._family[parent] : self._family[parent + 1]]
        at = int(np.searchsorted(self._time[2 * family + 1], self._time[2 * row], side="right"))
        earlier: Int = 2 * family[:at][family[:at] != row][-1:] + 1
        return earlier
