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

_LOOK_S = 1.0
#: How long one wait for the chief's word lasts: the end of the process may have to wait for it.
_WAIT_S = 0.2
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
        patience_s: How long spans wait for the chief's word once it could be there.

    Attributes:
        joining: Whether this process is waiting for the others to come up; that may take its time.
    """

    def __init__(
        self, pipeline: Pipeline, identity: Identity, occasion: str, patience_s: float = 30.0
    ) -> None:
        self.joining = False
        self._pipeline = pipeline
        self._identity = identity
        self._key = f"{occasion}/run"
        self._patience_s = patience_s
        self._since: float | None = None
        self._forget: Callable[[], None] = lambda: None

    def watch(self) -> None:
        """Looks now and then whether it has waited long enough."""
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
        while not self._pipeline.named.is_set() and not stopped.is_set():
            name = key_value.get(self._key, _WAIT_S)
            if name is not None:
                self._pipeline.name(self._identity.named(name))

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
        elif self.joining:
            self._since = None
        elif key_value.ready() or self._pipeline.waiting:
            self._since = self._since or time.monotonic()
            if time.monotonic() - self._since > self._patience_s:
                self.give_up(f"the chief did not tell the run's name within {self._patience_s:g} s")
