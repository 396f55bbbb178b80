"""All watches of a process: making rings, reading them, and noticing what is in them."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import ops

from otel_tf import ids
from otel_tf.diagnostics.summary import TensorSummary, of_array, of_row
from otel_tf.instrumentation.failure.rows import summarise, takes
from otel_tf.instrumentation.watching.ring import Ring, can_hold, device_of, is_compiled, on_task, push

__all__ = ["Kept", "Watches"]

_logger = logging.getLogger("otel_tf")

#: Different rings: a name that is made up anew each time must not fill the memory.
_MOST_RINGS = 200


class Kept(NamedTuple):
    """What a ring held when it was read.

    Attributes:
        name: Of the watch.
        device: Where the ring is, its task included.
        summaries: The oldest first.
        spoiled: Runs with NaN or infinite elements since somebody last took note.
        ring: Which ring; several may be of one name.
    """

    name: str
    device: str
    summaries: tuple[TensorSummary, ...]
    spoiled: int
    ring: str


class _EagerRing:
    """The ring of a tensor that is watched outside of any graph; of this process's own memory."""

    def __init__(self, keep: int) -> None:
        self.runs = self.spoiled = 0
        self._rows: deque[TensorSummary] = deque(maxlen=keep)
        self._last: TensorSummary | None = None

    def add(self, summary: TensorSummary) -> None:
        self._last = summary if self.spoiled else None
        if not self.spoiled:
            self._rows.append(summary)
        self.spoiled += summary.spoiled

    def rows(self) -> tuple[TensorSummary, ...]:
        return (*self._rows, *((self._last,) if self._last is not None else ()))


