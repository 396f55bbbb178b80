"""The tensors of a run of a TensorFlow 1 session: what was fed, and the variables of its graph.

The graph may be finalized: only what it has already is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from otel_tf.instrumentation.failure.call import FailedCall, Named
from otel_tf.instrumentation.failure.rows import takes

__all__ = ["failed_run"]

v1 = tf.compat.v1
_PATIENCE_MS = 1_000


def failed_run(
    error: BaseException,
    run: Callable[..., Any],
    graph: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> FailedCall:
    """Returns what is known of a run that raised.

    Args:
        error: What it raised.
        run: The session's own ``run``.
        graph: The session's graph.
        args: Arguments of the run.
        kwargs: Likewise.
    """
    fed = args[1] if len(args) > 1 else kwargs.get("feed_dict")

    def tensors() -> Iterator[Named]:
        for key, value in (fed or {}).items():
            yield Named("batch", getattr(key, "name", str(key)).removesuffix(":0"), _array(value))
        trainable = {id(each) for each in graph.get_collection(v1.GraphKeys.TRAINABLE_VARIABLES)}
        for variable in graph.get_collection(v1.GraphKeys.GLOBAL_VARIABLES):
            dtype = variable.dtype.base_dtype
            if takes(dtype):
                yield Named(
                    "variable" if id(variable) in trainable else "state",
                    variable.op.name,
                    _reading(run, variable),
                    variable.device or None,
                    tuple(variable.shape) if variable.shape.is_fully_defined() else None,
                    dtype.name,
                )

    return FailedCall(error, tensors=tensors)


def _array(value: Any) -> Callable[[], Any]:
    return lambda: np.asarray(value)


def _reading(run: Callable[..., Any], variable: Any) -> Callable[[], Any]:
    options = v1.RunOptions(timeout_in_ms=_PATIENCE_MS)
    return lambda: run(variable._as_graph_element(), options=options)
