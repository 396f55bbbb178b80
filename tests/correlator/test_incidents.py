"""Which failures are one incident, and which of them is its root."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from otel_tf.correlator.incidents import Event, events_of_logs, events_of_spans, incidents
from otel_tf.correlator.pipeline import correlate_tables
from otel_tf.logs.evidence import arrange
from otel_tf.logs.failures import Failure
from otel_tf.logs.plain import read_plain
from tests.correlator.support import MS, T0, S, ingested


def event(at: int | None, teller: str | None, message: str, kind: str = "INTERNAL", **fields: Any) -> Event:
    step = fields.pop("step", None)
    trace = fields.pop("trace_id", None)
    failure = Failure(
        kind,
        message,
        fields.pop("op", None),
        fields.pop("worker", None),
        fields.pop("device", None),
        fields.pop("derived", False),
    )
    return Event(None if at is None else T0 + at, 0, teller, step, failure, "log", trace_id=trace, **fields)


def test_tellings_of_one_failure_and_what_follows_are_one_incident() -> None:
    found = incidents(
        [
            event(30 * MS, "worker:0", "Step was cancelled", "CANCELLED", derived=True),
            event(10 * MS, "worker:1", "assertion failed: [x]", "INVALID_ARGUMENT"),
            event(
                20 * MS,
                "chief:0",
                "assertion failed: [x]",
                "INVALID_ARGUMENT",
                worker="worker:1",
                op="A",
                step=3,
            ),
        ]
    )
    (one,) = found
    assert {key: one["root"][key] for key in ("worker", "op", "error_type", "message", "step")} == {
        "worker": "worker:1",
        "op": "A",
        "error_type": "INVALID_ARGUMENT",
        "message": "assertion failed: [x]",
        "step": 3,
    }
    assert one["root"]["corrected_ns"] == T0 + 10 * MS
    assert [(item["told_by"], item["derived"]) for item in one["derived"]] == [
        ("chief:0", False),
        ("worker:0", True),
    ]
    assert one["workers"] == ["chief:0", "worker:0", "worker:1"]


def test_the_root_may_come_after_what_only_passes_it_on() -> None:
    (one,) = incidents(
        [
            event(10 * MS, "worker:0", "gone", "CANCELLED", derived=True),
            event(
                11 * MS, "ps:0", "OOM", "RESOURCE_EXHAUSTED", device="/job:ps/replica:0/task:0/device:GPU:1"
            ),
        ]
    )
    assert (one["root"]["worker"], one["root"]["error_type"]) == ("ps:0", "RESOURCE_EXHAUSTED")
    assert one["root"]["device"] == "/job:ps/replica:0/task:0/device:GPU:1"


def test_other_failures_and_later_ones_are_other_incidents() -> None:
    found = incidents(
        [
            event(0, "worker:0", "one thing"),
            event(1 * MS, "worker:1", "another thing"),
            event(500 * S, "worker:0", "one thing"),
        ]
    )
    assert [(one["root"]["worker"], one["root"]["message"]) for one in found] == [
        ("worker:0", "one thing"),
        ("worker:1", "another thing"),
        ("worker:0", "one thing"),
    ]


def test_an_error_that_is_passed_on_belongs_to_its_own_cause() -> None:
    found = incidents(
        [
            event(0, "worker:0", "assertion failed: [x]", "INVALID_ARGUMENT"),
            event(10 * MS, "ps:0", "OOM when allocating tensor", "RESOURCE_EXHAUSTED", derived=True),
            event(20 * MS, "worker:0", "OOM when allocating tensor", "RESOURCE_EXHAUSTED"),
            event(30 * MS, "ps:0", "Cleanup 7", "ABORTED", derived=True),
        ]
    )
    assert [(one["root"]["worker"], one["root"]["error_type"]) for one in found] == [
        ("worker:0", "INVALID_ARGUMENT"),
        ("worker:0", "RESOURCE_EXHAUSTED"),
    ]
    assert [len(one["derived"]) for one in found] == [0, 2]


def test_a_dead_task_is_one_incident_whoever_tells_of_it() -> None:
    (one,) = incidents(
        [
            event(0, "chief:0", "Socket closed", "UNAVAILABLE", worker="worker:1"),
            event(1 * S, "worker:0", "heartbeat timeout", "ABORTED", worker="worker:1"),
        ]
    )
    assert one["workers"] == ["chief:0", "worker:0", "worker:1"]


def test_one_trace_is_one_incident() -> None:
    found = incidents(
        [event(0, "worker:0", "one", trace_id="ab"), event(900 * S, "chief:0", "two", trace_id="ab")]
    )
    assert len(found) == 1


def failing(number: int, worker: str, start: int, end: int, attributes: dict[str, Any]) -> dict[str, Any]:
    return {
        "span_id": number,
        "name": "train_step",
        "process": worker,
        "worker": worker,
        "global_step": number,
        "local_step": number,
        "start_ns": T0 + start,
        "end_ns": T0 + end,
        "status": 2 if attributes else 0,
        "attributes": json.dumps(attributes),
    }


def test_failed_spans_tell_what_seams_have_found_out() -> None:
    error = {
        "error.type": "RESOURCE_EXHAUSTED",
        "exception.message": "OOM when allocating tensor [[{{node MatMul}}]]",
        "tensorflow.error.origin.worker": "worker:1",
        "tensorflow.error.node": "dense/MatMul",
        "tensorflow.error.device": "/job:worker/replica:0/task:1/device:GPU:0",
        "tensorflow.error.text": "OOM when allocating tensor",
    }
    spans = correlate_tables(
        ingested(
            [
                failing(1, "worker:0", 0, 5 * MS, {}),
                failing(2, "worker:0", 6 * MS, 9 * MS, {"error.type": "CANCELLED"}),
                failing(3, "worker:0", 10 * MS, 12 * MS, {}),
                failing(1, "worker:1", 7 * MS, 9 * MS, error) | {"span_id": 9, "global_step": 1},
            ]
        )
    ).spans
    events = events_of_spans(spans)
    # A span that only encloses the failure has no exception of its own.
    assert len(events) == 1
    (one,) = incidents(events, spans)
    root = one["root"]
    assert (root["worker"], root["op"], root["step"]) == ("worker:1", "dense/MatMul", 1)
    assert (root["error_type"], root["message"]) == ("RESOURCE_EXHAUSTED", "OOM when allocating tensor")
    assert root["device"].endswith("GPU:0")
    assert root["corrected_ns"] == T0 + 9 * MS
    # worker:0 had begun two steps by then, worker:1 one.
    assert one["behind"] == [{"worker": "worker:1", "step": 1, "behind": 1}]


#: What went wrong in real runs, as their logs show it: the roots.
ASSERTED = "assertion failed: [boom step] [3] [v] [7]"
NOT_PER_WORKER = (
    "To use this dataset, you need to pass this dataset to ClusterCoordinator.create_per_worker_dataset."
)
SILENT = "The following tasks are unhealthy (stopped sending heartbeats):"
REAL: dict[str, list[tuple[str | int | None, ...]]] = {
    "tf221_pss_closure_assert.stderr.log": [
        ("worker:0", "Assert/AssertGuard/Assert", "INVALID_ARGUMENT", ASSERTED, 3),
        (None, None, "ValueError", NOT_PER_WORKER, None),
    ],
    "tf221_mwms_survivor.stderr.log": [("worker:1", "CollectiveReduceV2", "UNAVAILABLE", SILENT, None)],
    "tf221_pss_worker_killed.stderr.log": [
        ("worker:1", "__inference_ok_64", "UNAVAILABLE", "Socket closed", None)
    ],
    "pss_stderr_ps_0.log": [],
    "pss_stderr_worker_0.log": [],
    "pss_stderr_worker_1.log": [],
    "tfjob_worker0.log": [],
    "horovod_synthetic_interleaved.log": [],
}


@pytest.mark.parametrize("name", REAL)
def test_real_logs(shared_data: Path, name: str) -> None:
    plain = read_plain([str(shared_data / "logs" / name)])
    logs, _ = arrange(plain.logs, plain.file)
    found = incidents(events_of_logs(logs))
    roots = [one["root"] for one in found]
    assert [
        (
            root["worker"],
            root["op"],
            root["error_type"],
            root["message"].partition("\n")[0],
            root["step"],
        )
        for root in roots
    ] == REAL[name]
    if name == "tf221_mwms_survivor.stderr.log":
        assert all(item["derived"] for item in found[0]["derived"])
        assert found[0]["workers"] == ["worker:1"]
    if name == "tf221_pss_closure_assert.stderr.log":
        # Twice told by the two handlers of the coordinator, and twice passed on.
        assert [(item["derived"], item["count"]) for item in found[0]["derived"]] == [
            (True, 1),
            (False, 1),
            (True, 2),
        ]
