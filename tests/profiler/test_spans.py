"""What is written: ops below their steps and regions, with who, when and where; in Jaeger not too many."""

from __future__ import annotations

import json
import re
import time

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_tf.correlator import correlate
from otel_tf.correlator.sinks import check
from otel_tf.errors import UserError
from otel_tf.profiler import linkage, profile
from otel_tf.profiler.limit import longest
from otel_tf.profiler.otlp import Json, Proto
from otel_tf.profiler.regions import scope_of
from otel_tf.profiler.sinks import KINDS, encoded, write, write_run
from otel_tf.profiler.spans import op_spans
from tests.jaeger_ui import traces_of
from tests.profiler.pss import Cluster, one_after_another
from tests.profiler.spaces import SpaceOf, shared
from tests.profiler.test_link import RUN
from tests.profiler.test_link import write_run as write_spans


def spans_of(found, **options):
    """Returns all spans as objects with their attributes and those of their resource."""
    spans = []
    for payload, _ in encoded(found, Proto(), **options):
        for resource in ExportTraceServiceRequest.FromString(payload).resource_spans:
            about = {pair.key: value_of(pair.value) for pair in resource.resource.attributes}
            for span in resource.scope_spans[0].spans:
                attributes = {pair.key: value_of(pair.value) for pair in span.attributes}
                spans.append((span, attributes, about))
    return spans


def value_of(value):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(item) for item in value.array_value.values]
    return getattr(value, kind)


def add_region_spans(folder, scopes):
    """Adds the spans of regions that were built into a graph."""
    spans = []
    for number, (scope, name) in enumerate(scopes.items()):
        pairs = {"tensorflow.region.scope": scope, "tensorflow.region.name": name}
        spans.append(
            {
                "traceId": f"{1:032x}",
                "spanId": f"{number + 1:016x}",
                "name": "trace_region",
                "kind": 1,
                "startTimeUnixNano": "1700000000000000000",
                "endTimeUnixNano": "1700000000000000001",
                "attributes": [{"key": k, "value": {"stringValue": v}} for k, v in pairs.items()],
            }
        )
    attributes = [
        {"key": "tensorflow.run.id", "value": {"stringValue": RUN}},
        {"key": "service.instance.id", "value": {"stringValue": f"{RUN}/chief:0"}},
    ]
    line = {"resourceSpans": [{"resource": {"attributes": attributes}, "scopeSpans": [{"spans": spans}]}]}
    (folder / "chief-0.2.traces.jsonl").write_text(json.dumps(line) + "\n")


@pytest.fixture
def found(tmp_path):
    cluster = Cluster(one_after_another(6), skew_us={"worker:1": 5e6})
    run = write_spans(tmp_path / "run", cluster)
    add_region_spans(run, {"layer": "dense", "layer/w": "weights"})
    return profile([cluster.write(tmp_path)], run=[str(run)])


def test_every_op_hangs_under_its_step_or_its_region(found):
    spans = spans_of(found)
    by_id = {(span.trace_id, span.span_id): span for span, _, _ in spans}
    steps = {(row["trace_id"], row["span_id"]) for row in found.steps.to_pylist()}
    assert len(by_id) == len(spans)
    for span, attributes, _ in spans:
        key = (span.trace_id, span.parent_span_id)
        assert key in steps or by_id[key].name == "region"
        assert ("tensorflow.region.name" in attributes) == (span.name == "region" or key not in steps)
    assert all(attributes["tensorflow.profiler.session"] == "now" for _, attributes, _ in spans)


def test_op_region_step_and_worker_can_be_read_from_an_op(found):
    rows = {
        (attributes["tensorflow.op.name"], about["service.instance.id"]): attributes
        for span, attributes, about in spans_of(found)
        if "tensorflow.op.name" in attributes and attributes["tensorflow.global_step"] == 1
    }
    read = rows["layer/w/Read", f"{RUN}/ps:0"]
    assert read == {
        "tensorflow.op.name": "layer/w/Read",
        "tensorflow.op.type": "ReadVariableOp",
        "tensorflow.device": "/device:CPU:0",
        "tensorflow.worker": "ps:0",
        "tensorflow.profiler.session": "now",
        "tensorflow.region.name": "weights",
        "tensorflow.step.worker": "worker:0",
        "tensorflow.global_step": 1,
        "tensorflow.profiler.step_id": 1000,
    }
    gradient = rows["gradient_tape/layer/MatMul", f"{RUN}/worker:0"]
    assert gradient["tensorflow.region.name"] == "dense"
    assert gradient["tensorflow.worker"] == "worker:0"
    assert "tensorflow.step.worker" not in gradient
    applied = rows["layer/w/Assign", f"{RUN}/ps:0"]
    assert applied["tensorflow.staleness.source"] == "profile"
    assert applied["tensorflow.staleness"] >= 0


