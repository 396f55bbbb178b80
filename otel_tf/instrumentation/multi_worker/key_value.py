"""The coordination service's key-value store: how workers talk without a collective.

TensorFlow keeps it in the chief's process. A round trip takes about a millisecond; a thread that waits
for a key does not hold the interpreter.
"""

from __future__ import annotations

import inspect

import tensorflow as tf
from tensorflow.python.eager import context

__all__ = ["delete", "get", "put", "ready"]

#: Keeps our keys apart from other users' of the store.
_PREFIX = "otel_tf/"
#: An older TensorFlow waits until the key is set or the service is gone.
_KNOWS_TIMEOUT = "timeout_in_ms" in inspect.signature(context.Context.get_config_key_value).parameters


def ready() -> bool:
    """Returns whether this process has joined a coordination service; never initialises TensorFlow."""
    at_hand = context.context_safe()
    return (
        at_hand is not None
        and at_hand._context_handle is not None
        and at_hand.coordination_service is not None
    )


def put(key: str, value: str) -> None:
    """Sets a key that is not set.

    Raises:
        tf.errors.OpError: It is set already, or the service is gone.
    """
    context.context().set_config_key_value(_PREFIX + key, value)


def get(key: str, timeout_s: float) -> str | None:
    """Waits for a key and returns its value, or None where it was not set in time.

    Raises:
        tf.errors.OpError: The service is gone.
    """
    # To this function 0 ms would mean for ever.
    timeout = {"timeout_in_ms": max(int(timeout_s * 1000), 1)} if _KNOWS_TIMEOUT else {}
    try:
        value: str = context.context().get_config_key_value(_PREFIX + key, **timeout)
    except tf.errors.DeadlineExceededError:
        return None
    return value


def delete(key: str) -> None:
    """Deletes a key, and all keys below it; one that is not set is no error.

    Raises:
        tf.errors.OpError: The service is gone.
    """
    context.context().delete_config_key_value(_PREFIX + key)
