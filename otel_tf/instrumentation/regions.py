"""`otel_tf.trace("attention")`: the operations that a user cares about, under a name.

Around code that builds a graph a region is a name scope, so it costs nothing when the graph runs and adds no
op: results, seeds of random ops and names of variables stay as they are. Around eager code it is a span
`region` and an event in the profile of whoever takes one.

**How a region is found in a profile.** The name of an op is a path, ``a/b/op:OpType``; a region's scope is a
path as well. An op belongs to a region when the components of the scope occur in those of the op's name, in
their order and without a gap, before the last one; of several such regions to the one with the longest
scope, and the others, whose scopes are its beginnings, are around it. So

    attention/MatMul:MatMul                                            forward
    gradient_tape/attention/MatMul/MatMul:MatMul                       gradient, of `tf.GradientTape`
    gradients/attention/MatMul_grad/MatMul:MatMul                      gradient, of `tf.gradients`
    StatefulPartitionedCall/gradient_tape/attention/ReluGrad:ReluGrad  in a function that another one calls
    replica_1/attention/MatMul:MatMul                                  on a replica of MirroredStrategy

all belong to the region whose scope is ``attention``. TensorFlow makes names unique: the second time in one
graph it is ``attention_1``, a scope of its own with the same region's name. A fused kernel has the name of
one of its ops.

**Where the regions stand.** Each time that one is built into a graph leaves a span `trace_region` in the
run's own trace, below the `trace_function` of its graph and below the region around it, with the attributes
``tensorflow.region.name`` (``attention``), ``tensorflow.region.scope`` (``encoder/attention_1``: what to look
for) and ``tensorflow.function.name`` (the graph's function; none in a graph of TensorFlow 1). A retraced
function leaves them again.

In eager code a `region` span carries ``tensorflow.region.name``; it is below the step that the loop has
declared, or else in the run's trace. The event in the profile has the region's name and ``otel_span``
(``s-<16 hex>``); outside of a step ``otel_trace`` (``t-<32 hex>``) too, inside one the step's event is around
it.

This module imports TensorFlow only where the program has.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from otel_tf.errors import UserError

if TYPE_CHECKING:
    from otel_tf.instrumentation.attach import Handle

__all__ = ["Region"]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

#: What TensorFlow takes for a name scope. One that ends in a slash would leave the scopes around it.
_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/-]*(?<!/)")


class Region:
    """A context manager and decorator; an instance is one thread's at a time, its uses may nest.

    Args:
        name: Letters, digits and ``_.-/``; few different ones in a program.

    Raises:
        UserError: Not such a name.
    """

    __slots__ = ("_entered", "_name")

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UserError(f"otel_tf.trace({name!r}): not a name of letters, digits and _.-/")
        self._name = name
        self._entered: list[contextlib.ExitStack] = []

    def __call__(self, function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        """Returns the function, each call of which is a region."""
        name = self._name

        @functools.wraps(function)
        def in_region(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            with Region(name):
                return function(*args, **kwargs)

        return in_region

    def __enter__(self) -> None:
        stack = contextlib.ExitStack()
        try:
            self._enter(stack)
        except BaseException:
            stack.close()
            raise
        self._entered.append(stack)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.pop().__exit__(kind, error, trace)

    def _enter(self, stack: contextlib.ExitStack) -> None:
        ops = sys.modules.get("tensorflow.python.framework.ops")
        context = sys.modules.get("tensorflow.python.eager.context")
        if ops is None or context is None or not hasattr(context, "executing_eagerly"):
            return  # TensorFlow is not imported, or not wholly
        attach = sys.modules.get("otel_tf.instrumentation.attach")
        handle: Handle | None = getattr(attach, "attached", lambda: None)()
        if not context.executing_eagerly():
            scope = _enter_scope(stack, ops, self._name)
            if handle is not None:
                _recorder().enter_scope(stack, handle.core, self._name, scope)
        elif handle is not None:
            _recorder().enter(stack, handle.core, self._name)


def _recorder() -> ModuleType:
    # It imports TensorFlow.
    from otel_tf.instrumentation import region_spans

    return region_spans


def _enter_scope(stack: contextlib.ExitStack, ops: Any, name: str) -> str:
    """Enters the name scope; returns it.

    Variables made inside keep the names they have without us: checkpoints of TensorFlow 1 know them by name.
    """
    outer = ops.get_name_scope()
    scope: str = stack.enter_context(ops.name_scope_v2(name)).rstrip("/")

    def without_us(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        current = ops.get_name_scope()
        if current != scope and not current.startswith(f"{scope}/"):
            return next_creator(**kwargs)
        left = f"{outer}{current[len(scope) :]}".lstrip("/")
        with ops.name_scope_v2(f"{left}/" if left else ""):
            return next_creator(**kwargs)

    graph = ops.get_default_graph()
    stack.enter_context(graph._variable_creator_scope(without_us))
    # Keras makes its variables outside of the function that is traced, in the same name scope.
    with ops.init_scope():
        outside = ops.get_default_graph()
    if outside is not graph:
        stack.enter_context(outside._variable_creator_scope(without_us))
    return scope