def test_kinds_and_links_of_sends_and_receives(found):
    spans = {(span.trace_id, span.span_id): span for span, _, _ in spans_of(found)}
    receives = [span for span in spans.values() if span.name == "_Recv"]
    assert len(receives) == 24
    for span in receives:
        (link,) = span.links
        send = spans[link.trace_id, link.span_id]
        assert (span.kind, send.name, send.kind) == (5, "_Send", 4)
        assert send.trace_id == span.trace_id
    assert {span.kind for span in spans.values() if span.name == "MatMul"} == {1}


def test_resources_are_those_of_the_run(found):
    resources = {about["service.instance.id"]: about for _, _, about in spans_of(found)}
    assert set(resources) == {f"{RUN}/{task}" for task in ("worker:0", "worker:1", "ps:0", "ps:1")}
    worker = resources[f"{RUN}/worker:1"]
    assert worker["service.name"] == "mnist"
    assert worker["tensorflow.clock.domain"] == "clock-worker:1"
    assert worker["tensorflow.run.id"] == RUN
    assert (worker["tensorflow.task.type"], worker["tensorflow.task.index"]) == ("worker", 1)
    # Nothing says which clock a parameter server has: it is one of its own.
    assert resources[f"{RUN}/ps:0"]["tensorflow.clock.domain"] == f"{RUN}/ps:0"


def test_regions_nest_and_are_as_long_as_their_ops_on_their_worker(found):
    regions = found.region_spans.to_pylist()
    assert len(regions) == 2 * 6
    tasks, ops, steps = found.hosts["task"].to_pylist(), found.ops.to_pylist(), found.steps.to_pylist()
    for number, region in enumerate(regions):
        assert tasks[region["host"]] == steps[region["step"]]["worker"]
        if region["name"] == "weights":
            assert regions[region["parent"]]["name"] == "dense"
            assert steps[regions[region["parent"]]["step"]]["span_id"] == steps[region["step"]]["span_id"]
        else:
            assert region["parent"] == -1
        inside = {number} | {n for n, other in enumerate(regions) if other["parent"] == number}
        mine = [op for op in ops if op["region"] in inside and op["host"] == region["host"]]
        assert region["start_ns"] == min(op["start_ns"] for op in mine)
        assert region["end_ns"] == max(op["end_ns"] for op in mine)


@pytest.mark.parametrize(
    ("op", "scope"),
    [
        ("attention/MatMul", "attention"),
        ("gradient_tape/attention/MatMul/MatMul", "attention"),
        ("gradients/attention/MatMul_grad/MatMul", "attention"),
        ("StatefulPartitionedCall/gradient_tape/attention/ReluGrad", "attention"),
        ("replica_1/encoder/attention/softmax/Exp", "encoder/attention/softmax"),
        ("attention/softmax", "attention"),  # an op's own name is no scope
        ("attention", None),
        ("attention_1/MatMul", "attention_1"),
        ("my_attention/MatMul", None),
        ("encoder/other/attention_2/MatMul", None),
    ],
)
def test_an_op_lies_in_the_longest_scope_that_its_name_has(op, scope):
    scopes = (
        "attention",
        "attention_1",
        "encoder/attention",
        "encoder/attention/softmax",
        "attention/softmax",
    )
    found = scope_of(op, scopes)
    assert (scopes[found] if found >= 0 else None) == scope


def many_ops(tmp_path, count, steps=2, nested=False):
    space = SpaceOf()
    plane = space.plane()
    main, worker = plane.line("python"), plane.line("tf_Compute/1")
    for step in range(steps):
        at = 10_000 * step
        main.add("train_step", at, 9_000, step_num=step, **linkage(step + 1, step + 101))
        main.add("FunctionRun", at + 1, 10, id=step + 1)
        worker.add("ExecutorState::Process", at + 20, 8_000, id=step + 1)
        if nested:
            worker.add("while:While", at + 21, 0.001 if nested == "short" else 7_900)
        for n in range(count):
            worker.add(f"op_{n}:{'Mul' if n % 3 else 'Add'}", at + 30 + n, 0.1 + (n * 7 % count) / 1e3)
    return profile([space.write(tmp_path / "vm.xplane.pb")])


