"""Edges that are set aside, since the rest contradicts them: which, by how much, and why."""

from __future__ import annotations

import dataclasses

import numpy as np

from otel_tf.correlator.columns import Int
from otel_tf.correlator.edges import Edges, Events

__all__ = ["Aside", "Quarantine"]

#: From the most to the least trusted kind of edge, by code: what is set aside when a cycle leaves a choice.
_DOUBT = np.array([0, 2, 3, 4, 5, 1])


@dataclasses.dataclass(frozen=True)
class Quarantine:
    """Edges set aside: which, by how much corrected times contradict them (ns), and why; arrays (Q,)."""

    edges: Edges
    excess_ns: Int
    reason: tuple[str, ...]


class Aside:
    """Which of ``edges`` are set aside, as a mask, and why."""

    def __init__(self, edges: Edges) -> None:
        self.edges = edges
        self.mask = np.zeros(len(edges), dtype=bool)
        self._reason: dict[int, str] = {}

    def put(self, index: Int, reason: str) -> None:
        """Sets edges aside; the first reason stays."""
        new = index[~self.mask[index]]
        self.mask[new] = True
        self._reason.update(dict.fromkeys(new.tolist(), reason))

    def put_numbers(self, numbers: Int, reason: str, spans: int) -> None:
        """Sets edges aside by number; −1 − barrier stands for all that follows the barrier."""
        self.put(numbers[numbers >= 0], reason)
        barriers = numbers[numbers < 0]
        if len(barriers):
            self.put(np.flatnonzero(np.isin(self.edges.src, 2 * spans - 1 - barriers)), reason)

    def put_least_trusted(self, cycle: Int, span_id: Int) -> None:
        """Sets the least trusted edge of a cycle aside; of equals, one that no order of rows changes."""
        src, dst = self.edges.src[cycle], self.edges.dst[cycle]

        def name(event: Events) -> Int:
            # Barriers only need some name, the same every time.
            named: Int = span_id[np.minimum(event >> 1, len(span_id) - 1)]
            return named

        keys = (src & 1, name(src), dst & 1, name(dst), -_DOUBT[self.edges.kind[cycle]])
        self.put(cycle[np.lexsort(keys)[:1]], f"closes a cycle of {len(cycle)} edges")

    def kept(self) -> Edges:
        """Returns the edges that are not set aside."""
        return self.edges.take(~self.mask) if self.mask.any() else self.edges

    def quarantine(self, late_ns: Int) -> Quarantine:
        """Returns what was set aside; ``late_ns`` is by how much it is contradicted, in the edges' order."""
        index = np.flatnonzero(self.mask)
        reasons = tuple(self._reason[number] for number in index.tolist())
        return Quarantine(self.edges.take(index), np.maximum(late_ns, 0), reasons)
