"""Messages as TensorFlow 2.21 wrote them, taken apart."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from otel_tf.diagnostics.attributes import of_error, of_payloads, of_roots
from otel_tf.diagnostics.explanations import explain
from otel_tf.diagnostics.messages import Frame, parse

PSS_ASSERT = """Graph execution error:

Detected at node assert_less/Assert/AssertGuard/Assert defined at (most recent call last):
  File "train.py", line 34, in <module>

  File "train.py", line 14, in f

Detected at node assert_less/Assert/AssertGuard/Assert defined at (most recent call last):
  File "train.py", line 34, in <module>

  File "train.py", line 14, in f

assertion failed: [too large on purpose] [Condition x < y did not hold element-wise:] [x (Max:0) = ] [1] \
[y (assert_less/y:0) = ] [-1]
\t [[{{node assert_less/Assert/AssertGuard/Assert}}]]
Additional GRPC error information from remote target /job:worker/replica:0/task:1 while calling \
/tensorflow.eager.EagerService/Enqueue:
:UNKNOWN:Error received from peer  {grpc_status:3, grpc_message:" assertion failed: [too large on purpose] \
[x (Max:0) = ] [1]\\n\\t [[{{node assert_less/Assert/AssertGuard/Assert}}]]"} [Op:__inference_f_59]"""

PSS_GATHER = """Graph execution error:

Detected at node Gather defined at (most recent call last):
  File "train.py", line 26, in h

2 root error(s) found.
  (0) INVALID_ARGUMENT:   indices = 9 is not in [0, 2)
\t [[{{node Gather}}]]
Additional GRPC error information from remote target /job:ps/replica:0/task:0/device:CPU:0 while calling \
/tensorflow.eager.EagerService/RunComponentFunction:
:UNKNOWN:Error received from peer  {grpc_message:" indices = 9 is not in [0, 2)", grpc_status:3}
  (1) INVALID_ARGUMENT:  indices = 9 is not in [0, 2)
\t [[{{node Gather}}]]
Additional GRPC error information from remote target /job:ps/replica:0/task:0 while calling \
/tensorflow.WorkerService/RecvTensor:
:UNKNOWN:Error received from peer  {grpc_message:"indices = 9 is not in [0, 2)", grpc_status:3}
\t [[Gather/_4]]
0 successful operations.
0 derived errors ignored.
Additional GRPC error information from remote target /job:worker/replica:0/task:1 while calling \
/tensorflow.eager.EagerService/Enqueue:
:UNKNOWN:Error received from peer  {grpc_status:3, grpc_message:"2 root error(s) found."} \
[Op:__inference_h_83]"""

TWO_ROOTS = """Graph execution error:

2 root error(s) found.
  (0) CANCELLED:  [_Derived_]RecvAsync is cancelled.
\t [[{{node Identity_1/_22}}]]
  (1) Invalid argument:  loss : Tensor had NaN values
\t [[{{node replica_1/CheckNumerics}}]]
0 successful operations.
0 derived errors ignored. [Op:__inference_rep_257]"""

PEER = """Graph execution error:

Detected at node CollectiveReduceV2 defined at (most recent call last):
  File "train.py", line 85, in train_step

Collective ops is aborted by: Error reported from /job:worker/task:1: The following tasks are unhealthy \
(stopped sending heartbeats):
/job:worker/replica:0/task:1
The tasks have crashed. Check the task logs for an earlier error.
The error could be from a previous operation. Restart your program to reset.
\t [[{{node CollectiveReduceV2}}]] [Op:__inference_train_step_369]"""

EVERYWHERE = """Graph execution error:

Detected at node Log/CheckNumericsV2 defined at (most recent call last):
  File "train.py", line 79, in d

