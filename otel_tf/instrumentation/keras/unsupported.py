"""What Keras 3 itself cannot do: said before it fails, in words of what can be done instead."""

from __future__ import annotations

import logging
import os
import sys
import weakref
from typing import Any

import tensorflow as tf

__all__ = ["say_at_attach", "say_what_keras_3_cannot"]

_logger = logging.getLogger("otel_tf")
_said: weakref.WeakSet[Any] = weakref.WeakSet()


def say_what_keras_3_cannot(strategy: Any) -> None:
    """Warns, once a strategy, where Keras 3 has no ``fit`` under it."""
    if strategy in _said or not _fails(strategy):
        return
    _said.add(strategy)
    _logger.warning(
        "Keras 3 itself has no fit under %s; use tf_keras (TF_USE_LEGACY_KERAS=1) or a loop of your own, "
        "both of which are recorded",
        type(strategy).__name__,
    )


def say_at_attach(strategy: Any) -> None:
    """Does so as soon as the strategy is known; not for a program that uses tf_keras."""
    legacy = "tf_keras" in sys.modules or os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True")
    if strategy is not None and "keras" in sys.modules and not legacy:
        say_what_keras_3_cannot(strategy)


def _fails(strategy: Any) -> bool:
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return True
    # Alone, a worker's values are no PerReplica ones.
    return (
        isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) and strategy.extended._num_workers > 1
    )
