"""The traces that Jaeger is to show."""

from __future__ import annotations

import dataclasses
import itertools
import json

from otel_tf import semconv
from otel_tf.correlator import sources
from otel_tf.correlator.sinks.encode_json import json_lines
from otel_tf.correlator.sinks.encode_proto import requests
from otel_tf.correlator.sinks.logical import MOST_SPANS, logical


def spans_of(result):
    """Returns the spans by trace, each as a dictionary, through the JSON writer."""
    found = {}
    for line in json_lines(logical(result)):
        for resource_spans in json.loads(line)["resourceSpans"]:
            resource = {
                pair["key"]: next(iter(pair["value"].values()))
                for pair in resource_spans["resource"]["attributes"]
            }
            for span in resource_spans["scopeSpans"][0]["spans"]:
                attributes = {pair["key"]: next(iter(pair["value"].values())) for pair in span["attributes"]}
                span |= {"attributes": attributes, "resource": resource}
                found.setdefault(span["traceId"], []).append(span)
    return found


def test_a_synchronous_run_is_a_trace_a_step_below_the_chiefs_root(synchronous):
    traces = spans_of(synchronous.result())
    assert len(traces) == 10
    for spans in traces.values():
        roots = [span for span in spans if "parentSpanId" not in span]
        assert [root["name"] for root in roots] == ["step"]
        assert len(spans) == 9
        assert {span["resource"]["service.name"] for span in spans} == {
            f"mnist.logical worker:{w}" for w in range(4)
        }


def test_an_asynchronous_run_is_windows_of_steps_below_roots_of_their_own(asynchronous):
    traces = spans_of(asynchronous.result())
    # 500 closures of three spans are a window; 1,000 would be more than a browser draws well.
    roots = [span for spans in traces.values() for span in spans if "parentSpanId" not in span]
    assert sorted(int(root["attributes"][semconv.GLOBAL_STEP]) for root in roots) == [0, 500]
    for spans in traces.values():
        (root,) = (span for span in spans if "parentSpanId" not in span)
        assert (root["name"], root["resource"]["service.name"]) == ("steps", "mnist.logical")
        assert len(spans) == 1501 <= MOST_SPANS
        services = {span["resource"]["service.name"] for span in spans if span["name"] == "train_step"}
        assert services == {f"mnist.logical worker:{w}" for w in range(3)}
        # A coordinator's span names the worker that it waits for, and is the coordinator's all the same.
        assert {s["resource"]["service.name"] for s in spans if s["name"] == "closure"} == {
            "mnist.logical chief:0"
        }


