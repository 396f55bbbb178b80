"""What the clocks' fit works on: epochs, the edges between them, and what is believed to be simultaneous."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from otel_tf.correlator.columns import Int

__all__ = ["HARD_DRIFT", "SOFT_DRIFT", "Crossings", "Epochs", "Together"]

#: Drift in units of 2^-30. Hard: the kernel's limit for slewing a clock, 500 ppm, and a crystal beside it.
HARD_DRIFT = round(600e-6 * 2**30)
#: What a clock's rate does within seconds when nobody slews it.
SOFT_DRIFT = round(10e-6 * 2**30)


@dataclasses.dataclass(frozen=True)
class Epochs:
    """Clocks between steps, arrays (E,): the domain, and the first and last local time, ns."""

    domain: Int
    first_ns: Int
    last_ns: Int


@dataclasses.dataclass(frozen=True)
class Crossings:
    """Edges between two epochs, arrays (C,): local times of both ends and the least time between them.

    ``min_ns`` has the blur of both readings taken off already; ``unsure_ns`` is what a hard bound has to
    allow beside it, since an end may be on the other side of a step. ``edge`` indexes the caller's edges,
    ``src`` and ``dst`` are its events.
    """

    src_epoch: npt.NDArray[np.int32]
    dst_epoch: npt.NDArray[np.int32]
    src_ns: Int
    dst_ns: Int
    min_ns: Int
    unsure_ns: Int
    edge: npt.NDArray[np.signedinteger[Any]]
    src: npt.NDArray[np.signedinteger[Any]]
    dst: npt.NDArray[np.signedinteger[Any]]

    def take(self, index: npt.NDArray[np.bool_]) -> Crossings:
        """Returns the crossings at ``index``."""
        return Crossings(*(getattr(self, field.name)[index] for field in dataclasses.fields(self)))


@dataclasses.dataclass(frozen=True)
class Together:
    """Pairs of events believed to be simultaneous, arrays (P,): the leaves of one barrier."""

    src_epoch: Int
    dst_epoch: Int
    src_ns: Int
    dst_ns: Int
