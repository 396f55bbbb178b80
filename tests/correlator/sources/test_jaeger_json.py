"""Jaeger's legacy JSON, as its UI saves it."""

from __future__ import annotations

import json

from otel_tf.correlator import sources


def read(path):
    return sources.read([str(path)])


def test_what_jaeger_makes_of_an_otlp_trace_reads_as_that_trace(shared_data):
    otlp, legacy = (
        read(shared_data / "jaeger" / f"otlp2jaeger-{end}.json").spans.to_pylist() for end in ("in", "out")
    )
    (attributes,) = [json.loads(row.pop("attributes")) for row in otlp]
    (tags,) = [json.loads(row.pop("attributes")) for row in legacy]
    assert legacy == otlp
    # Jaeger keeps the scope as a tag.
    assert tags == {"otel.scope.name": "telemetrygen", **attributes}


def test_the_uis_own_state_with_processes_inside_spans(shared_data):
    ingested = read(shared_data / "jaeger" / "legacy_ui_trace.json")
    spans = ingested.spans.to_pylist()
    names = {row["span_id"]: row["name"] for row in spans}
    parents = [(row["name"], names.get(row["parent_id"]), row["service"]) for row in spans]
    assert sorted(parents) == [
        ("BikeHandler", "HTTP GET", "ride-sharing-app"),
        ("FindNearestVehicle", "BikeHandler", "ride-sharing-app"),
        ("HTTP GET", "OrderVehicle", "load-generator"),
        ("OrderVehicle", None, "load-generator"),
    ]
    assert min(row["start_ns"] for row in spans) == 1660049722779884000
    assert ingested.skipped == {}


def test_short_ids_other_references_types_and_errors(samples):
    span = {
        "traceID": "abc",
        "spanID": "1",
        "operationName": "closure",
        "startTime": 1_700_000_000_000_000,
        "duration": 7,
        "processID": "p1",
        "references": [
            {"refType": "CHILD_OF", "traceID": "abc", "spanID": "9"},
            {"refType": "FOLLOWS_FROM", "traceID": "def", "spanID": "8"},
        ],
        "tags": [
            {"key": "span.kind", "type": "string", "value": "producer"},
            {"key": "error", "type": "bool", "value": True},
            {"key": "otel.status_description", "type": "string", "value": "boom"},
            {"key": "tensorflow.global_step", "type": "int64", "value": 7},
            {"key": "ratio", "type": "float64", "value": 1},
            {"key": "flag", "type": "bool", "value": False},
        ],
        "logs": [
            {
                "timestamp": 1_700_000_000_000_003,
                "fields": [
                    {"key": "event", "type": "string", "value": "exception"},
                    {"key": "exception.type", "type": "string", "value": "OOM"},
                ],
            },
            {"timestamp": 1_700_000_000_000_004, "fields": [{"key": "event", "value": "retry"}, None]},
            None,
        ],
    }
    process = {"serviceName": "s", "tags": [{"key": "host.name", "type": "string", "value": "h"}]}
    trace = {"traceID": "abc", "spans": [span, {"spanID": "2"}], "processes": {"p1": process}}
    ingested = samples.read({"data": [trace], "total": 0})
    (row,) = ingested.spans.to_pylist()
    assert (row["trace_hi"], row["trace_lo"], row["span_id"], row["parent_id"]) == (0, 0xABC, 1, 9)
    assert (row["kind"], row["status"], row["global_step"], row["domain"]) == (4, 2, 7, "h")
    assert row["end_ns"] - row["start_ns"] == 7000
    assert json.loads(row["attributes"]) == {
        **{"ratio": 1.0, "flag": False, "otel.status_description": "boom", "exception.type": "OOM"},
    }
    assert ingested.links.to_pylist() == [{"row": 0, "trace_hi": 0, "trace_lo": 0xDEF, "span_id": 8}]
    assert ingested.skipped == {"wrong_type": 1}
