"""A profile that is damaged somewhere goes all the way to spans, or is named: no crash, no hang."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_tf.errors import UserError
from otel_tf.profiler import linkage, profile
from otel_tf.profiler.otlp import Json, Proto
from otel_tf.profiler.sinks import encoded
from tests.profiler.pss import Cluster, one_after_another
from tests.profiler.spaces import SpaceOf


def with_everything():
    """Returns an XSpace with something of all that is looked at."""
    space = SpaceOf()
    plane = space.plane()
    main, compute, queue = plane.line("python"), plane.line("tf_Compute/1"), plane.line("collective_ops/1")
    for n in range(4):
        at = 200 * n
        main.add("train_step", at, 190, step_num=n, **linkage(n + 1, n + 9)).add(
            "EagerLocalExecute: __inference_f_1", at + 1, 180
        )
        main.add("FunctionRun", at + 2, 4, id=n - 2).add(
            "EagerExecute", at + 182, 3, eager_op="Relu", is_func=0
        )
        compute.add("ExecutorState::Process", at + 5, 100, id=n - 2).add("layer/MatMul:MatMul", at + 6, 20)
        compute.add("layer/w/Read:ReadVariableOp", at + 30, 2).add(
            "layer/w/Assign:AssignSubVariableOp", at + 40, 2
        )
        compute.add("x/_1:_Send", at + 45, 1, x_from="x", to="y", key=f"a;1;b;x;0:{n}")
        compute.add("cuLaunchKernel", at + 50, 1, correlation_id=n)
        for name, kind in (("sum", "CollectiveReduceV2"), ("x/_2", "_Recv")):
            about = {"x_name": name, "kernel_type": kind, "step_id": n - 2}
            compute.add("ExecutorState::ProcessAsync::Start", at + 60, 1, **about, _p=n)
            queue.add("ExecutorState::ProcessAsync::Done", at + 80, 1, **about, _c=n)
        queue.add("sum:CollectiveReduceV2", at + 62, 9, step_id=n - 2, group_key=1, instance_key=4)
    space.plane("/device:GPU:0").line("Stream #1").add(
        "kernel", 3, 4, correlation_id=1, context_id="$$1", annotation="layer/MatMul:MatMul#", group_id=1
    )
    return space.bytes()


WHOLE = with_everything()


def all_the_way(paths):
    """Returns how many spans come out, or the error."""
    try:
        found = profile(paths)
    except UserError as error:
        return str(error)
    for table in (found.hosts, found.steps, found.ops, found.region_spans, found.edges, found.staleness):
        table.validate(full=True)
    count = 0
    for payload, spans in encoded(found, Proto(), limited=True):
        request = ExportTraceServiceRequest.FromString(payload)
        written = [span for part in request.resource_spans for span in part.scope_spans[0].spans]
        assert len(written) == spans
        assert all(len(span.trace_id) == 16 and len(span.span_id) == 8 for span in written)
        assert all(span.end_time_unix_nano >= span.start_time_unix_nano for span in written)
        count += spans
    assert sum(spans for _, spans in encoded(found, Json())) >= found.ops.num_rows
    assert found.report["op_spans"] == found.ops.num_rows
    return count


def test_what_is_whole_comes_out_whole(tmp_path):
    path = tmp_path / "vm.xplane.pb"
    path.write_bytes(WHOLE)
    found = profile([path])
    # Of each step a product, a read, an apply, a send, a receive, a collective and an eager op; one kernel.
    assert found.report["op_spans"] == 4 * 7 + 1
    assert found.report["linked_steps"] == 4
    assert all_the_way([path]) == 29


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cut=st.one_of(st.just(len(WHOLE)), st.integers(0, len(WHOLE))),
    changes=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=8),
)
def test_damage_anywhere(tmp_path, cut, changes):
    data = bytearray(WHOLE)
    for at, byte in changes:
        data[at] = byte
    path = tmp_path / "vm.xplane.pb"
    path.write_bytes(data[:cut])
    outcome = all_the_way([path])
    assert isinstance(outcome, int) or str(path) in outcome


numbers = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-3, 200))


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    events=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(
                [
                    *("FunctionRun", "ExecutorState::Process", "ExecutorState::ProcessAsync::Start"),
                    *("ExecutorState::ProcessAsync::Done", "EagerExecute", "EagerLocalExecute: f", "step"),
                    *("a/b:Add", "x/_1:_Send", "x/_2:_Recv", "v:ReadVariableOp", "v:AssignAddVariableOp"),
                ]
            ),
            st.integers(0, 60),
            st.integers(0, 30),
            st.dictionaries(
                st.sampled_from(
                    ["id", "step_id", "_p", "_c", "is_func", "step_num", "group_key", "instance_key"]
                ),
                numbers,
                max_size=5,
            ),
            st.dictionaries(
                st.sampled_from(["x_name", "kernel_type", "otel_trace", "otel_span", "eager_op", "key"]),
                st.sampled_from(["t-" + "0" * 31 + "1", "s-" + "0" * 15 + "1", "x/_2", "_Recv", "", "e"]),
                max_size=4,
            ),
        ),
        max_size=25,
    )
)
def test_events_that_no_tensorflow_leaves(tmp_path, events):
    """Steps in steps, ends before starts, keys that repeat, texts where numbers should be."""
    space = SpaceOf()
    plane = space.plane()
    lines = [plane.line(f"thread/{n}") for n in range(3)]
    for line, name, start, duration, integers, texts in events:
        stats = {key: int(np.int64(value)) for key, value in integers.items()} | texts
        lines[line].add(name, start, duration, **stats)
    outcome = all_the_way([space.write(tmp_path / "vm.xplane.pb")])
    assert isinstance(outcome, int)


def test_a_damaged_file_does_not_take_the_others_with_it(tmp_path):
    session = Cluster(one_after_another(4)).write(tmp_path)
    whole = profile([session]).report
    file = session / "ps-1.xplane.pb"
    file.write_bytes(b"hello")
    (session / "ps-0.xplane.pb").touch()
    found = profile([session]).report
    assert found["files"] == whole["files"] - 1
    assert found["skipped"] == {"unreadable_files": 1}
    assert str(file) in found["first_skipped"]["unreadable_files"]
