"""Comparing clocks without a collective: the chief asks each worker in turn, over the key-value store.

A worker's thread waits for a key, notes the time and sets another; the chief times the round trip. The
smaller it is, the closer it bounds the offset, so a comparison is a few of them.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Any, NamedTuple

from tensorflow.python.eager import context

from otel_tf import ids, semconv
from otel_tf.config import Settings
from otel_tf.identity import Identity
from otel_tf.instrumentation.around import Instant
from otel_tf.instrumentation.multi_worker import key_value
from otel_tf.telemetry import Pipeline, Record, SpanKind

__all__ = ["ClockProbes"]

_ROUNDS = 5
#: How long the chief waits for an answer. A worker that takes longer is asked again the next time.
_ANSWER_S = 1.0
#: A waiting thread looks around now and then, should the word to stop have been lost.
_QUESTION_S = 60.0
_STOP = "stop"


@dataclasses.dataclass(slots=True)
class _Peer:
    """A worker, as the chief knows it."""

    task: str
    number: int = 0
    asked: bool = False


class _Probe(NamedTuple):
    """One side of a round trip."""

    chief: str
    worker: str
    number: int
    begun: Instant
    end_mono_ns: int
    span_id: int
    parent_id: int


class ClockProbes:
    """One process's side of it: the chief's or a worker's.

    Args:
        pipeline: Takes the spans.
        settings: ``clock_probe_interval_ms`` is read.
        identity: Who this process is.
        occasion: Tells the keys from those of an earlier `instrument` in the same processes.
    """

    def __init__(self, pipeline: Pipeline, settings: Settings, identity: Identity, occasion: str) -> None:
        self._pipeline = pipeline
        self._interval_s = settings.clock_probe_interval_ms / 1000
        self._identity = identity
        self._keys = f"{occasion}/clock"
        self._awaited: str | None = None
        chief = identity.is_chief
        self._layout = pipeline.layout(
            semconv.SPAN_CLOCK_PROBE,
            kind=SpanKind.CLIENT if chief else SpanKind.SERVER,
            fields=(semconv.SEQ, semconv.MONOTONIC_NS, semconv.PROBE_PEER),
            constants={semconv.WORKER: identity.task},
            remote_parent=not chief,
        )

    def run(self, stopped: threading.Event) -> None:
        """Asks or answers until ``stopped``; needs the coordination service.

        Raises:
            tf.errors.OpError: The service is gone.
        """
        if not self._interval_s:
            return
        tasks = _tasks(context.context().coordination_service)
        if self._identity.is_chief:
            peers = [_Peer(task) for task in tasks if task != self._identity.task]
            while peers and not stopped.is_set():
                for peer in peers:
                    for _ in range(_ROUNDS):
                        if stopped.is_set() or not self._ask(peer):
                            break
                stopped.wait(self._interval_s)
        else:
            # As TensorFlow chooses it.
            self._answer(stopped, chief="chief:0" if "chief:0" in tasks else "worker:0")

    def wake(self) -> None:
        """Ends the wait of the thread that is in `run`, from another one: by the word it waits for.

        Raises:
            tf.errors.OpError: It is not waiting any more, or the service is gone.
        """
        awaited = self._awaited
        if awaited is not None:
            key_value.put(awaited, _STOP)

    def _key(self, worker: str, number: int) -> str:
        return f"{self._keys}/{worker}/{number}"

    def _ask(self, peer: _Peer) -> bool:
        """Makes one round trip; returns whether the worker answered in time."""
        key = self._key(peer.task, peer.number)
        if peer.asked:
            # It let the last question wait. The answer, should it be there by now, measures nothing.
            if key_value.get(f"{key}/answer", 0.0) is None:
                return False
            self._next(peer, key)
            key = self._key(peer.task, peer.number)
        span_id = ids.random_span_id()
        begun = self._pipeline.now()
        key_value.put(f"{key}/question", f"{span_id:016x}")
        peer.asked = True
        self._awaited = f"{key}/answer"
        answer = key_value.get(self._awaited, _ANSWER_S)
        end_mono_ns = time.monotonic_ns()
        self._awaited = None
        if answer is None or answer == _STOP:
            return False
        self._record(_Probe(self._identity.task, peer.task, peer.number, begun, end_mono_ns, span_id, 0))
        self._next(peer, key)
        return True

    @staticmethod
    def _next(peer: _Peer, key: str) -> None:
        key_value.delete(key)
        peer.number += 1
        peer.asked = False

    def _answer(self, stopped: threading.Event, chief: str) -> None:
        number = 0
        while not stopped.is_set():
            key = self._key(self._identity.task, number)
            self._awaited = f"{key}/question"
            question = key_value.get(self._awaited, _QUESTION_S)
            begun = self._pipeline.now()
            if question is None:
                continue
            if question == _STOP:
                return
            end_mono_ns = time.monotonic_ns()
            key_value.put(f"{key}/answer", "")
            parent_id = int(question, 16)
            self._record(
                _Probe(
                    chief, self._identity.task, number, begun, end_mono_ns, ids.random_span_id(), parent_id
                )
            )
            number += 1

    def _record(self, probe: _Probe) -> None:
        self._pipeline.record_later(self._make, probe)

    def _make(self, probe: _Probe) -> list[Record]:
        run_id = self._pipeline.identity.run_id
        trace_id = ids.trace_id(run_id, "probe", probe.chief, probe.worker, probe.number)
        seq, mono_ns, start_ns = probe.begun
        end_ns = start_ns + probe.end_mono_ns - mono_ns
        peer = probe.worker if self._identity.is_chief else probe.chief
        values = (seq, mono_ns, peer)
        return [
            Record(
                self._layout,
                trace_id,
                probe.span_id,
                probe.parent_id,
                start_ns,
                end_ns,
                values,
                None,
                (),
            )
        ]


def _tasks(service: Any) -> list[str]:
    """Returns the tasks that take part in the coordination service."""
    return [f"{job.name}:{index}" for job in service.coordinated_job_list for index in range(job.num_tasks)]
