"""The seam that takes profiles: by step number, when steps become slow, and on demand.

Nothing of it runs on the training thread: the pipeline's own thread looks how far training is, several times
a second where it must, and a thread for each profile takes it. Workers of a synchronous strategy all know the
step's number, and so they take the same steps without a word; asked on demand, they begin at one time after
the request. A coordinator takes the profiles of its workers and parameter servers through their own ports.

A session of the program's own comes first: while one is open ours does not begin, and one that begins ends
ours.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

from tensorflow.python.profiler.internal import _pywrap_profiler

from otel_tf import config, semconv
from otel_tf._guard import Guard
from otel_tf.config import Settings
from otel_tf.errors import UserError
from otel_tf.identity import Identity
from otel_tf.instrumentation.profiler.notes import Notes
from otel_tf.instrumentation.profiler.policy import Policy, SlowSteps
from otel_tf.instrumentation.profiler.request import Requests, signal_of
from otel_tf.instrumentation.profiler.sessions import (
    SUFFIX,
    LocalSession,
    RemoteSession,
    is_coordinated,
    profiles_in,
    server_addresses,
    session_folder,
)
from otel_tf.instrumentation.run_spans import RunSpan, RunSpans
from otel_tf.instrumentation.seams import Seam, Seams
from otel_tf.instrumentation.steps import Steps
from otel_tf.telemetry import AttributeValue, Pipeline

__all__ = ["CaptureSeam"]

Call = Callable[..., Any]
Parsed = TypeVar("Parsed")

_logger = logging.getLogger("otel_tf")
_CAPTURING = Guard("taking a profile")
_YIELDING = Guard("ending a profile for another one")

#: How often the step is looked at where the policy watches steps, and where only a request may come.
_WATCHING_S = 0.1
_IDLE_S = 1.0
#: How long before the first wanted step a session begins, in s, so that all have begun by then.
_LEAD_S = 0.3
#: The least time of a profile that nobody asked certain steps of.
_LEAST_S = 2.0
#: How long after a request workers begin, each of which looks for itself whether one was made.
_REQUEST_DELAY_S = 2.5
#: How often a running session looks for its last step.
_END_LOOK_S = 0.01
#: How long servers may still take when the process is about to end.
_LAST_WORD_S = 1.0
#: After a profile of slow steps the next one is this far off.
_SLOW_AGAIN_S = 600.0


@dataclasses.dataclass(frozen=True)
class _Plan:
    """A profile to be taken.

    Attributes:
        session: Its name.
        reason: Why.
        first: The first step that is wanted, or 0.
        delay_s: How long to wait before it begins.
    """

    session: str
    reason: Literal["every", "slow", "request"]
    first: int = 0
    delay_s: float = 0.0


def _parsed(settings: Settings, name: str, parse: Callable[[str], Parsed], default: Parsed) -> Parsed:
    """Returns what a setting says; a bad variable only warns, like all: it must not stop a training.

    Raises:
        UserError: It was given in code, and says nothing that we know.
    """
    text = getattr(settings, name)
    if text is None:
        return default
    try:
        return parse(text)
    except ValueError as error:
        variable = next(row.metadata["env"] for row in config.rows() if row.name == name)
        if settings.origins.get(name) == "argument":
            raise UserError(f"{name}={text!r} ({variable}) cannot be used: {error}") from error
        _logger.warning("%s=%r is ignored (%s); using %r", variable, text, error, "off")
        return default


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:  # deleted just now
        return 0


def _taken(durations_ns: deque[int]) -> list[int]:
    """Takes all elements of a queue that others add to."""
    return [durations_ns.popleft() for _ in range(len(durations_ns))]


class CaptureSeam(Seam):
    """Decides when, and takes them."""

    def __init__(
        self,
        pipeline: Pipeline,
        settings: Settings,
        identity: Identity,
        steps: Steps,
        run_spans: RunSpans,
    ) -> None:
        self._pipeline = pipeline
        self._limit_s = settings.profile_limit_ms / 1000
        self._most_bytes = settings.profile_max_size_mb * 1_000_000
        self._identity = identity
        self._steps = steps
        self._run_spans = run_spans
        self._policy = _parsed(settings, "profile", Policy.parse, Policy())
        self._requests = Requests(pipeline, _parsed(settings, "profile_signal", signal_of, None))
        self._notes = Notes(pipeline)
        self._slow = SlowSteps()
        self._local = LocalSession()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._forget: list[Callable[[], None]] = []
        #: The step and the time of the last look, and steps a second.
        self._looked: tuple[int, float] | None = None
        self._rate = 0.0
        self._bytes_a_second = 0.0
        self._slow_not_before = -math.inf
        self._last_target = 0
        self._said_full = False
        self._said_unsafe = False

    def attach(self, seams: Seams) -> None:
        """Begins to look, and gives way to sessions of the program's own.

        Raises:
            DidNotInstrument: This TensorFlow's profiler is not one we know.
        """
        seams.wrap(_pywrap_profiler, "ProfilerSession", self._give_way)
        self._requests.listen()
        self._forget = [
            self._requests.ignore,
            self._pipeline.every(_WATCHING_S if self._policy.watches else _IDLE_S, self.look),
            # A thread that comes back from TensorFlow while Python goes down would abort the process.
            self._pipeline.before_exit(self._end),
        ]

    def detach(self) -> None:
        """Ends what is being taken, and looks no more."""
        for forget in self._forget:
            forget()
        self._forget = []
        self._end(_LEAST_S)

    def look(self) -> None:
        """Begins a profile where one is due; runs on the pipeline's thread."""
        running = self._thread is not None and self._thread.is_alive()
        self._notes.cluster()
        slow = self._policy.on_slow and self._slow.saw(_taken(self._steps.durations_ns))
        self._measure_rate()
        if running or self._stop.is_set() or not self._pipeline.named.is_set():
            return
        plan = self._due(slow)
        if plan is not None and self._is_safe() and self._has_room():
            self._thread = threading.Thread(
                target=self._run, args=(plan,), name="otel-tf profile", daemon=True
            )
            self._thread.start()

    # -- when --------------------------------------------------------------------------------------------

    def _due(self, slow: bool) -> _Plan | None:
        now = time.monotonic()
        if slow and now >= self._slow_not_before:
            self._slow_not_before = now + _SLOW_AGAIN_S
            self._slow.forget()
            # The others learn of it as of any request.
            self._requests.make("slow")
        request = self._requests.take()
        if request is not None:
            delay_s = 0.0
            if self._identity.cluster_size > 1 and not server_addresses():
                delay_s = min(max(request.time_s + _REQUEST_DELAY_S - time.time(), 0.0), _REQUEST_DELAY_S)
            return _Plan(request.name, request.reason, delay_s=delay_s)
        every, at = self._policy.every, self._steps.at
        if every and at is not None:
            target = (at // every + 1) * every
            lead = max(1.0, self._rate * (_WATCHING_S + _LEAD_S))
            if target - at <= lead and target != self._last_target:
                self._last_target = target
                return _Plan(f"step-{target}", "every", target)
        return None

    def _measure_rate(self) -> None:
        at, now = self._steps.at, time.monotonic()
        if at is None:
            return
        if self._looked is not None:
            before, then = self._looked
            rate = (at - before) / (now - then) if at > before and now > then else 0.0
            # Quick to rise: to begin too early costs less than to begin too late.
            self._rate = max(rate, 0.8 * self._rate + 0.2 * rate)
        self._looked = at, now

    def _is_safe(self) -> bool:
        """Returns whether the process survives it.

        At the end of a session TensorFlow 2.21 gathers what threads recorded (`TraceMeRecorder::Consume`)
        and writes into memory that it has freed. Two of 190 sessions of two workers' bare loop ended in a
        crash, with us about one in ten, each of the worker that is not the first. None of 300 of one process
        did, nor of 1,300 of servers without a coordination service.
        """
        if self._policy.collectives or not is_coordinated():
            return True
        if not self._said_unsafe:
            self._said_unsafe = True
            _logger.warning(
                "no profile is taken: TensorFlow may crash when the profile of a process that meets "
                "others in collectives ends; with-collectives in OTEL_TF_PROFILE takes it all the same"
            )
        return False

    def _has_room(self) -> bool:
        if self._room() > 0:
            return True
        if not self._said_full:
            self._said_full = True
            _logger.warning(
                "no more profiles are taken: those in %s have reached OTEL_TF_PROFILE_MAX_SIZE",
                self._pipeline.run_dir / "profiles",
            )
        return False

    def _room(self) -> int:
        """Returns how many bytes profiles may still take."""
        return self._most_bytes - sum(_size(file) for file in profiles_in(self._pipeline.run_dir))

    # -- taking one ----------------------------------------------------------------------------------------

    def _run(self, plan: _Plan) -> None:
        with _CAPTURING:
            if not self._stop.wait(plan.delay_s):
                self._take(plan)

    def _take(self, plan: _Plan) -> None:
        limit_s = self._limit_s
        if self._bytes_a_second:
            limit_s = min(limit_s, self._room() / self._bytes_a_second)
        own = self._identity.task.replace(":", "-") + SUFFIX
        session, folder = plan.session, session_folder(self._pipeline.run_dir, plan.session)
        again = 1
        while (folder / own).exists():  # of a process of this name before this one
            again += 1
            session = f"{plan.session}-{again}"
            folder = session_folder(self._pipeline.run_dir, session)
        began = time.monotonic()
        if not self._local.start(folder):
            _logger.info("no profile %s: the program takes one of its own", session)
            self._remove_if_empty(folder)
            return
        reason = {semconv.PROFILER_SESSION: session, semconv.PROFILE_REASON: plan.reason}
        span = self._run_spans.begin(semconv.SPAN_PROFILE_CAPTURE, reason)
        servers = server_addresses()
        remote = RemoteSession(servers) if servers else None
        files: list[Path] = []
        try:
            if remote is not None:
                remote.start(limit_s)
            self._wait_for_steps(plan, began + limit_s, len(servers))
        finally:
            if remote is not None:
                remote.end()
            lasted_s = time.monotonic() - began
            if self._local.save(folder / own):
                files.append(folder / own)
            if remote is not None:
                files += remote.save(folder, self._stop, _LAST_WORD_S)
            self._tell(span, lasted_s, files, folder)

    def _wait_for_steps(self, plan: _Plan, until: float, servers: int) -> None:
        """Waits for the last wanted step to end, but no longer than ``until``."""
        least = time.monotonic() + (0.0 if plan.first else _LEAST_S)
        # The step that is under way is not wholly inside, nor are those of all workers of a coordinator.
        last = (plan.first or (self._steps.at or 0) + 2) + self._policy.steps - 1 + servers
        while time.monotonic() < until and not self._stop.wait(_END_LOOK_S):
            if (self._steps.at or 0) >= last and time.monotonic() >= least:
                return

    def _tell(self, span: RunSpan, lasted_s: float, files: list[Path], folder: Path) -> None:
        size = sum(file.stat().st_size for file in files)
        self._bytes_a_second = max(self._bytes_a_second, size / max(lasted_s, 0.001))
        if not files:
            _logger.info("the profile %s was given up", folder.name)
            self._remove_if_empty(folder)
            return
        attributes: dict[str, AttributeValue | None] = {
            semconv.PROFILE_TASKS: sorted(file.name.removesuffix(SUFFIX) for file in files),
            semconv.PROFILE_SIZE: size,
        }
        self._run_spans.end(span, attributes=attributes)

    @staticmethod
    def _remove_if_empty(folder: Path) -> None:
        try:
            folder.rmdir()
        except OSError:
            _logger.debug("%s is not empty: another process has taken its profile", folder)

    # -- giving way ------------------------------------------------------------------------------------------

    def _give_way(self, wrapped: Call, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with _YIELDING:
            self._local.drop()
        return wrapped(*args, **kwargs)

    def _end(self, timeout_s: float) -> None:
        self._stop.set()
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
