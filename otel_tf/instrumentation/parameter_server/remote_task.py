"""What a worker or parameter server can tell of itself from inside a graph: who it is, what time it has."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

__all__ = ["ClockProbe", "RemoteTask", "describe", "describing_function", "probe_clocks", "probing_function"]

#: Variables read on the task. Picked out inside the graph, so that nothing secret ever travels.
_VARIABLES = ("OTEL_TF_CLOCK_DOMAIN", "HOSTNAME")


@dataclasses.dataclass(frozen=True)
class RemoteTask:
    """Identity of a task's process, as read on the task itself; None where it could not be read."""

    pid: int | None
    boot_id: str | None
    host_name: str | None
    clock_domain: str | None


@dataclasses.dataclass(frozen=True)
class ClockProbe:
    """One round trip worker → parameter server → worker, in ns of each task's own wall clock."""

    parameter_server: int
    sent_ns: int
    answered_ns: int
    received_ns: int


def _variable(environ: tf.Tensor, name: str) -> tf.Tensor:
    pattern = rf"(?s)(?:.*\x00)?{name}=([^\x00]*)(?:\x00.*)?"
    value = tf.strings.regex_replace(environ, f"^{pattern}$", r"\1", replace_global=False)
    # Without this condition a missing variable would leave the whole environment in place.
    return tf.where(tf.strings.regex_full_match(environ, pattern), value, tf.constant(""))


def describing_function() -> Any:
    """Returns a tf.function that reads the identity of the task it runs on: string [5]."""

    @tf.function(autograph=False, input_signature=())
    def otel_tf_describe_task() -> tf.Tensor:
        with tf.device("/device:CPU:0"):
            environ = tf.io.read_file("/proc/self/environ")
            stat = tf.io.read_file("/proc/self/stat")
            return tf.stack(
                [
                    tf.strings.regex_replace(stat, r"(?s)^(\d+) .*$", r"\1"),
                    tf.strings.strip(tf.io.read_file("/proc/sys/kernel/random/boot_id")),
                    tf.strings.strip(tf.io.read_file("/proc/sys/kernel/hostname")),
                    *(_variable(environ, name) for name in _VARIABLES),
                ]
            )

    return otel_tf_describe_task


def describe(function: Any) -> RemoteTask:
    """Runs a `describing_function` on the current device.

    Raises:
        tf.errors.OpError: The task is gone, or has no /proc.
    """
    pid, boot_id, kernel_name, domain, host_name = (
        value.decode("utf-8", "replace") for value in function().numpy().tolist()
    )
    return RemoteTask(
        pid=int(pid) if pid.isdigit() else None,
        boot_id=boot_id or None,
        # In a container HOSTNAME and the kernel's name agree; the variable is what the pod was told.
        host_name=host_name or kernel_name or None,
        clock_domain=domain or None,
    )


def probing_function(parameter_servers: int, rounds: int) -> Any:
    """Returns a tf.function that asks every parameter server for the time: float64 s [rounds, ps, 3].

    It runs on a worker; the columns are sent (worker's clock), answered (parameter server's clock) and
    received (worker's clock). Rounds follow each other; parameter servers are asked side by side.
    """

    @tf.function(autograph=False, input_signature=())
    def otel_tf_probe_clocks() -> tf.Tensor:
        results = []
        previous: list[tf.Tensor] = []
        for _ in range(rounds):
            this_round = []
            for index in range(parameter_servers):
                with tf.control_dependencies(previous), tf.device("/device:CPU:0"):
                    sent = tf.timestamp()
                with (
                    tf.control_dependencies([sent]),
                    tf.device(f"/job:ps/replica:0/task:{index}/device:CPU:0"),
                ):
                    answered = tf.timestamp()
                with tf.device("/device:CPU:0"):
                    # A data dependency makes the answer itself travel back before the third stamp.
                    here = tf.identity(answered)
                    with tf.control_dependencies([here]):
                        received = tf.timestamp()
                    this_round.append(tf.stack([sent, here, received]))
            previous = this_round
            results.append(tf.stack(this_round))
        return tf.stack(results)

    return otel_tf_probe_clocks


def probe_clocks(function: Any) -> list[ClockProbe]:
    """Runs a `probing_function` on the current device, a worker's.

    Raises:
        tf.errors.OpError: The worker or a parameter server is gone.
    """
    stamps: npt.NDArray[np.int64] = np.rint(function().numpy() * 1e9).astype(np.int64)
    return [
        ClockProbe(index, *(int(stamp) for stamp in probe))
        for one_round in stamps
        for index, probe in enumerate(one_round)
    ]
