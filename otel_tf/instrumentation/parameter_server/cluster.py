"""What the telemetry of all workers of one cluster shares: functions, resources, the closures' spans."""

from __future__ import annotations

import logging
import threading

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.framework import ops

from otel_tf import semconv
from otel_tf.config import Settings
from otel_tf.identity import Identity
from otel_tf.instrumentation.parameter_server.remote_task import (
    RemoteTask,
    describe,
    describing_function,
    probing_function,
)
from otel_tf.instrumentation.parameter_server.stamps import fetch, ring_name
from otel_tf.instrumentation.watching.watches import Watches
from otel_tf.telemetry import Layout, Pipeline, SpanKind, TaskResource

__all__ = ["ClusterTelemetry"]

_logger = logging.getLogger(__name__)

#: Round trips a probe; the fastest of a few bounds the offset best.
_PROBE_ROUNDS = 5


class ClusterTelemetry:
    """Shared by the workers of one `ClusterCoordinator`; holds no reference to it."""

    def __init__(
        self,
        pipeline: Pipeline,
        settings: Settings,
        identity: Identity,
        incarnation: str,
        parameter_servers: int,
        watches: Watches,
    ) -> None:
        self.watches = watches
        self.pipeline = pipeline
        self.settings = settings
        self.run_id = identity.run_id
        self._identity = identity
        self._parameter_servers = parameter_servers
        self._lock = threading.Lock()
        # Apart from the other, which is held while parameter servers are asked.
        self._counting = threading.Lock()
        self._most_steps = 0
        self._fetch = fetch(ring_name(incarnation))
        self._describe = describing_function()
        self.probing_function = probing_function(parameter_servers, _PROBE_ROUNDS)
        self._probe_servers: list[Layout] | None = None

    def lag(self, steps: int) -> int:
        """Returns by how many steps a worker that has just taken its ``steps``-th is behind the first."""
        with self._counting:
            self._most_steps = max(self._most_steps, steps)
            return self._most_steps - steps

    def fetch_stamps(self) -> npt.NDArray[np.float64]:
        """Empties the queue of the worker whose device is current: float64 seconds [n, 2].

        Raises:
            tf.errors.OpError: The worker is gone.
        """
        stamps: npt.NDArray[np.float64] = self._fetch().numpy()
        return stamps

    def task_resource(self, task_type: str, index: int) -> TaskResource:
        """Returns the resource of the task whose device is current, as the task itself describes it.

        Raises:
            tf.errors.OpError: The task is gone.
        """
        try:
            task = describe(self._describe)
        except (tf.errors.NotFoundError, tf.errors.PermissionDeniedError) as error:
            _logger.info("%s:%d does not tell who it is (%s)", task_type, index, error.message)
            task = RemoteTask(pid=None, boot_id=None, host_name=None, clock_domain=None)
        return self.pipeline.task_resource(
            task_type,
            index,
            # Unknown: a clock of its own. To assume a shared one would be the unsafe guess.
            clock_domain=task.clock_domain or task.boot_id or f"{self.run_id}/{task_type}:{index}",
            host_name=task.host_name,
            host_id=task.boot_id,
            pid=task.pid,
        )

    def coordinator_timed_resource(self, index: int) -> TaskResource:
        """Returns a worker's resource for spans that carry the coordinator's clock."""
        return self.pipeline.task_resource("worker", index, clock_domain=self._identity.clock_domain)

    def probe_servers(self) -> list[Layout]:
        """Returns the layout of each parameter server's side of a probe; asks them who they are, once.

        Raises:
            tf.errors.OpError: A parameter server is gone.
        """
        with self._lock:
            if self._probe_servers is None:
                layouts = []
                for index in range(self._parameter_servers):
                    with ops.device(f"/job:ps/replica:0/task:{index}"):
                        resource = self.task_resource("ps", index)
                    layouts.append(
                        self.pipeline.layout(
                            semconv.SPAN_CLOCK_PROBE,
                            kind=SpanKind.SERVER,
                            resource=resource,
                            fields=(semconv.PROBE_PEER,),
                            constants={semconv.WORKER: f"ps:{index}"},
                            remote_parent=True,
                        )
                    )
                self._probe_servers = layouts
            return self._probe_servers
