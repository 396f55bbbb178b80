"""Ops and runs of functions are found where TensorFlow's executor leaves them."""

from __future__ import annotations

import pytest

from otel_tf.profiler.executor import NONE, read_ops
from otel_tf.profiler.xspace import read_file
from tests.profiler.spaces import SpaceOf, shared


@pytest.fixture
def read(tmp_path):
    def run(space):
        found = read_ops(read_file(space.write(tmp_path / "vm.xplane.pb")))
        words = (*found.words, None)
        rows = [
            {
                "step": int(found.step_id[step]) if step >= 0 else None,
                "name": words[name],
                "type": words[kind],
                "at": (start / 1e6, end / 1e6),
                "parent": words[found.name[parent]] if parent >= 0 else None,
                "device": words[device],
                "ended": bool(ended),
            }
            for step, name, kind, start, end, parent, device, ended in zip(
                found.step,
                found.name,
                found.type,
                found.start_ps,
                found.end_ps,
                found.parent,
                found.device,
                found.ended,
                strict=True,
            )
        ]
        return found, rows

    return run


def test_an_op_is_of_the_run_whose_events_are_around_it(read):
    space = SpaceOf()
    plane = space.plane()
    main, worker = plane.line("python"), plane.line("tf_Compute/1")
    main.add("EagerLocalExecute: __inference_f_1", 0, 100).add("FunctionRun", 5, 10, id=-7)
    worker.add("ExecutorState::Process", 20, 30, id=-7).add("a/MatMul:MatMul", 22, 5).add("Loop", 23, 1)
    worker.add("ExecutorState::Process", 60, 10, id=8).add("Mul:Mul", 61, 1)
    worker.add("EagerService:Enqueue", 80, 5).add("b/Add:Add", 90, 1)  # in no run
    found, rows = read(space)
    assert [(row["step"], row["name"], row["type"], row["at"]) for row in rows] == [
        (-7, "a/MatMul", "MatMul", (22, 27)),
        (8, "Mul", "Mul", (61, 62)),
    ]
    assert [row["device"] for row in rows] == ["/device:CPU:0"] * 2
    assert found.step_id.tolist() == [-7, 8]
    assert [found.words[word] if word >= 0 else None for word in found.function] == ["__inference_f_1", None]
    # From the call, since parts elsewhere may begin before the function does here.
    assert (found.step_start_ps[0], found.step_end_ps[0]) == (0, 100e6)


def test_an_op_that_waits_is_from_its_start_to_its_end_on_another_thread(read):
    space = SpaceOf()
    plane = space.plane()
    compute, queue = plane.line("tf_Compute/1"), plane.line("queue")
    about = {"x_name": "x/_2", "kernel_type": "_Recv", "step_id": 3}
    compute.add("ExecutorState::Process", 0, 9, id=3)
    compute.add("ExecutorState::ProcessAsync::Start", 1, 2, **about, _p=11)
    compute.add("ExecutorState::ProcessAsync::Start", 4, 2, **about, _p=12)
    queue.add("ExecutorState::ProcessAsync::Done", 30, 2, **about, _c=12)
    queue.add("ExecutorState::ProcessAsync::Done", 20, 2, **about, _c=11)
    queue.add("ExecutorState::ProcessAsync::Done", 40, 2, **{**about, "step_id": 4}, _c=13)
    compute.add("ExecutorState::ProcessAsync::Start", 7, 1, **about, _p=14)
    _, rows = read(space)
    assert [(row["step"], row["at"], row["ended"]) for row in rows] == [
        (3, (1, 22), True),
        (3, (4, 32), True),
        (3, (7, 8), False),  # its end is outside the profile
        (4, (40, 42), True),  # its start is
    ]
    assert {row["name"] for row in rows} == {"x/_2"}


def test_an_op_around_its_own_start_is_one_op(read):
    space = SpaceOf()
    plane = space.plane()
    compute, queue = plane.line("tf_Compute/1"), plane.line("queue")
    compute.add("ExecutorState::Process", 0, 9, id=3).add("x/_2:_Recv", 1, 4)
    about = {"x_name": "x/_2", "kernel_type": "_Recv", "step_id": 3}
    compute.add("ExecutorState::ProcessAsync::Start", 1.1, 2, **about, _p=1)
    queue.add("ExecutorState::ProcessAsync::Done", 20, 2, **about, _c=1)
    _, rows = read(space)
    assert [(row["name"], row["at"]) for row in rows] == [("x/_2", (1.1, 22))]


