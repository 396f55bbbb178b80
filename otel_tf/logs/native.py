"""What a process writes to stderr, C++ included, captured: file descriptor 2 becomes a pipe to a `reader`.

C++ has no hook in Python, and writes to the descriptor. It must be done before TensorFlow is imported, whose
first lines come with its import.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import select
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_tf import semconv
from otel_tf._guard import Guard
from otel_tf.logs.encode import attribute_list

if TYPE_CHECKING:
    from otel_tf.identity import Identity

__all__ = ["NativeLogs", "capture_native_logs", "captured", "stem_of"]

_logger = logging.getLogger("otel_tf")
_READER = Path(__file__).with_name("reader.py")
_START_S = 10.0
_SYNC_S = 1.0
_STDERR = 2

_lock = threading.Lock()
#: "capture" while stderr is a pipe of ours.
_captured: dict[str, NativeLogs] = {}
_exit_guard = Guard("ending the capture of stderr")


class NativeLogs:
    """A process's captured stderr.

    Args:
        control: Where to tell the reader something.
        real: A descriptor of the stderr that was there before.
    """

    def __init__(self, control: socket.socket, real: int) -> None:
        self._control = control
        self._real = real
        self._pid = os.getpid()

    def name(self, folder: Path, stem: str, worker: str, attributes: str) -> None:
        """Says where the lines belong, once the run has its name.

        Args:
            folder: The run directory.
            stem: ``<task>.<pid>``.
            worker: The task.
            attributes: The process's resource, elements of a ``KeyValue`` array in JSON.
        """
        self._tell({"folder": str(folder), "stem": stem, "worker": worker, "attributes": attributes})

    def sync(self, timeout_s: float = _SYNC_S) -> bool:
        """Waits until everything written so far has been passed on and spooled; returns whether it has."""
        if os.getpid() != self._pid:
            return True  # a fork's child: the answers are for the parent
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        return self._tell({"sync": True}) and _answered(self._control, timeout_s)

    def release(self) -> None:
        """Puts the real stderr back; what was written is read to its end."""
        with _lock:
            if _captured.get("capture") is not self:
                return
            del _captured["capture"]
        atexit.unregister(self._at_exit)
        self.sync()
        os.dup2(self._real, _STDERR)
        os.close(self._real)
        self._control.close()

    def _at_exit(self) -> None:
        # A shell's prompt must not come before the last line.
        with _exit_guard:
            self.sync()

    def _tell(self, message: dict[str, Any]) -> bool:
        try:
            self._control.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True


def captured() -> NativeLogs | None:
    """Returns the capture of this process's stderr, if there is one."""
    capture = _captured.get("capture")
    # A fork's child writes into its parent's pipe, and has nothing to say about it.
    return capture if capture is not None and capture._pid == os.getpid() else None


def capture_native_logs(*, wanted: bool = True, **settings: Any) -> NativeLogs | None:
    """Captures what this process writes to stderr from now on; call it before TensorFlow is imported.

    Everything still appears on the real stderr, in order and at once. What cannot be done is said in the log,
    and nothing has changed then. A second call does nothing.

    Args:
        wanted: Whether the program itself asks for it; if not, ``OTEL_TF_CAPTURE_STDERR`` decides.
        **settings: Any field of `otel_tf.config.Settings`; wins over its variable.

    Returns:
        The capture; None where there is none: no stderr, the spool is off, or OpenTelemetry is disabled.

    Raises:
        UserError: A setting that does not exist, or a run id that cannot name a folder.
    """
    from otel_tf import config
    from otel_tf.identity import identify

    with _lock:
        if "capture" in _captured:
            return _captured["capture"]
        in_force = config.resolve(**settings)
        disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        if disabled or not in_force.spool or not (wanted or in_force.capture_stderr):
            return None
        identity = identify(in_force)
        folder = in_force.run_dir or Path("otel-tf-runs") / identity.run_id
        unnamed = {
            "folder": str(folder.absolute()),
            "stem": stem_of(identity),
            "worker": identity.task,
            "attributes": attribute_list(_resource(identity)),
        }
        try:
            capture = _start(unnamed, named=identity.run_origin != "made")
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            _logger.warning("stderr is not captured (%s)", error)
            return None
        _captured["capture"] = capture
        atexit.register(capture._at_exit)
        return capture


def stem_of(identity: Identity) -> str:
    """Returns the front of the names of a process's files."""
    return f"{identity.task.replace(':', '-')}.{os.getpid()}"


def _start(unnamed: dict[str, Any], *, named: bool) -> NativeLogs:
    """Starts the reader, then redirects.

    Raises:
        OSError: There is no stderr, or no process could be started.
    """
    if not sys.executable:
        raise OSError("there is no Python executable to run the reader")
    os.fstat(_STDERR)
    with contextlib.ExitStack() as opened:
        undo = opened.enter_context(contextlib.ExitStack())

        def owned(descriptor: int) -> int:
            undo.callback(os.close, descriptor)
            return descriptor

        real = owned(os.dup(_STDERR))
        source, sink = os.pipe()
        opened.callback(os.close, source)
        opened.callback(os.close, sink)
        ours, theirs = socket.socketpair()
        undo.callback(ours.close)
        with theirs:
            subprocess.run(
                [
                    *(sys.executable, "-I", "-S", str(_READER)),
                    *(str(theirs.fileno()), "named" if named else "unnamed", json.dumps(unnamed)),
                ],
                stdin=source,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                # Away from the terminal's Ctrl-C, and from a launcher that ends a group of processes.
                start_new_session=True,
                timeout=_START_S,
                check=True,
            )
        if not _answered(ours, _START_S):
            raise OSError("its reader did not start")
        with contextlib.suppress(AttributeError, OSError, ValueError):
            sys.stderr.flush()
        os.dup2(sink, _STDERR)
        undo.pop_all()
    return NativeLogs(ours, real)


def _answered(control: socket.socket, timeout_s: float) -> bool:
    readable, _, _ = select.select([control], [], [], timeout_s)
    try:
        return bool(readable) and control.recv(64) != b""
    except OSError:
        return False


def _resource(identity: Identity) -> dict[str, str | int | None]:
    """Returns what is known of this process before anything of OpenTelemetry's is imported."""
    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-", "-c", "-m") else ""
    return {
        semconv.SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME") or script or "tensorflow",
        semconv.SERVICE_INSTANCE_ID: identity.process,
        semconv.HOST_NAME: identity.host_name,
        semconv.PROCESS_PID: os.getpid(),
        semconv.RUN_ID: identity.run_id,
        semconv.TASK_TYPE: identity.task_type,
        semconv.TASK_INDEX: identity.task_index,
        semconv.CLUSTER_SIZE: identity.cluster_size,
        semconv.CLOCK_DOMAIN: identity.clock_domain,
    }
