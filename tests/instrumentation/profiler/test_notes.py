"""Which variable an op touches, by the name that its event has in a profile."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from otel_tf.instrumentation.profiler.notes import Names, addresses, variables_of


class Model:
    def __init__(self) -> None:
        self.weight = tf.Variable([1.0], name="weight")
        self.other = tf.Variable([1.0], name="weight")
        self.count = tf.Variable(0, name="count")

    @tf.function
    def inner(self, x: Any) -> Any:
        self.count.assign_add(1)
        return x * self.other

    @tf.function
    def outer(self, x: Any) -> Any:
        self.weight.assign_sub(self.inner(x) + self.weight)
        return self.inner(x)


def test_variables_of_a_function_and_of_those_it_calls() -> None:
    model, names = Model(), Names()
    assert [names.of(variable) for variable in (model.weight, model.other)] == ["weight", "weight#2"]
    concrete = model.outer.get_concrete_function(tf.TensorSpec([1]))
    found = variables_of(concrete, names)
    ops = {op.name: op.type for op in concrete.graph.get_operations()}
    assert {(ops[name], variable) for name, variable in found.items() if name in ops} == {
        ("ReadVariableOp", "weight"),
        ("AssignSubVariableOp", "weight"),
    }
    calls = [name for name, kind in ops.items() if kind.endswith("PartitionedCall")]
    assert len(calls) == 2
    for call in calls:
        # Two variables of one name are told apart, in every function alike.
        inside = {variable for name, variable in found.items() if name.startswith(f"{call}/")}
        assert inside == {"weight#2", "count"}


def test_without_a_cluster_there_are_no_addresses() -> None:
    assert addresses() == {}