def test_siblings_start_in_causal_order_a_microsecond_apart_and_children_lie_inside(
    synchronous, asynchronous
):
    for run in (synchronous, asynchronous):
        for spans in spans_of(run.result()).values():
            by_id = {span["spanId"]: span for span in spans}
            families = {}
            for span in spans:
                families.setdefault(span.get("parentSpanId"), []).append(span)
                parent = by_id.get(span.get("parentSpanId"), span)
                assert int(parent["startTimeUnixNano"]) <= int(span["startTimeUnixNano"])
                assert int(span["endTimeUnixNano"]) <= int(parent["endTimeUnixNano"])
            for siblings in families.values():
                siblings.sort(key=lambda span: int(span["startTimeUnixNano"]))
                orders = [int(span["attributes"].get(semconv.LOGICAL_ORDER, -1)) for span in siblings]
                assert orders == sorted(orders)
                micros = [int(span["startTimeUnixNano"]) // 1000 for span in siblings]
                assert all(before < after for before, after in itertools.pairwise(micros))


def test_each_span_tells_what_was_done_to_it_and_where_it_came_from(asynchronous):
    result = asynchronous.result()
    originals = {row["span_id"]: row for row in result.spans.to_pylist()}
    spans = [span for spans in spans_of(result).values() for span in spans if span["name"] != "steps"]
    assert len(spans) == len(originals) == 3000
    for span in spans:
        attributes = span["attributes"]
        original = originals[attributes[semconv.LOGICAL_ORIGINAL_SPAN]]
        assert attributes[semconv.LOGICAL_ORIGINAL_TRACE] == original["trace_id"]
        assert int(attributes[semconv.LOGICAL_ORDER]) == original["order"]
        assert int(attributes[semconv.LOGICAL_SHIFT_NS]) == original["shift_ns"]
        assert int(attributes[semconv.LOGICAL_ERROR_NS]) == original["error_ns"]
        assert attributes[semconv.WORKER] == original["worker"]
        assert int(attributes[semconv.GLOBAL_STEP]) == original["global_step"]
        if span["name"] == "train_step":
            assert int(attributes[semconv.STALENESS]) == original["staleness"]


def test_status_is_kept_and_links_lead_to_logical_spans_of_spans_with_a_parent(asynchronous):
    spans = [span for spans in spans_of(asynchronous.result()).values() for span in spans]
    failed = [span for span in spans if span["status"]["code"] == 2]
    assert [(span["name"], span["status"]["message"]) for span in failed] == [("closure", "lost its worker")]
    assert all("otel.status_description" not in span["attributes"] for span in spans)
    ours = {(span["traceId"], span["spanId"]) for span in spans}
    linked = [span for span in spans if span.get("links")]
    assert len(linked) == 999
    assert all(span["parentSpanId"] for span in linked)
    assert all((link["traceId"], link["spanId"]) in ours for span in linked for link in span["links"])


def test_no_parent_no_links(make_run):
    run = make_run("r")
    run.add("worker:0", "alone", ("a",), trace=("a",), at=(0, 10), links=[(("b",), ("b",))])
    run.add("worker:0", "alone", ("b",), trace=("b",), at=(20, 30))
    spans = [span for spans in spans_of(run.result()).values() for span in spans]
    assert [span.get("links") for span in spans] == [None, None]


def test_more_than_twenty_workers_are_services_by_role(make_run):
    run = make_run("many")
    for w in range(21):
        run.add(f"worker:{w}", "train_step", ("s", w), trace=("step", w), at=(w * 10, w * 10 + 5))
    services = {
        span["resource"]["service.name"] for spans in spans_of(run.result()).values() for span in spans
    }
    assert services == {"mnist.logical worker"}


def test_a_step_larger_than_a_browser_draws_comes_in_parts(make_run):
    run = make_run("large")
    root, trace = ("root",), ("step", 7)
    run.add("worker:0", "step", root, trace=trace, at=(0, 10_000_000), **{"tensorflow.global_step": 7})
    for number in range(4000):
        at = (1000 * number + 10, 1000 * number + 20)
        run.add("worker:0", "MatMul", ("op", number), trace=trace, parent=root, at=at)
    traces = spans_of(run.result())
    assert max(map(len, traces.values())) <= MOST_SPANS
    assert sum(len(spans) for spans in traces.values()) == 4001 + 2  # two parts with roots of their own
    assert all(sum("parentSpanId" not in span for span in spans) == 1 for spans in traces.values())


def test_spans_without_steps_keep_their_trace_and_roots(make_run):
    run = make_run("foreign")
    run.add("web:0", "GET /", ("a",), trace=("t",), at=(0, 900_000), kind=3)
    run.add("web:0", "render", ("b",), trace=("t",), parent=("a",), at=(10_000, 20_000))
    run.add("web:0", "other", ("c",), trace=("u",), at=(30_000, 40_000))
    traces = spans_of(run.result())
    assert sorted(sorted(span["name"] for span in spans) for spans in traces.values()) == [
        ["GET /", "render"],
        ["other"],
    ]


def test_clock_probes_are_for_the_correlator_only(make_run):
    run = make_run("probed")
    step = {"tensorflow.global_step": 1}
    run.add("worker:0", "clock.probe", ("p",), trace=("p",), at=(0, 900_000), kind=3)
    run.add("ps:0", "clock.probe", ("q",), trace=("p",), parent=("p",), at=(400_000, 500_000), kind=2)
    run.add("worker:0", "train_step", ("t",), trace=("t",), at=(1_000_000, 2_000_000), **step)
    result = run.result()
    assert len(result.spans) == 3
    (spans,) = spans_of(result).values()
    assert sorted(span["name"] for span in spans) == ["steps", "train_step"]


def test_a_run_of_probes_alone_has_no_logical_traces(make_run):
    run = make_run("idle")
    run.add("worker:0", "clock.probe", ("p",), trace=("p",), at=(0, 900_000), kind=3)
    assert spans_of(run.result()) == {}


def test_bad_parents_do_not_lose_spans(make_run):
    run = make_run("bad")
    step = {"tensorflow.global_step": 1}
    run.add("worker:0", "x", ("a",), trace=("t",), parent=("b",), at=(0, 10), **step)
    run.add("worker:0", "x", ("b",), trace=("t",), parent=("a",), at=(20, 30), **step)
    run.add("worker:0", "x", ("c",), trace=("t",), parent=("nowhere",), at=(40, 50), **step)
    (spans,) = spans_of(run.result()).values()
    (root,) = (span for span in spans if "parentSpanId" not in span)
    assert sorted(span["name"] for span in spans) == ["steps", "x", "x", "x"]
    assert [span.get("parentSpanId", root["spanId"]) for span in spans] == [root["spanId"]] * 4


def test_a_clock_that_stepped_is_a_warning_on_the_span_it_hit(asynchronous):
    result = asynchronous.result()
    rows = [
        row for row in result.spans.to_pylist() if row["worker"] == "worker:1" and row["name"] == "train_step"
    ]
    hit = rows[10]
    clocks = [
        {**clock, "steps": [{"at_ns": hit["start_ns"] + 5, "size_ns": 20_000_000}]}
        if clock["domain"] == "boot-worker:1"
        else clock
        for clock in result.report["clocks"]
    ]
    stepped = dataclasses.replace(result, report={**result.report, "clocks": clocks})
    warned = [
        (span["attributes"][semconv.LOGICAL_ORIGINAL_SPAN], span["attributes"][semconv.JAEGER_WARNINGS])
        for spans in spans_of(stepped).values()
        for span in spans
        if semconv.JAEGER_WARNINGS in span["attributes"]
    ]
    text = "the clock of boot-worker:1 stepped by +20.000 ms here"
    assert warned == [(hit["span_id"], {"values": [{"stringValue": text}]})]


def test_ids_are_made_of_what_is_written(asynchronous):
    first = logical(asynchronous.result())
    assert logical(asynchronous.result()).traces == first.traces
    # One span more, in the second window of steps: that one's trace is another, with the same spans.
    at = (1_401_000_000, 1_402_000_000)
    asynchronous.add("evaluator:0", "x", ("x",), trace=("x",), at=at, **{"tensorflow.global_step": 700})
    more = logical(asynchronous.result())
    assert [a == b for a, b in zip(first.traces, more.traces, strict=True)] == [True, False]
    assert set(first.span_id.tolist()) < set(more.span_id.tolist())


def test_json_and_protobuf_say_the_same(asynchronous, synchronous, tmp_path):
    for run in (asynchronous, synchronous):
        traces = logical(run.result())
        (tmp_path / "json").write_bytes(b"\n".join(json_lines(traces)))
        frames = [request.payload for request in requests(traces)]
        (tmp_path / "proto").write_bytes(b"".join(len(f).to_bytes(4, "big") + f for f in frames))
        from_json, from_proto = (sources.read([str(tmp_path / name)]) for name in ("json", "proto"))
        by = [("trace_hi", "ascending"), ("trace_lo", "ascending"), ("span_id", "ascending")]
        assert from_json.spans.sort_by(by).to_pylist() == from_proto.spans.sort_by(by).to_pylist()
        assert from_json.links.num_rows == from_proto.links.num_rows
        assert from_json.skipped == from_proto.skipped == {}
