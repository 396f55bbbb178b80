"""Where step numbers come from: a variable that counts steps, read rarely, counted on the host."""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import distribute_utils

__all__ = ["Stream", "plain_variable"]


class Stream:
    """The numbers of the steps that one counter counts, or of all those that none counts.

    Attributes:
        index: Position among the streams of this process, in the order of their first steps. The same
            program comes to the same order on every worker.
        number: Number of the last step; None where it is not known yet.
        stale: Whether the counter is to be asked after the next step.
        rewound_from: The last number before the counter was set back; taken by the next step.
    """

    __slots__ = ("_counter", "index", "number", "rewound_from", "stale")

    def __init__(self, index: int, counter: Any | None) -> None:
        self.index = index
        self.number: int | None = None
        self.stale = counter is not None
        self.rewound_from: int | None = None
        self._counter = None if counter is None else weakref.ref(counter)

    @property
    def counter(self) -> Any | None:
        """The variable, while it exists."""
        return None if self._counter is None else self._counter()

    def read(self) -> int | None:
        """Reads the counter: may wait for a device or another machine. None where it has no value."""
        counter = self.counter
        if counter is None:
            return None
        try:
            with tf.init_scope():
                return int(counter.numpy())
        except (tf.errors.OpError, ValueError, NotImplementedError, AttributeError):
            return None


def plain_variable(counter: Any) -> Any:
    """Returns the `tf.Variable` behind a Keras or a distributed variable: one counter, one object."""
    if not isinstance(counter, tf.Variable | tf.distribute.DistributedValues):
        counter = getattr(counter, "_value", counter)
    # A graph captures the part of one replica.
    return getattr(distribute_utils.value_container(counter), "_primary", counter)
