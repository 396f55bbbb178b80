"""The seam in `CollectiveReplicaLauncher`: every collective of a step, stamped inside the graph.

The launcher builds the collectives of all strategies and optimizers, while a graph is traced. Ops added
there take the time before and after on the worker's own clock; the collective itself, its inputs and its
outputs stay as they are.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import cross_device_utils
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_util

from otel_tf._guard import Guard
from otel_tf.config import Settings
from otel_tf.identity import Identity
from otel_tf.instrumentation.multi_worker import ring
from otel_tf.instrumentation.multi_worker.collective_spans import CollectiveSpans, Fetched
from otel_tf.instrumentation.seams import Seam, Seams
from otel_tf.instrumentation.step_spans import StepSpans
from otel_tf.telemetry import Pipeline

__all__ = ["CollectiveSeam"]

Call = Callable[..., Any]

_logger = logging.getLogger("otel_tf")
_STAMPING = Guard("stamping a collective")

#: Op types whose inputs we know: tensor, group size, group key, instance key, ordering token.
_KNOWN_OPS = ("CollectiveReduceV2", "CollectiveGatherV2")
_INSTANCE_KEY = 3
#: Keeps our ops' names apart from the user's, which stay as they are.
_SCOPE = "otel_tf"
#: Set once a graph of this process has stamps.
_stamped_before = threading.Event()
#: Where a graph carries its stamps: not in a table of ours, which would keep it alive.
_STAMPS = "_otel_tf_stamps"


@dataclasses.dataclass(slots=True)
class _Stamps:
    """What was added to one graph.

    Attributes:
        last: The result of the last collective, by launcher.
        ring: Where entries are put.
    """

    last: dict[int, tf.Tensor] = dataclasses.field(default_factory=dict)
    ring: ring.RingEnd | None = None


def _local_devices(launcher: Any) -> int:
    """Returns how many devices of its group are this process's; MirroredStrategy has no others."""
    return len(launcher._collective_keys._instance_key_table[launcher._group_key])


class CollectiveSeam(Seam):
    """Stamps collectives and writes their spans."""

    def __init__(self, pipeline: Pipeline, settings: Settings, identity: Identity, steps: StepSpans) -> None:
        self._pipeline = pipeline
        self._settings = settings
        self._steps = steps
        self._spans = CollectiveSpans(pipeline, identity.task)
        self._said_xla = False
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()
        self._forget: list[Callable[[], None]] = []
        self._draining = False

    def attach(self, seams: Seams) -> None:
        """Wraps the launcher's collectives.

        Raises:
            DidNotInstrument: This TensorFlow's launcher is not one we know.
        """
        if not self._settings.collective_stamps:
            return
        launcher = cross_device_utils.CollectiveReplicaLauncher
        # `batch_all_reduce` and `all_gather` come through these two.
        seams.wrap(launcher, "all_reduce", self._stamped)
        seams.wrap(launcher, "_all_gather", self._stamped)
        if _stamped_before.is_set():
            # Graphs that an earlier `instrument` found go on stamping.
            self._start()

    def detach(self) -> None:
        """Stops fetching; graphs that are traced already go on stamping into a ring that stays bounded."""
        self._stop()
        for graph in list(self._graphs):
            setattr(graph, _STAMPS, None)

    def settle(self) -> None:
        """Fetches what the ring holds."""
        if self._draining:
            self._fetch()

    # -- tracing -----------------------------------------------------------------------------------------

    def _stamped(self, wrapped: Call, launcher: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        start = None
        with _STAMPING:
            if self._can_stamp(launcher):
                start = self._before(launcher, *args, **kwargs)
        if start is None:
            return wrapped(*args, **kwargs)
        # Nobody may leave before the last one's stamp: the stamp comes first.
        with ops.control_dependencies([start]):
            result = wrapped(*args, **kwargs)
        with _STAMPING:
            self._after(launcher, start, result)
        return result

    def _can_stamp(self, launcher: Any) -> bool:
        graph = ops.get_default_graph()
        if launcher._group_size <= _local_devices(launcher) or not ring.can_take(graph):
            return False
        if control_flow_util.GraphOrParentsInXlaContext(graph):
            if not self._said_xla:
                self._said_xla = True
                _logger.warning(
                    "collectives under jit_compile have no spans: XLA takes no stamps; steps are recorded"
                )
            return False
        return True

    def _before(
        self, launcher: Any, input_tensor: Any, control_input: Any = None, options: Any = None
    ) -> tf.Tensor:
        after = [x for x in (input_tensor, control_input) if tf.is_tensor(x) or isinstance(x, tf.Operation)]
        last = self._stamps_of(ops.get_default_graph()).last.get(id(launcher))
        if last is not None and launcher._use_ordering_token():
            # The collectives of a device follow each other: this one begins when its input is there and
            # the one before is over.
            after.append(last)
        with tf.name_scope(_SCOPE):
            return ring.stamp(after)

    def _after(self, launcher: Any, start: tf.Tensor, result: Any) -> None:
        collective = result.op
        if collective.type not in _KNOWN_OPS:
            return
        stamps = self._stamps_of(result.graph)
        stamps.last[id(launcher)] = result
        instance_key = collective.inputs[_INSTANCE_KEY]
        with tf.name_scope(_SCOPE):
            if stamps.ring is None:
                stamps.ring = ring.RingEnd()
            stamps.ring.push(start, ring.stamp([result]), launcher._group_key, instance_key)
        self._start()

    def _stamps_of(self, graph: Any) -> _Stamps:
        stamps: _Stamps | None = getattr(graph, _STAMPS, None)
        if stamps is None:
            stamps = _Stamps()
            setattr(graph, _STAMPS, stamps)
            self._graphs.add(graph)
        return stamps

    # -- fetching ------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Starts fetching with the first collective: before, TensorFlow may not be set up."""
        if self._draining:
            return
        self._draining = True
        _stamped_before.set()
        self._steps.follow(self._spans.step_ended)
        interval_s = max(self._settings.flush_interval_ms, 10) / 1000
        self._forget = [
            self._pipeline.every(interval_s, self._fetch),
            # A thread that comes back from TensorFlow while Python goes down would abort the process.
            self._pipeline.before_exit(lambda _: self._stop()),
        ]

    def _stop(self) -> None:
        for forget in self._forget:
            forget()
        self._forget = []

    def _fetch(self) -> None:
        before_ns = time.time_ns()
        self._pipeline.record_later(self._spans.make, Fetched(before_ns, ring.fetch()))
