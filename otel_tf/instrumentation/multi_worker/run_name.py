"""The run's name, where nothing gave it: the chief has made one, and tells the others."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from otel_tf.identity import Identity
from otel_tf.instrumentation.multi_worker import key_value
from otel_tf.telemetry import Pipeline

__all__ = ["RunName", "awaits_name"]

_logger = logging.getLogger("otel_tf")

#: How long spans wait for the chief's word once it could be there.
_PATIENCE_S = 30.0
_LOOK_S = 1.0
#: Class of `tf.distribute.MultiWorkerMirroredStrategy`, and of its experimental elder.
_STRATEGIES = ("CollectiveAllReduceStrategy", "_CollectiveAllReduceStrategyExperimental")


def awaits_name(identity: Identity) -> bool:
    """Returns whether this process is one of a cluster's workers, whose run the chief names."""
    return (
        identity.run_origin == "made"
        and identity.cluster_size > 1
        and identity.task_type in ("chief", "worker")
        and not identity.is_chief
        and identity.strategy in (None, *_STRATEGIES)
    )


class RunName:
    """One process's part in agreeing.

    Args:
        pipeline: Where spans wait for the name.
        identity: Who this process is.
        occasion: Tells this agreement from earlier ones of the same processes.
    """

    def __init__(self, pipeline: Pipeline, identity: Identity, occasion: str) -> None:
        self._pipeline = pipeline
        self._identity = identity
        self._key = f"{occasion}/run"
        self._waiting_since: float | None = None
        self._forget: Callable[[], None] = lambda: None

    def watch(self) -> None:
        """Looks now and then whether spans wait for a service that nobody starts."""
        if not self._pipeline.named.is_set():
            self._forget = self._pipeline.every(_LOOK_S, self._look)

    def agree(self, stopped: threading.Event) -> None:
        """Tells the name or waits for it; needs the coordination service.

        Raises:
            tf.errors.OpError: The service is gone.
        """
        if self._identity.is_chief:
            key_value.put(self._key, self._identity.run_id)
            return
        until = time.monotonic() + _PATIENCE_S
        while not self._pipeline.named.is_set() and not stopped.is_set():
            name = key_value.get(self._key, _LOOK_S)
            if name is not None:
                self._pipeline.name(self._identity.named(name))
            elif time.monotonic() > until:
                self.give_up(f"the chief did not tell its run's name within {_PATIENCE_S:.0f} s")

    def give_up(self, why: str) -> None:
        """Goes on under a name of this worker's own, unless there is one."""
        self._forget()
        if self._pipeline.named.is_set():
            return
        if self._pipeline.waiting:
            _logger.warning(
                "%s; the spans of %s are in a run of their own, %s (OTEL_TF_RUN_ID, given to all "
                "processes, names their run)",
                why,
                self._identity.task,
                self._pipeline.run_dir,
            )
        self._pipeline.name()

    def _look(self) -> None:
        if self._pipeline.named.is_set():
            self._forget()
        elif key_value.ready():
            self._waiting_since = None  # `agree` has a patience of its own
        elif self._pipeline.waiting:
            self._waiting_since = self._waiting_since or time.monotonic()
            if time.monotonic() - self._waiting_since > _PATIENCE_S:
                self.give_up("there is no coordination service to learn the run's name by")