def test_jaeger_gets_the_longest_of_a_step_and_sums_of_the_rest(tmp_path, monkeypatch):
    monkeypatch.setattr("otel_tf.profiler.limit.MOST_OPS", 10)
    found = many_ops(tmp_path, 50)
    everything, shown = spans_of(found), spans_of(found, limited=True)
    assert len(everything) == 100
    ops = [span for span, attributes, _ in shown if "tensorflow.op.name" in attributes]
    sums = [(span, attributes) for span, attributes, _ in shown if span.name == "function_run"]
    assert (len(ops), len(sums), len(shown)) == (20, 2, 22)
    by_length = sorted(
        (span.end_time_unix_nano - span.start_time_unix_nano for span, _, _ in everything), reverse=True
    )
    assert min(span.end_time_unix_nano - span.start_time_unix_nano for span in ops) >= by_length[20]
    for span, attributes in sums:
        left = [
            other
            for other, _, _ in everything
            if other.trace_id == span.trace_id and other.span_id not in {op.span_id for op in ops}
        ]
        assert attributes["tensorflow.profiler.omitted.ops"] == len(left) == 40
        counts = dict(
            zip(
                attributes["tensorflow.profiler.omitted.types"],
                attributes["tensorflow.profiler.omitted.counts"],
                strict=True,
            )
        )
        assert counts == {kind: sum(other.name == kind for other in left) for kind in ("Add", "Mul")}
        total = sum(other.end_time_unix_nano - other.start_time_unix_nano for other in left) / 1e9
        assert sum(attributes["tensorflow.profiler.omitted.durations"]) == pytest.approx(total)
        assert int.from_bytes(span.parent_span_id, "big") == attributes["tensorflow.global_step"] + 101
        assert span.span_id not in {op.span_id for op in ops}


def test_what_hangs_under_an_op_that_is_left_out_moves_up(tmp_path):
    found = many_ops(tmp_path, 8, nested=True)
    whole = found.whole
    spans = op_spans(found)
    outer = np.flatnonzero(np.array([whole.words[name] == "while" for name in whole.ops.name]))
    inner = np.flatnonzero(whole.ops.parent >= 0)
    assert len(inner) == 16
    assert set(spans.parent[inner]) == set(spans.span[outer])
    whole.ops.end_ns[outer] = whole.ops.start_ns[outer]  # now it is the shortest
    rows, shown = longest(found, spans, 8)
    assert set(outer) & set(rows) == set()
    assert set(shown.parent[rows]) == {101, 102}


def test_times_that_are_not_wall_clock_are_marked():
    found = profile([shared("tf2_gpu_multi_worker")])
    spans = spans_of(found)
    assert {attributes.get("tensorflow.time.source") for _, attributes, _ in spans} == {"relative"}
    assert found.report["absolute_time"] is False
    keys = {key for _, attributes, _ in spans for key in attributes}
    assert keys >= {
        "tensorflow.profiler.group_id",
        "tensorflow.profiler.correlation_id",
        "tensorflow.profiler.context_id",
        "tensorflow.profiler.step_id",
    }
    # Kernels that nothing ties to a run are below the profile itself.
    roots = [span for span, _, _ in spans if not span.parent_span_id]
    assert {span.name for span in roots} == {"function_run", "profile"}


def test_another_frameworks_profile_is_one_trace():
    found = profile([shared("jax_gemm")])
    spans = spans_of(found)
    (root,) = [span for span, _, _ in spans if not span.parent_span_id]
    assert root.name == "profile"
    assert len(spans) == 55
    assert all(span.parent_span_id == root.span_id for span, _, _ in spans if span is not root)
    assert all(attributes.get("tensorflow.time.source") is None for _, attributes, _ in spans)


def test_json_and_protobuf_have_the_same_spans(found):
    lines = [json.loads(line) for line, _ in encoded(found, Json())]
    in_json = {
        (
            span["traceId"],
            span["spanId"],
            span.get("parentSpanId", ""),
            span["name"],
            span["startTimeUnixNano"],
        )
        for line in lines
        for span in line["resourceSpans"][0]["scopeSpans"][0]["spans"]
    }
    in_proto = {
        (
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.name,
            str(span.start_time_unix_nano),
        )
        for span, _, _ in spans_of(found)
    }
    assert in_json == in_proto


