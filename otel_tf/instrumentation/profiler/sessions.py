"""Taking one profile: of this process, and of the servers that a coordinator's workers are.

The files go where XProf and TensorBoard look for them, below a log directory ``<run directory>/profiles``:
``plugins/profile/<session>/<task>.xplane.pb``, with a task such as ``worker-1``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import grpc
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.python.eager import context
from tensorflow.python.profiler.internal import _pywrap_profiler

from otel_tf import ids
from otel_tf.instrumentation.profiler import service

__all__ = [
    "SUFFIX",
    "LocalSession",
    "RemoteSession",
    "is_coordinated",
    "profiles_in",
    "server_addresses",
    "session_folder",
]

_logger = logging.getLogger("otel_tf")

SUFFIX = ".xplane.pb"
#: How long servers may take to hand over what they have.
_HAND_OVER_S = 60.0
#: How often it is looked whether they have.
_LOOK_S = 0.05
#: TensorFlow's own, from before others have put theirs in its place.
_Session = _pywrap_profiler.ProfilerSession


def session_folder(run_dir: Path, session: str) -> Path:
    """Returns where the files of a session go."""
    return _folder(run_dir) / session


def _folder(run_dir: Path) -> Path:
    return run_dir / "profiles" / "plugins" / "profile"


def profiles_in(run_dir: Path) -> list[Path]:
    """Returns the profiles of a run, by session and task; others may be writing theirs meanwhile."""
    folder = _folder(run_dir)
    # Not by Path.glob, which fails where a folder goes while it looks.
    found = (Path(at) / name for at, _, names in os.walk(folder) for name in names)
    return sorted(file for file in found if file.parent.parent == folder and file.name.endswith(SUFFIX))


class LocalSession:
    """The profile of this process. At most one session of a process can be open, whosever it is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: object | None = None
        self._scratch = ""

    def start(self, folder: Path) -> bool:
        """Starts it; returns False where somebody else takes a profile of this process.

        Args:
            folder: From `session_folder`.

        Raises:
            OSError: The folder cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with self._lock:
            self._scratch = tempfile.mkdtemp(prefix=".taking-", dir=folder)
            session = _Session()
            try:
                session.start(self._scratch, {})
            except tf.errors.AlreadyExistsError:
                shutil.rmtree(self._scratch, ignore_errors=True)
                return False
            self._session = session
            return True

    def save(self, file: Path) -> bool:
        """Ends it and writes its file; returns False where it was dropped before.

        Raises:
            tf.errors.OpError, OSError: It could not be written.
        """
        with self._lock:
            session, self._session = self._session, None
            if session is None:
                return False
            try:
                session.export_to_tb()  # type: ignore[attr-defined]
                return _take(Path(self._scratch), file)
            finally:
                shutil.rmtree(self._scratch, ignore_errors=True)

    def drop(self) -> None:
        """Ends it without a file, so that another one can begin."""
        with self._lock:
            if self._session is not None:
                self._session = None  # ends with its object
                shutil.rmtree(self._scratch, ignore_errors=True)


class RemoteSession:
    """The profiles of servers that run nothing of ours, taken through their own ports.

    Args:
        addresses: ``host:port`` by task.
    """

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._addresses = addresses
        # Not another session's: a server remembers what it was told to end.
        self._id = f"otel-tf-{ids.random_span_id():016x}"
        self._channels: dict[str, grpc.Channel] = {}
        self._answers: dict[str, grpc.Future] = {}
        self._ends: list[grpc.Future] = []

    def start(self, limit_s: float) -> None:
        """Starts it and returns at once.

        Args:
            limit_s: When it ends by itself.
        """
        request = service.messages().profile(self._id, max(int(limit_s * 1000), 1))
        for task, address in self._addresses.items():
            channel = self._channels[task] = grpc.insecure_channel(address, options=service.UNLIMITED)
            call = channel.unary_unary(service.PROFILE)
            self._answers[task] = call.future(request, timeout=limit_s + _HAND_OVER_S)

    def end(self) -> None:
        """Tells the servers that it is over; returns at once."""
        request = service.messages().terminate(self._id)
        # Kept: a call that nobody holds is cancelled.
        self._ends = [
            channel.unary_unary(service.TERMINATE).future(request, timeout=_HAND_OVER_S)
            for channel in self._channels.values()
        ]

    def save(self, folder: Path, stop: threading.Event, grace_s: float) -> list[Path]:
        """Waits for what the servers have, and writes their files. Returns these.

        Args:
            folder: From `session_folder`.
            stop: Set when the process is about to end.
            grace_s: How long to wait after that, in s.

        Raises:
            OSError: A file could not be written.
        """
        files = []
        until = time.monotonic() + _HAND_OVER_S
        try:
            for task, answer in self._answers.items():
                while not answer.done() and time.monotonic() < until:
                    if stop.is_set():
                        until = min(until, time.monotonic() + grace_s)
                        stop = threading.Event()
                    time.sleep(_LOOK_S)
                xspace = self._xspace(task, answer)
                if xspace:
                    scratch = folder / f".{task}.taking"
                    scratch.write_bytes(xspace)
                    files.append(scratch.replace(folder / f"{task}{SUFFIX}"))
        finally:
            for channel in self._channels.values():
                channel.close()  # cancels what still goes on
        return files

    def _xspace(self, task: str, answer: grpc.Future) -> bytes:
        try:
            return service.messages().xspace(answer.result(timeout=0.0))
        except (grpc.RpcError, grpc.FutureTimeoutError, DecodeError) as error:
            # Another session of the server's is the common reason.
            code = error.code().name if isinstance(error, grpc.RpcError) else type(error).__name__
            _logger.info("%s has no profile to hand over: %s", task, code)
            return b""


def _take(scratch: Path, target: Path) -> bool:
    """Moves the profile below a folder to where it belongs; returns whether there was one."""
    for file in scratch.rglob(f"*{SUFFIX}"):
        # A profile of more than TensorFlow can write comes out empty.
        if file.stat().st_size:
            file.replace(target)
            return True
    return False


def is_coordinated() -> bool:
    """Returns whether this process, or its cluster, has joined TensorFlow's coordination service."""
    return getattr(context.context(), "coordination_service", None) is not None


def server_addresses() -> dict[str, str]:
    """Returns ``host:port`` of each worker and parameter server of a coordinator, by task; else none.

    Under MultiWorkerMirroredStrategy each process takes a profile of its own.
    """
    server = context.context().get_server_def()
    if server is None:
        return {}
    found = {
        f"{job.name}-{index}": address
        for job in server.cluster.job
        if job.name in ("worker", "ps")
        for index, address in job.tasks.items()
    }
    with contextlib.suppress(KeyError):
        del found[f"{server.job_name}-{server.task_index}"]
    return found
