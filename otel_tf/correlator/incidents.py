"""Failures of all workers, grouped into incidents: what failed first, and what only followed.

One failure is told many times: by the op's own process, by every hop on the way back, by each process that
was waiting. Those tellings are one incident if they are of one trace, say the same, or say themselves that
they only follow, soon after. Its root is the earliest in causal order of those that do not.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from otel_tf import semconv
from otel_tf.correlator.columns import integers
from otel_tf.logs.failures import Failure, is_benign, read_failure
from otel_tf.logs.hints import Patterns
from otel_tf.logs.severity import ERROR, WARN

__all__ = ["Event", "events_of_logs", "events_of_spans", "incidents", "places_of"]

#: What follows from a failure does so within that: heartbeats and barriers have their timeouts.
_WINDOW_NS = 120_000_000_000
#: How a failure of another task is told by those that talked to it.
_OF_ANOTHER = frozenset({"UNAVAILABLE", "ABORTED", "CANCELLED", "DEADLINE_EXCEEDED"})
_MOST_DERIVED = 200

_U64 = 0xFFFF_FFFF_FFFF_FFFF

#: Pod and host by task.
Places = Mapping[str, tuple[str | None, str | None]]


@dataclasses.dataclass(frozen=True)
class Event:
    """One telling of a failure.

    Attributes:
        at_ns: Its corrected time; None where only the order is known.
        order: Its place among all tellings of its kind.
        teller: The task that tells.
        step: The step in flight, or that the text names.
        failure: What failed.
        source: ``span`` or ``log``.
        error_ns: Half-width of the time's error bar.
        trace_id, span_id: Hex; None for none.
        pod, host: Of the teller.
        place: ``file:line`` of a log record.
    """

    at_ns: int | None
    order: int
    teller: str | None
    step: int | None
    failure: Failure
    source: str
    error_ns: int | None = None
    trace_id: str | None = None
    span_id: str | None = None
    pod: str | None = None
    host: str | None = None
    place: str | None = None

    @property
    def worker(self) -> str | None:
        """The task where it happened, as far as is known."""
        return self.failure.worker or self.teller

    def as_object(self, places: Places) -> dict[str, Any]:
        """Returns it as JSON has it."""
        own = self.failure.worker in (None, self.teller)
        pod, host = (self.pod, self.host) if own else places.get(self.failure.worker or "", (None, None))
        return {
            "worker": self.worker,
            "op": self.failure.op,
            "error_type": self.failure.error_type,
            "message": self.failure.message,
            "step": self.step,
            "device": self.failure.device,
            "pod": pod,
            "host": host,
            "told_by": self.teller,
            "source": self.source,
            "corrected_ns": self.at_ns,
            "error_ns": self.error_ns,
            "trace_id": self.trace_id,
            "span_id": self.span_id,
            "place": self.place,
        }


def events_of_spans(spans: pa.Table) -> list[Event]:
    """Returns the failures that spans have recorded: one event for each span with an exception.

    Args:
        spans: As `correlate` leaves them.
    """
    failed = spans.filter(pc.equal(spans["status"], 2))
    found = []
    for row in failed.to_pylist():
        said = json.loads(row["attributes"] or "{}")
        message = said.get(semconv.EXCEPTION_MESSAGE)
        if message is None or is_benign(message):
            # The failure itself is on a span below.
            continue
        told = read_failure(message, error_type=said.get(semconv.ERROR_TYPE))
        if told is None:
            continue
        failure = Failure(
            said.get(semconv.ERROR_TYPE) or told.error_type,
            said.get(semconv.ERROR_TEXT) or told.message,
            said.get(semconv.ERROR_NODE) or said.get(semconv.ERROR_OP) or told.op,
            said.get(semconv.ERROR_ORIGIN_WORKER) or told.worker,
            said.get(semconv.ERROR_DEVICE) or told.device,
            bool(said.get(semconv.ERROR_DERIVED)) or told.derived,
        )
        found.append(
            Event(
                # It had failed by its end.
                row["corrected_end_ns"],
                row["order"],
                row["worker"],
                row["global_step"],
                failure,
                "span",
                row["error_ns"],
                f"{row['trace_hi'] & _U64:016x}{row['trace_lo'] & _U64:016x}",
                f"{row['span_id'] & _U64:016x}",
                said.get("k8s.pod.name"),
                said.get(semconv.HOST_NAME),
            )
        )
    return found


def events_of_logs(logs: pa.Table) -> list[Event]:
    """Returns the failures that log records tell of.

    Args:
        logs: Rows of `PLACED`.
    """
    severity = logs["severity"]
    # A warning counts if it passes a status on.
    passed_on = pc.and_(
        pc.greater_equal(severity, WARN), pc.match_substring_regex(logs["body"], r"\b[A-Z_]{5,}: ")
    )
    raised = pc.or_(pc.is_valid(logs["exception_type"]), pc.starts_with(logs["body"], "Traceback "))
    some = logs.filter(pc.or_(pc.or_(pc.greater_equal(severity, ERROR), passed_on), raised))
    patterns = Patterns()
    found = []
    for row in some.to_pylist():
        text = row["body"]
        if row["exception_stacktrace"]:
            text = f"{row['exception_stacktrace']}\n{text}"
        failure = read_failure(text, row["severity"])
        if failure is None:
            continue
        linked = row["span_id"] is not None
        found.append(
            Event(
                row["corrected_ns"],
                row["order"],
                row["worker"],
                row["global_step"] if row["global_step"] is not None else patterns.step(failure.message),
                failure,
                "log",
                row["error_ns"],
                f"{row['trace_hi'] & _U64:016x}{row['trace_lo'] & _U64:016x}" if linked else None,
                f"{row['span_id'] & _U64:016x}" if linked else None,
                row["pod"],
                row["host"],
                f"{row['file']}:{row['line']}" if row["file"] else None,
            )
        )
    return found


def places_of(logs: pa.Table) -> Places:
    """Returns on which pod and host each task is, as its log records say.

    Args:
        logs: Rows of `PLACED` or `LOGS`.
    """
    some = logs.select(["worker", "pod", "host"])
    somewhere = pc.or_(pc.is_valid(some["pod"]), pc.is_valid(some["host"]))
    known = some.filter(pc.and_(pc.is_valid(some["worker"]), somewhere))
    distinct = known.group_by(["worker", "pod", "host"], use_threads=False).aggregate([]).to_pylist()
    # Of a task that was started again, where it was last.
    return {row["worker"]: (row["pod"], row["host"]) for row in distinct}


def incidents(
    events: Sequence[Event], spans: pa.Table | None = None, places: Places | None = None
) -> list[dict[str, Any]]:
    """Returns the incidents, the first one first, as JSON has them.

    Args:
        events: All tellings.
        spans: As `correlate` leaves them; tell who was behind when it happened.
        places: Pod and host of each task, for failures that another one tells of.
    """
    groups: list[list[Event]] = []
    for event in sorted(events, key=_when):
        group = next((group for group in reversed(groups) if _belongs(event, group)), None)
        if group is None:
            groups.append([event])
        else:
            group.append(event)
    return [_incident(group, spans, places or {}) for group in groups]


def _when(event: Event) -> tuple[bool, int, int]:
    return (event.at_ns is None, event.at_ns or 0, event.order)


def _belongs(event: Event, group: list[Event]) -> bool:
    """Returns whether an event tells of the same incident as those before it."""
    root = _root(group)
    last = group[-1]
    near = event.at_ns is None or last.at_ns is None or event.at_ns - last.at_ns <= _WINDOW_NS
    if event.trace_id is not None and any(other.trace_id == event.trace_id for other in group):
        return True
    if not near:
        return False
    failure = event.failure
    if any(_same(failure, other.failure) for other in group):
        return True
    # What only says that somebody else failed follows from what failed last; what passes another error on
    # has a cause of its own, told by others too.
    if any(each.derived and each.error_type in _OF_ANOTHER for each in (failure, root.failure)):
        return True
    # A task that died is told of by all that talked to it.
    return (
        failure.error_type in _OF_ANOTHER
        and root.failure.error_type in _OF_ANOTHER
        and failure.worker is not None
        and failure.worker == root.worker
    )


def _same(one: Failure, other: Failure) -> bool:
    """Returns whether two tellings are of one failure: one may have less of its message than the other."""
    if one.error_type != other.error_type:
        return False
    first, second = (each.message.partition("\n")[0].strip() for each in (one, other))
    return (
        first == second
        or (len(first) > 20 and first in other.message)
        or (len(second) > 20 and second in one.message)
    )


def _root(group: Sequence[Event]) -> Event:
    """Returns the earliest telling that does not follow from another, with what others know of it."""
    first = next((event for event in group if not event.failure.derived), group[0])
    same = [event for event in group if _same(event.failure, first.failure)]

    def known(get: Any) -> Any:
        return next((value for event in [first, *same] if (value := get(event)) is not None), None)

    failure = first.failure._replace(
        op=known(lambda event: event.failure.op),
        worker=known(lambda event: event.failure.worker),
        device=known(lambda event: event.failure.device),
    )
    return dataclasses.replace(
        first,
        failure=failure,
        step=known(lambda event: event.step),
        teller=known(lambda event: event.teller),
        trace_id=known(lambda event: event.trace_id),
        span_id=known(lambda event: event.span_id),
    )


def _incident(group: list[Event], spans: pa.Table | None, places: Places) -> dict[str, Any]:
    root = _root(group)
    first = next((event for event in group if not event.failure.derived), group[0])
    derived: dict[tuple[Any, ...], dict[str, Any]] = {}
    for event in group:
        if event is first:
            continue
        key = (event.teller, event.failure, event.source, event.step)
        if key in derived:
            derived[key]["count"] += 1
        else:
            derived[key] = {**event.as_object(places), "derived": event.failure.derived, "count": 1}
    named = {event.worker for event in group} | {event.teller for event in group}
    return {
        "root": root.as_object(places),
        "derived": list(derived.values())[:_MOST_DERIVED],
        "workers": sorted(name for name in named if name is not None),
        "behind": [] if spans is None or root.at_ns is None else _behind(spans, root.at_ns),
    }


def _behind(spans: pa.Table, at_ns: int) -> list[dict[str, Any]]:
    """Returns the workers that had begun fewer steps than others at a time, the last of all first."""
    step, start = integers(spans["global_step"]), integers(spans["corrected_start_ns"])
    local = integers(spans["local_step"])
    names = spans["name"].cast(pa.string())
    mine = pc.equal(names, semconv.SPAN_TRAIN_STEP).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(mine & (start <= at_ns) & (step >= 0))
    if not len(rows):
        return []
    workers = spans["worker"].take(pa.array(rows)).to_pylist()
    # An asynchronous worker's global steps grow with everybody's: its own count, then.
    counts = local[rows] if (local[rows] >= 0).all() else step[rows]
    at: dict[str, int] = {}
    for worker, count in zip(workers, counts.tolist(), strict=True):
        if worker is not None:
            at[worker] = max(at.get(worker, 0), count)
    most = max(at.values(), default=0)
    slow = [
        {"worker": worker, "step": count, "behind": most - count}
        for worker, count in at.items()
        if count < most
    ]
    return sorted(slow, key=lambda item: (-int(str(item["behind"])), str(item["worker"])))