def test_the_correlator_reads_them_with_the_run_and_finds_the_clocks(tmp_path, found):
    write_run(found, tmp_path / "run", lambda _: None)
    for note in ("cluster", "graph"):  # they are for profiles, and nothing is wrong with them
        (tmp_path / "run" / f"chief-0.1.{note}.json").write_text('{"function": "f", "variables": {}}\n')
    result = correlate(str(tmp_path / "run"), reference=f"{RUN}/ps:0")
    assert result.report["quarantined"] == []
    assert result.report["violations"] == 0
    assert result.report["skipped"] == {}
    (ahead,) = [clock for clock in result.report["clocks"] if clock["domain"] == "clock-worker:1"]
    # The made-up worker's clock is 5 s ahead; sends and receives alone tell it.
    assert abs(abs(ahead["offset_ns"]) - 5e9) < 1e6
    told = result.correlated.filter(
        np.array(
            [source == "profile" for source in result.correlated["staleness_source"].to_pylist()], np.bool_
        )
    )
    steps = [row for row in told.to_pylist() if row["name"] == "train_step"]
    assert len(steps) == 6
    by_step = {}
    for row in found.staleness.to_pylist():
        step = found.steps["global_step"][row["step"]].as_py()
        by_step[step] = max(by_step.get(step, 0), row["staleness"])
    assert {row["global_step"]: row["staleness"] for row in steps} == by_step


def test_the_run_directory_has_a_file_a_session(tmp_path):
    first = Cluster(one_after_another(3)).write(tmp_path / "a")
    second = first.rename(first.parent / "earlier")
    Cluster(one_after_another(2)).write(tmp_path / "a")
    both = profile([tmp_path / "a"])
    write_run(both, tmp_path, lambda _: None)
    written = {path.name: path.read_bytes() for path in tmp_path.glob("*.ops.jsonl")}
    assert written.keys() == {"earlier.ops.jsonl", "now.ops.jsonl"}
    # Reading one of them alone writes the same again, not other spans beside it.
    write_run(profile([second]), tmp_path, lambda _: None)
    assert (tmp_path / "earlier.ops.jsonl").read_bytes() == written["earlier.ops.jsonl"]
    sessions = {
        name: set(re.findall(rb'profiler.session","value":{"stringValue":"(\w+)', data))
        for name, data in written.items()
    }
    assert sessions == {"earlier.ops.jsonl": {b"earlier"}, "now.ops.jsonl": {b"now"}}


def test_parquet_has_the_tables(tmp_path, found):
    import pyarrow.parquet as pq

    write(found, f"parquet={tmp_path / 'out'}", lambda _: None)
    for name, table in (("ops", found.ops), ("edges", found.edges), ("regions", found.region_spans)):
        assert pq.read_table(tmp_path / "out" / f"{name}.parquet").num_rows == table.num_rows > 0


def test_events_are_there_as_they_are_in_the_files(found):
    events = found.events
    assert events.num_rows == sum(row["events"] for row in found.hosts.to_pylist())
    rows = [row for row in events.to_pylist() if row["type"] == "_Send"]
    assert len(rows) == 24
    assert {row["to"] for row in rows} == {"layer/MatMul", "layer/w/Assign", "layer/b/Assign"}
    assert all("layer/" in row["from"] and row["key"].endswith(";0:0") for row in rows)
    assert all(row["otel_trace"] is None for row in rows)


@pytest.mark.parametrize("spec", ["otlp", "otlp=", "perfetto=x", "jaeger=ftp://x", "jaeger=http://h:16686"])
def test_a_sink_that_cannot_be_is_said_no_to_at_once(spec):
    with pytest.raises(UserError):
        check(spec, KINDS)


def test_ops_reach_jaeger(jaeger, found):
    running = jaeger()
    write(found, f"jaeger={running.otlp_http}", lambda _: None)
    trace_id = found.steps["trace_id"][0].as_py().hex()
    of_service = {about["service.name"] for _, _, about in spans_of(found)}
    assert of_service == {"mnist"}
    wanted = {
        span.span_id.hex() for span, _, _ in spans_of(found, limited=True) if span.trace_id.hex() == trace_id
    }
    assert len(wanted) > 8
    deadline = time.monotonic() + 20
    while True:  # what was sent shows a moment later, a request after another
        (trace,) = [each for each in traces_of(running, "mnist", 6) if each["traceID"] == trace_id]
        there = {span["spanID"] for span in trace["spans"]}
        if there == wanted or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    assert there == wanted