!!! Detected Infinity or NaN in output 0 of graph op "Log" (# of outputs: 1) !!!
  dtype: <dtype: 'float32'>
  shape: (2,)

  Input tensor: Tensor("x:0", shape=(2,), dtype=float32)
  Graph name: "d"

  Stack trace of op's creation ("->": inferred user code):
    + train.py (L81) <module>
 -> |   d(x)
    + ...packages/tensorflow/python/util/traceback_utils.py (L164) error_handler
    |
    + train.py (L79) d
 -> |   y = tf.math.log(x)
    + ...-packages/tensorflow/python/ops/weak_tensor_ops.py (L88) wrapper
    |

 : Tensor had -Inf and NaN values
\t [[{{node Log/CheckNumericsV2}}]] [Op:__inference_d_326]"""

XLA = (
    "Detected unsupported operations when trying to compile graph __inference_x2_93[_XlaMustCompile=true] on "
    "XLA_CPU_JIT: AsString (No registered 'AsString' OpKernel for XLA_CPU_JIT devices compatible with node "
    "{{node AsString}}){{node AsString}}\nThe op is created at: \n"
    'File "train.py", line 31, in <module>\nFile "train.py", line 30, in x2\n'
    "\ttf2xla conversion failed while converting __inference_x2_93[]. Run with TF_DUMP_GRAPH_PREFIX=/path "
    "to obtain a dump of the compiled functions. [Op:__inference_x2_93]"
)


def test_an_assertion_in_a_closure() -> None:
    (root,) = parse(PSS_ASSERT).roots
    assert (root.kind, root.label) == ("assert", "too large on purpose")
    assert root.values[2:] == ("x (Max:0) = ", "1", "y (assert_less/y:0) = ", "-1")
    assert root.node == "assert_less/Assert/AssertGuard/Assert"
    assert (root.worker, root.op, root.derived) == ("worker:1", None, False)
    assert root.stack == (Frame("train.py", 34, "<module>"), Frame("train.py", 14, "f"))
    assert root.text.startswith("assertion failed: [too large")
    assert "GRPC" not in root.text


def test_roots_are_kept_apart_and_told_once() -> None:
    """The error came from the parameter server over two ways; the worker in between is not its origin."""
    (root,) = parse(PSS_GATHER).roots
    assert (root.code, root.worker, root.node) == ("INVALID_ARGUMENT", "ps:0", "Gather")
    assert root.text == "indices = 9 is not in [0, 2)"
    first, second = parse(TWO_ROOTS).roots
    assert (first.code, first.node, first.replica) == ("INVALID_ARGUMENT", "replica_1/CheckNumerics", 1)
    assert (first.kind, first.label, first.values) == ("check_numerics", "loss", ("NaN",))
    assert (second.code, second.derived, second.text) == ("CANCELLED", True, "RecvAsync is cancelled.")


def test_what_was_cancelled_only_follows() -> None:
    """Its text names no node; that of the error that cancelled it is not its own."""
    assertion = "assertion failed: [m]\n\t [[{{node Assert}}]]"
    first, second = parse(
        f"2 root error(s) found.\n  (0) CANCELLED:  Runtime::Run\n  (1) INVALID_ARGUMENT:  {assertion}\n"
        "0 successful operations.\n0 derived errors ignored.\nAdditional GRPC error information from remote "
        f"target /job:worker/replica:0/task:0 while calling X:\n:UNKNOWN: {{grpc_message:{assertion!r}}}"
    ).roots
    assert (first.code, first.derived, first.node) == ("INVALID_ARGUMENT", False, "Assert")
    assert (second.code, second.derived, second.node) == ("CANCELLED", True, None)
    assert first.worker == second.worker == "worker:0"


def test_events_of_several_roots() -> None:
    error = parse(TWO_ROOTS)
    assert of_error(error)["tensorflow.error.roots"] == 2
    assert [event["error.type"] for event in of_roots(error)] == ["INVALID_ARGUMENT", "CANCELLED"]
    assert [event.get("tensorflow.error.derived") for event in of_roots(error)] == [None, True]
    assert of_roots(parse(PSS_ASSERT)) == []


def test_the_death_of_a_peer() -> None:
    root = parse(PEER).first
    assert (root.kind, root.worker, root.derived) == ("peer_lost", "worker:1", True)
    assert "worker:1 stopped answering" in (explain(root) or "")


def test_a_connection_that_broke() -> None:
    root = parse(
        "Collective ops is aborted by: Socket closed\nAdditional GRPC error information from remote target "
        "/job:worker/replica:0/task:1 while calling /tensorflow.WorkerService/RecvBuf:\n:UNKNOWN:"
        'Error received from peer  {grpc_status:14, grpc_message:"Socket closed"}'
    ).first
    assert (root.kind, root.worker, root.derived) == ("peer_lost", "worker:1", True)


def test_another_workers_assertion() -> None:
    root = parse(
        "Collective ops is aborted by: Error reported from /job:worker/task:3: assertion failed: [x]"
    ).first
    assert (root.kind, root.worker, root.derived, root.label) == ("assert", "worker:3", True, "x")


def test_checks_of_all_ops() -> None:
    root = parse(EVERYWHERE).first
    assert (root.kind, root.op, root.node) == ("enable_check_numerics", "Log", "Log")
    assert root.values == ("-Inf", "NaN")
    assert root.stack == (Frame("train.py", 81, "<module>"), Frame("train.py", 79, "d"))


def test_what_xla_refuses() -> None:
    root = parse(XLA).first
    assert (root.kind, root.op, root.node) == ("xla", "AsString", "AsString")
    assert root.stack[-1] == Frame("train.py", 30, "x2")
    said = explain(root) or ""
    assert "AsString" in said
    assert "train.py:30 in x2" in said
    checks = parse(XLA.replace("AsString", "DebugNumericSummaryV2")).first
    assert "enable_check_numerics" in (explain(checks) or "")


def test_eager_errors() -> None:
    where = "_device_/job:worker/replica:0/task:2/device:GPU:0}} "
    root = parse(
        "{{function_node __wrapped__CheckNumerics"
        + where
        + "m : Tensor had Inf and NaN values [Op:CheckNumerics] name: "
    ).first
    assert (root.op, root.label, root.values, root.worker) == (
        "CheckNumerics",
        "m",
        ("Inf", "NaN"),
        "worker:2",
    )
    assert root.device == "/job:worker/replica:0/task:2/device:GPU:0"
    root = parse(
        "{{function_node __wrapped__Fill_device_/job:localhost/replica:0/task:0/device:CPU:0}} OOM when "
        "allocating tensor with shape[4398046511104] and type float on /job:localhost/replica:0/task:0/"
        "device:CPU:0 by allocator mklcpu [Op:Fill] name: "
    ).first
    assert (root.kind, root.op, root.values) == ("out_of_memory", "Fill", ("[4398046511104]", "float"))
    # A process of its own: there is no other one that it could be.
    assert root.worker is None
    root = parse(
        "m\nCondition x < y did not hold.\nFirst 2 elements of x:\n[9 1]\nFirst 1 elements of y:\n[3]"
    ).first
    assert (root.kind, root.label, root.values) == ("assert", "m", ("x", "9 1", "y", "3"))
    root = parse("Expected 'tf.Tensor(False, shape=(), dtype=bool)' to be true. Summarized data: 9, 1").first
    assert (root.kind, root.values) == ("assert", ("9", "1"))


def test_an_op_with_outputs_in_its_wrapper() -> None:
    root = parse(
        "{{function_node __wrapped__IteratorGetNext_output_types_1_device_/job:localhost/replica:0/task:0/"
        "device:CPU:0}} ValueError: broke\n\n\n\t [[{{node PyFunc}}]] [Op:IteratorGetNext] name: "
    ).first
    assert (root.op, root.text, root.node) == ("IteratorGetNext", "ValueError: broke", "PyFunc")


def test_payloads() -> None:
    (text,) = of_payloads({"type.googleapis.com/mine": b"caf\xc3\xa9 \xff"}).values()
    assert json.loads(str(text)) == {"type.googleapis.com/mine": "café \ufffd"}
    assert of_payloads({}) == {}
    assert parse("x", ["type.googleapis.com/tensorflow.DerivedStatus"]).first.derived


@given(
    st.text()
    | st.sampled_from([PSS_ASSERT, PSS_GATHER, TWO_ROOTS, PEER, EVERYWHERE, XLA]).flatmap(
        lambda text: st.tuples(st.integers(0, len(text)), st.integers(0, len(text))).map(
            lambda cut: text[: cut[0]] + text[cut[1] :]
        )
    )
)
def test_any_text_gives_an_answer(text: str) -> None:
    error = parse(text)
    assert error.roots
    for attributes in (of_error(error), *of_roots(error)):
        assert all(value not in (None, "") for value in attributes.values())
        assert sum(len(str(value)) for value in attributes.values()) < 60_000
