"""Steps of one worker of many that share parameter servers, each in a process of its own.

Nobody counts for all of them: the global step is what the run itself fetched, as it was read while the
step ran. Each step has a trace of its own, H(run id, worker, local step), and no other root.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, NamedTuple

from otel_tf import ids, semconv
from otel_tf.identity import Identity
from otel_tf.instrumentation.around import Instant
from otel_tf.instrumentation.profiler import link
from otel_tf.instrumentation.steps import Steps
from otel_tf.telemetry import Pipeline, Record, SpanError

__all__ = ["AsyncSteps"]


class _Facts(NamedTuple):
    begun: Instant
    end_mono_ns: int
    local: int
    global_step: int | None
    rewound_from: int | None
    error: SpanError | None
    incarnation: str


class AsyncSteps:
    """Numbers and writes them."""

    def __init__(self, pipeline: Pipeline, identity: Identity, steps: Steps) -> None:
        self._pipeline = pipeline
        self._steps = steps
        self._task = identity.task
        self._lock = threading.Lock()
        self._local = 0
        self._last: int | None = None
        self._worker = {semconv.WORKER: identity.task}
        self._layout = pipeline.layout(
            semconv.SPAN_TRAIN_STEP,
            fields=(
                semconv.SEQ,
                semconv.MONOTONIC_NS,
                semconv.GLOBAL_STEP,
                semconv.LOCAL_STEP,
                semconv.STEP_REWOUND_FROM,
            ),
            constants=self._worker,
        )
        _all.add(self)

    def finish(
        self,
        begun: Instant,
        end_mono_ns: int,
        global_step: int | None,
        error: BaseException | None = None,
        mark: Any = None,
    ) -> None:
        """Counts a step that has ended and leaves it to be written.

        Args:
            begun: The instant it began.
            end_mono_ns: Monotonic ns when it ended.
            global_step: What the run fetched of it, where it did.
            error: What it failed with.
            mark: Its event in the profile, to be ended, while one is taken.
        """
        with self._lock:
            self._local += 1
            local = self._local
            rewound_from = None
            if global_step is not None:
                if self._last is not None and global_step < self._last:
                    rewound_from = self._last
                self._last = self._steps.at = global_step
        problem = None if error is None else self._steps.problem(error)
        facts = _Facts(begun, end_mono_ns, local, global_step, rewound_from, problem, self._steps.incarnation)
        if mark is not None:
            trace_id, span_id = self._ids(facts) if self._pipeline.named.is_set() else (0, 0)
            link.end_step(mark, global_step, trace_id, span_id)
        self._steps.durations_ns.append(end_mono_ns - begun[1])
        self._pipeline.record_later(self._make, facts)
        if error is not None:
            self._pipeline.hurry()

    def _ids(self, facts: _Facts) -> tuple[int, int]:
        run_id = self._pipeline.identity.run_id
        return (
            ids.trace_id(run_id, self._task, facts.local),
            ids.span_id(run_id, facts.incarnation, "session", facts.local),
        )

    def _make(self, facts: _Facts) -> list[Record]:
        seq, mono_ns, start_ns = facts.begun
        self._pipeline.metrics.step_duration.record((facts.end_mono_ns - mono_ns) / 1e9, self._worker)
        return [
            Record(
                self._layout,
                *self._ids(facts),
                0,
                start_ns,
                start_ns + facts.end_mono_ns - mono_ns,
                (seq, mono_ns, facts.global_step, facts.local, facts.rewound_from),
                facts.error,
                (),
            )
        ]


_all: weakref.WeakSet[AsyncSteps] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for steps in list(_all):
        steps._lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