def test_a_receive_of_old_versions_has_no_known_end(read):
    space = SpaceOf()
    space.plane().line("tf_Compute/1").add("ExecutorState::Process", 0, 9, id=3).add("x/_2:_Recv", 1, 1)
    _, rows = read(space)
    assert [(row["type"], row["ended"]) for row in rows] == [("_Recv", False)]


def test_a_collective_has_the_keys_of_its_kernel(read):
    space = SpaceOf()
    plane = space.plane()
    compute, kernels = plane.line("tf_Compute/1"), plane.line("collective_ops/1")
    for n in range(2):
        at = 100 * n
        about = {"x_name": "sum", "kernel_type": "CollectiveReduceV2", "step_id": 3}
        compute.add("ExecutorState::Process", at, 9, id=3)
        compute.add("ExecutorState::ProcessAsync::Start", at + 1, 2, **about, _p=n)
        kernels.add("sum:CollectiveReduceV2", at + 20, 30, step_id=3, group_key=1, instance_key=40 + n)
        kernels.add("ExecutorState::ProcessAsync::Done", at + 48, 1, **about, _c=n)
    found, rows = read(space)
    assert [(row["name"], row["at"]) for row in rows] == [("sum", (1, 49)), ("sum", (101, 149))]
    assert found.stats["group_key"].tolist() == [1, 1]
    assert found.stats["instance_key"].tolist() == [40, 41]


def test_ops_of_a_function_that_an_op_calls_are_below_it(read):
    space = SpaceOf()
    thread = space.plane().line("tf_Compute/1")
    thread.add("ExecutorState::Process", 0, 100, id=1).add("while:While", 2, 90)
    thread.add("FunctionRun", 3, 20, id=2).add("ExecutorState::Process", 5, 10, id=2).add(
        "body/Add:Add", 6, 2
    )
    found, rows = read(space)
    assert [(row["step"], row["name"], row["parent"]) for row in rows] == [
        (1, "while", None),
        (2, "body/Add", "while"),
    ]
    assert found.root.tolist() == [0, 0]


def test_kernels_of_a_device_are_below_the_op_that_launched_them(read):
    space = SpaceOf()
    host, device = space.plane(), space.plane("/device:GPU:0")
    thread = host.line("tf_Compute/1")
    thread.add("ExecutorState::Process", 0, 50, id=5).add("a/MatMul:MatMul", 1, 9)
    thread.add("cuLaunchKernel", 2, 1, correlation_id=77)
    stream = device.line("Stream #7(Compute)")
    stream.add("volta_sgemm", 30, 12, correlation_id=77, annotation="a/MatMul:MatMul#shape=(f32[2])")
    stream.add("void add<float>(int)", 50, 2, correlation_id=78, hlo_op="add.3")
    device.line("TensorFlow Ops").add("a/MatMul:MatMul", 30, 12)
    _, rows = read(space)
    assert [(row["step"], row["name"], row["type"], row["device"], row["parent"]) for row in rows] == [
        (None, "add.3", "add", "/device:GPU:0", None),
        (5, "a/MatMul", "MatMul", "/device:CPU:0", None),
        (5, "a/MatMul", "MatMul", "/device:GPU:0", "a/MatMul"),
    ]


def test_eager_ops_count_inside_a_step_only(read):
    space = SpaceOf()
    thread = space.plane().line("python")
    thread.add("EagerExecute", 1, 1, eager_op="Relu", is_func=0)
    thread.add("train_step", 10, 20, otel_trace=f"t-{5:032x}", otel_span=f"s-{6:016x}")
    thread.add("EagerExecute", 12, 3, eager_op="MatMul", is_func=0)
    thread.add("EagerExecute", 16, 3, eager_op="__inference_f_1", is_func=1)
    found, rows = read(space)
    assert [(row["name"], row["type"], row["at"]) for row in rows] == [("MatMul", "MatMul", (12, 15))]
    assert found.step_id.tolist() == [NONE]


def test_of_the_files_of_others_ops_are_found():
    gpu = read_ops(read_file(shared("tf2_gpu_multi_worker")))
    types = [gpu.words[kind] for kind in gpu.type]
    assert len(types) == 6335
    assert {"RandomUniform", "_Recv", "MemcpyH2D"} <= set(types)
    assert {gpu.words[device] for device in gpu.device} >= {"/device:GPU:4", "/device:GPU:6", "/device:CPU:0"}
    assert (gpu.stats["group_id"] != NONE).sum() > 5000
    jax = read_ops(read_file(shared("jax_gemm")))
    assert "gemm_fusion_dot_general" in {jax.words[kind] for kind in jax.type}
    assert "jit(dot)/dot_general" in {jax.words[name] for name in jax.name}
    assert (jax.stats["correlation_id"] != NONE).all()
