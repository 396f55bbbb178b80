"""Steps that end a training without raising: `TerminateOnNaN` only sets a flag."""

from __future__ import annotations

import math
from typing import Any

from otel_tf.instrumentation.failure.call import SpoiledStep

__all__ = ["spoiled"]

_NAME = "TerminateOnNaN"


def spoiled(callbacks: Any, logs: Any) -> SpoiledStep | None:
    """Returns what is wrong with a step whose loss makes `TerminateOnNaN` end the training.

    Only where there is one: it reads the loss of every batch anyway, which may have to come from a device.

    Args:
        callbacks: Keras's ``CallbackList``.
        logs: What it is given at the end of the batch.
    """
    # A subclass is one, too, of whichever Keras.
    listed = getattr(callbacks, "callbacks", ())
    if not any(kind.__name__ == _NAME for each in listed for kind in type(each).__mro__):
        return None
    loss = (logs or {}).get("loss")
    if loss is None or math.isfinite(float(loss)):
        return None
    return SpoiledStep(f"the loss is {float(loss)}: {_NAME} ends the training", str(float(loss)))