class Watches:
    """The rings of this process's graphs, wherever those run.

    Attributes:
        incarnation: Tells this process's variables from those of an earlier one.
    """

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        # Variables on a worker outlive the coordinator that named them.
        self.incarnation = f"{ids.random_span_id():016x}"
        self._lock = threading.Lock()
        self._rings: dict[tuple[Any, ...], Ring] = {}
        self._eager: dict[str, _EagerRing] = {}
        self._said: set[str] = set()
        #: Other tasks that run this process's graphs.
        self._tasks: set[str] = set()
        _all.add(self)

    @property
    def active(self) -> bool:
        """Whether anything is watched."""
        return bool(self._rings or self._eager)

    @tf.autograph.experimental.do_not_convert
    def watch(self, name: str, tensor: Any, *, histogram: bool, keep: int) -> Any:
        """Returns the tensor; see `otel_tf.watch`."""
        if not isinstance(tensor, tf.Tensor) or not takes(tensor.dtype) or keep < 1:
            self._say(name, f"{name!r} is not watched: no tensor of numbers, or nothing to keep")
            return tensor
        if not tf.is_symbolic_tensor(tensor):
            self._add(name, tensor, keep)
            return tensor
        if not can_hold(tensor.graph):
            self._say(name, f"{name!r} is not watched: graphs of sessions have no place for it")
            return tensor
        if is_compiled(tensor.graph) and _coordinates():
            self._say(name, f"{name!r} is not watched: XLA makes no ring on the worker that would run it")
            return tensor
        ring = self._ring(name, tensor, histogram, keep)
        return tensor if ring is None else push(ring, tensor)

    def _ring(self, name: str, tensor: Any, histogram: bool, keep: int) -> Ring | None:
        device = device_of(tensor)
        shape = tuple(tensor.shape) if tensor.shape.is_fully_defined() else None
        number = shape == () and not histogram
        key = (name, device, histogram, number, keep)
        with self._lock:
            found = self._rings.get(key)
            if found is None:
                if len(self._rings) >= _MOST_RINGS:
                    self._say("", f"more than {_MOST_RINGS} tensors: {name!r} and later ones are not watched")
                    return None
                stem = f"otel_tf/watch/{self.incarnation}/{len(self._rings)}"
                found = Ring(name, keep, histogram, number, device, tensor.dtype.name, shape, stem)
                self._rings[key] = found
            return found

    def _add(self, name: str, tensor: Any, keep: int) -> None:
        with self._lock:
            ring = self._eager.get(name)
            if ring is None:
                if len(self._eager) >= _MOST_RINGS:
                    return
                ring = self._eager[name] = _EagerRing(keep)
            ring.runs += 1
            run = ring.runs
        _, _, time_ns = self._pipeline.now()
        known = {"name": name, "group": "watch", "device": tensor.device, "run": run}
        if "device:CPU:" in tensor.device and tensor.device.startswith(_here()):
            one = of_array(tensor.numpy(), lambda: True, time_ns=time_ns, **known)
        else:
            with ops.device(tensor.device):
                row = summarise(tensor)
            row[0] = time_ns / 1e9
            one = of_row(row, shape=tuple(tensor.shape), dtype=tensor.dtype.name, **known)
        with self._lock:
            ring.add(one)

    def _say(self, name: str, what: str) -> None:
        if name not in self._said and len(self._said) < _MOST_RINGS:
            self._said.add(name)
            _logger.warning("otel_tf.watch: %s", what)

    # -- reading -----------------------------------------------------------------------------------------

    def kept(self, task: str | None = None) -> Iterator[Kept]:
        """Yields what the rings of a task hold, those that have anything.

        Args:
            task: A device of the task, such as ``/job:worker/replica:0/task:1``; default: this process.

        Raises:
            tf.errors.OpError: The task is gone.
        """
        for ring in list(self._rings.values()):
            with _on(task, ring):
                handle = ring.handle()
                if not tf.raw_ops.VarIsInitializedOp(resource=handle):
                    continue
                found = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float64)
            numbers = found.numpy()
            runs, good = numbers[ring.counts_at, :2]
            spoiled, rows = runs - good, numbers[: ring.counts_at]
            rows = rows[np.argsort(rows[:, 0])]
            device = tf.DeviceSpec.from_string(found.device).to_string()
            summaries = tuple(
                of_row(
                    ring.summary_of(row),
                    name=ring.name,
                    group="watch",
                    run=int(row[0]),
                    shape=ring.shape,
                    dtype=ring.dtype,
                    device=device,
                )
                for row in rows
                if row[0]
            )
            if summaries:
                yield Kept(ring.name, device, summaries, int(spoiled), ring.stem)
        if task is None:
            with self._lock:
                eager = [
                    Kept(name, ring.rows()[-1].device or "", ring.rows(), ring.spoiled, name)
                    for name, ring in self._eager.items()
                ]
            yield from eager

    def runs_on(self, task: str) -> None:
        """Notes that another task runs this process's graphs.

        Args:
            task: A device of it, such as ``/job:worker/replica:0/task:1``.
        """
        self._tasks.add(task)

    def everywhere(self, timeout_s: float) -> list[Kept]:
        """Returns what the rings of all tasks hold, as far as those answer in time.

        Args:
            timeout_s: Seconds to wait at most.
        """
        found: list[Kept] = []

        def ask(task: str | None) -> None:
            try:
                for kept in self.kept(task):
                    found.append(kept)
            except tf.errors.OpError as error:
                _logger.warning("%s does not tell what it watched: %s", task, error.message)

        until = time.monotonic() + timeout_s
        asked = [
            threading.Thread(target=ask, args=(task,), name="otel-tf watched", daemon=True)
            for task in (None, *sorted(self._tasks))
        ]
        for thread in asked:
            thread.start()
        for thread in asked:
            thread.join(max(until - time.monotonic(), 0.0))
        return sorted(found, key=lambda kept: (kept.name, kept.device))

    def spoiled(self, task: str | None = None) -> list[Kept]:
        """Returns the rings with NaN or infinite elements that nobody has taken note of, and takes note.

        Args:
            task: As for `kept`.

        Raises:
            tf.errors.OpError: The task is gone.
        """
        if not self._any_spoiled(task):
            return []
        found = [kept for kept in self.kept(task) if kept.spoiled]
        self._take_note(task, found)
        return found

    def _any_spoiled(self, task: str | None) -> bool:
        """Asks for the counters only, some 30 µs each."""
        if task is None and any(ring.spoiled for ring in list(self._eager.values())):
            return True
        for ring in list(self._rings.values()):
            with _on(task, ring):
                handle = ring.handle()
                if not tf.raw_ops.VarIsInitializedOp(resource=handle):
                    continue
                counts = tf.raw_ops.ResourceGather(resource=handle, indices=ring.counts_at, dtype=tf.float64)
            runs, good = counts.numpy()[:2]
            if runs > good:
                return True
        return False

    def _take_note(self, task: str | None, found: list[Kept]) -> None:
        """Lets the rings go on: takes off what was counted, for more may have come meanwhile."""
        counted = {kept.ring: kept.spoiled for kept in found}
        for ring in list(self._rings.values()):
            number = counted.get(ring.stem)
            if number:
                with _on(task, ring):
                    change = np.zeros(ring.shape_of_all[1])
                    change[1] = number
                    tf.raw_ops.ResourceScatterAdd(
                        resource=ring.handle(),
                        indices=ring.counts_at,
                        updates=tf.constant(change, tf.float64),
                    )
        if task is None:
            with self._lock:
                for name, eager in self._eager.items():
                    eager.spoiled -= counted.get(name, 0)


_all: weakref.WeakSet[Watches] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # TensorFlow cannot run in the child: what is watched is the parent's.
    for watches in list(_all):
        watches._lock = threading.Lock()
        watches._rings = {}
        watches._eager = {}


os.register_at_fork(after_in_child=_after_fork_in_child)


def _coordinates() -> bool:
    """Returns whether this process has others run its graphs, and parameter servers keep its variables."""
    return any("/job:ps/" in device.name for device in tf.config.list_logical_devices())


def _here() -> str:
    space: str = context.context().host_address_space()
    return space


def _on(task: str | None, ring: Ring) -> Any:
    """Returns the scope of the device where a ring is, on the task that is asked."""
    return ops.device(on_task(task, ring.device))
