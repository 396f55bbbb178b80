"""Events on clocks without steps: what the fit works on."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import numpy.typing as npt

from otel_tf.correlator import pieces
from otel_tf.correlator.columns import Columns, Int
from otel_tf.correlator.crossings import Crossings, Epochs, Together
from otel_tf.correlator.edges import Barriers, Edges, Events, barrier_pairs
from otel_tf.correlator.resolution import resolutions

__all__ = ["ClockStep", "Clockwork", "Timekeeping", "crossings", "leaves", "whole_clocks"]


@dataclasses.dataclass(frozen=True)
class ClockStep:
    """A step: the clock's domain, its reading just before, and by how much it jumped (forward > 0), ns."""

    domain: int
    at_ns: int
    size_ns: int


@dataclasses.dataclass(frozen=True)
class Timekeeping:
    """Clocks without their events.

    Attributes:
        extents: First and last reading of every epoch, steps taken out.
        rank: How many epochs of the same domain come before it (E,).
        taken_ns: What was taken out of an epoch's readings: reading − local (E,).
        steps: Steps that the readings were rid of by the monotonic clock; not those between epochs.
    """

    extents: Epochs
    rank: Int
    taken_ns: Int
    steps: tuple[ClockStep, ...]


@dataclasses.dataclass(frozen=True)
class Clockwork:
    """Events on clocks without steps.

    Attributes:
        epoch: Epoch of every event (2N,).
        local_ns: Reading of every event with the steps taken out, to within what is known of their
            sizes (2N,).
        timeline: Timeline of every span (N,).
        resolution_ns: By how much a timeline's readings may be off for their format (T,).
        unsure_event, unsure_ns: Events that may be on the other side of a step, ascending, and by how much
            more their readings may be off, therefore (U,).
        domain: Domain of every epoch (E,).
        rank: How many epochs of the same domain come before it (E,).
        taken_ns: What was taken out of an epoch's readings: reading − local (E,).
        steps: Steps that the readings were rid of by the monotonic clock; not those between epochs.
    """

    epoch: npt.NDArray[np.int32]
    local_ns: Int
    timeline: npt.NDArray[np.int32]
    resolution_ns: Int
    unsure_event: Int
    unsure_ns: Int
    domain: Int
    rank: Int
    taken_ns: Int
    steps: tuple[ClockStep, ...]

    def summary(self) -> Timekeeping:
        """Returns what is to be known of the clocks when the events are done with."""
        return Timekeeping(self.extents, self.rank, self.taken_ns, self.steps)

    def blur(self, event: Events) -> Int:
        """Returns by how much readings may be off for their format, ns."""
        found: Int = self.resolution_ns[self.timeline[event >> 1]]
        return found

    def unsure(self, event: Events) -> Int:
        """Returns by how much readings may be off because of a step, ns."""
        if not len(self.unsure_event):
            return np.zeros(len(event), dtype=np.int64)
        at = np.minimum(np.searchsorted(self.unsure_event, event), len(self.unsure_event) - 1)
        return np.where(self.unsure_event[at] == event, self.unsure_ns[at], 0)

    @functools.cached_property
    def extents(self) -> Epochs:
        """Returns first and last reading of every epoch."""
        first = np.full(len(self.domain), np.iinfo(np.int64).max, dtype=np.int64)
        last = np.full(len(self.domain), np.iinfo(np.int64).min, dtype=np.int64)
        np.minimum.at(first, self.epoch, self.local_ns)
        np.maximum.at(last, self.epoch, self.local_ns)
        return Epochs(self.domain, first, last)


def whole_clocks(columns: Columns, local: Int, steps: tuple[ClockStep, ...] = ()) -> Clockwork:
    """Returns events on clocks that have not been found to step yet: one epoch a domain.

    Args:
        columns: The spans.
        local: Local time of every event, ns (2N,).
        steps: Steps that local time is rid of already.
    """
    domains = np.arange(len(columns.domains), dtype=np.int64)
    return Clockwork(
        epoch=np.repeat(columns.timeline_domain[columns.timeline], 2),
        local_ns=local,
        timeline=columns.timeline,
        resolution_ns=resolutions(columns),
        unsure_event=np.zeros(0, dtype=np.int64),
        unsure_ns=np.zeros(0, dtype=np.int64),
        domain=domains,
        rank=np.zeros_like(domains),
        taken_ns=np.zeros_like(domains),
        steps=steps,
    )


def leaves(work: Clockwork, met: Barriers, reference: int) -> Together:
    """Returns the leaves of every barrier, each paired with one of its members'.

    That one is on the reference's clock if any is: all meet the same few clocks.
    """
    leave = 2 * met.row + 1
    epoch = work.epoch[leave].astype(np.int64)
    order = np.lexsort((epoch, work.domain[epoch] != reference, met.number))
    first = order[np.searchsorted(met.number[order], np.arange(met.count))]
    hub = first[met.number]
    other = epoch != epoch[hub]
    return Together(
        src_epoch=epoch[other],
        dst_epoch=epoch[hub[other]],
        src_ns=work.local_ns[leave[other]],
        dst_ns=work.local_ns[leave[hub[other]]],
    )


def crossings(work: Clockwork, edges: Edges, met: Barriers) -> Crossings:
    """Returns the edges between clocks, readings' blur allowed for; a barrier's pairs are −1 − barrier."""
    domain, epoch = work.domain, work.epoch

    def apart_by(src: Events, dst: Events) -> npt.NDArray[np.bool_]:
        other: npt.NDArray[np.bool_] = domain[epoch[src]] != domain[epoch[dst]]
        return other

    number = pieces.flatnonzero(len(edges), lambda piece: apart_by(edges.src[piece], edges.dst[piece]))
    number = number.astype(edges.src.dtype, copy=False)
    src, dst, least = edges.src[number], edges.dst[number], edges.min_ns[number]
    if met.count:
        inside = work.local_ns[2 * met.row + 1] - work.local_ns[2 * met.row]
        enter, leave, barrier = barrier_pairs(met, inside)
        apart = apart_by(enter, leave)
        src, dst = np.concatenate([src, enter[apart]]), np.concatenate([dst, leave[apart]])
        number = np.concatenate([number, -1 - barrier[apart]]).astype(number.dtype, copy=False)
        least = np.concatenate([least, np.full(int(apart.sum()), 2, np.int64)])
    found = Crossings(
        src_epoch=np.empty(len(src), dtype=epoch.dtype),
        dst_epoch=np.empty(len(src), dtype=epoch.dtype),
        src_ns=np.empty(len(src), dtype=np.int64),
        dst_ns=np.empty(len(src), dtype=np.int64),
        min_ns=np.empty(len(src), dtype=np.int64),
        unsure_ns=np.zeros(len(src), dtype=np.int64),
        edge=number,
        src=src,
        dst=dst,
    )

    def fill(piece: slice) -> None:
        a, b = src[piece], dst[piece]
        found.src_epoch[piece], found.dst_epoch[piece] = epoch[a], epoch[b]
        found.src_ns[piece], found.dst_ns[piece] = work.local_ns[a], work.local_ns[b]
        found.min_ns[piece] = least[piece] - work.blur(a) - work.blur(b)
        if len(work.unsure_event):
            found.unsure_ns[piece] = work.unsure(a) + work.unsure(b)

    pieces.each(len(src), fill)
    return found
