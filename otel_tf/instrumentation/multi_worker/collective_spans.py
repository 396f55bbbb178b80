"""`collective` spans from stamps: each goes to the step in whose time it lies."""

from __future__ import annotations

import bisect
from collections import defaultdict, deque
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from otel_tf import ids, semconv
from otel_tf.instrumentation.around import Instant
from otel_tf.telemetry import Pipeline, Record

__all__ = ["CollectiveSpans", "Fetched"]

#: Steps that are remembered for collectives still to be fetched.
_MAX_STEPS = 65_536
#: Collectives that may wait for the end of their step.
_MAX_WAITING = 65_536
#: A stamp is float64 seconds, in steps of 0.24 µs, and not read by the code that reads a step's times.
_TOLERANCE_NS = 5_000


class Fetched(NamedTuple):
    """What a fetch found.

    Attributes:
        before_ns: Wall clock before it, ns: the stamps of all steps that had ended by then were there.
        entries: float64 [n, 4], of `ring.push`.
    """

    before_ns: int
    entries: npt.NDArray[np.float64]


class _Step(NamedTuple):
    """The run of a training function, by this process's wall clock."""

    start_ns: int
    end_ns: int
    mono_ns: int
    number: int
    trace_id: int
    span_id: int


class _Collective(NamedTuple):
    start_ns: int
    end_ns: int
    group_key: int
    instance_key: int


class CollectiveSpans:
    """Pairs the stamps of collectives with steps; runs on the flusher's thread only.

    A collective outside of training, such as an evaluation's, lies in no step and gets no span.
    """

    def __init__(self, pipeline: Pipeline, worker: str) -> None:
        self._steps: deque[_Step] = deque(maxlen=_MAX_STEPS)
        self._waiting: list[_Collective] = []
        self._pipeline = pipeline
        self._worker = {semconv.WORKER: worker}
        self._layout = pipeline.layout(
            semconv.SPAN_COLLECTIVE,
            fields=(
                semconv.MONOTONIC_NS,
                semconv.GLOBAL_STEP,
                semconv.COLLECTIVE_GROUP_KEY,
                semconv.COLLECTIVE_INSTANCE_KEY,
            ),
            constants=self._worker,
        )

    def step_ended(self, number: int, begun: Instant, end_mono_ns: int, trace_id: int, span_id: int) -> None:
        """Takes a step whose spans were made; a `step_spans.Follower`."""
        _, mono_ns, start_ns = begun
        end_ns = start_ns + end_mono_ns - mono_ns
        self._steps.append(_Step(start_ns, end_ns, mono_ns, number, trace_id, span_id))

    def make(self, fetched: Fetched) -> list[Record]:
        """Returns the spans of all collectives whose step has ended."""
        steps = sorted(self._steps, key=attrgetter("end_ns"))
        ends = [step.end_ns for step in steps]
        waiting, self._waiting = self._waiting + self._read(fetched.entries), []
        records = []
        # By step: the collectives of one come together, but where it ended in the midst of a fetch.
        waited_ns: dict[int, int] = defaultdict(int)
        for collective in waiting:
            position = bisect.bisect_left(ends, collective.end_ns - _TOLERANCE_NS)
            if position == len(ends):
                self._waiting.append(collective)  # its step goes on
            elif steps[position].start_ns <= collective.start_ns + _TOLERANCE_NS:
                record = self._record(collective, steps[position])
                waited_ns[position] += record.end_ns - record.start_ns
                records.append(record)
        for total_ns in waited_ns.values():
            self._pipeline.metrics.collective_wait.record(total_ns / 1e9, self._worker)
        del self._waiting[:-_MAX_WAITING]
        while self._steps and self._steps[0].end_ns < fetched.before_ns:
            self._steps.popleft()
        return records

    @staticmethod
    def _read(entries: npt.NDArray[np.float64]) -> list[_Collective]:
        times = np.rint(entries[:, :2] * 1e9).astype(np.int64).tolist()
        keys = entries[:, 2:].astype(np.int64).tolist()
        return [_Collective(*both, *pair) for both, pair in zip(times, keys, strict=True)]

    def _record(self, collective: _Collective, step: _Step) -> Record:
        start_ns = max(collective.start_ns, step.start_ns)
        end_ns = min(max(collective.end_ns, start_ns), step.end_ns)
        values = (
            step.mono_ns + start_ns - step.start_ns,
            step.number,
            collective.group_key,
            collective.instance_key,
        )
        return Record(
            self._layout,
            step.trace_id,
            ids.random_span_id(),
            step.span_id,
            start_ns,
            end_ns,
            values,
            None,
            (),
        )
