"""Every setting of otel-tf, in one table: the fields of `Settings`.

An argument wins over an environment variable, a variable over the default. Variables follow
OpenTelemetry's rules: an empty value counts as unset, only ``true`` (any case) is true, durations are
integer milliseconds, and a value that cannot be read is reported by name and the default is used.
OpenTelemetry's own variables (``OTEL_*``) are read by its SDK and exporters, not here.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from otel_tf.errors import UserError

__all__ = ["Origin", "Settings", "resolve", "rows"]

_logger = logging.getLogger(__name__)

Origin = Literal["argument", "environment", "default"]


def _setting(env: str, default: Any, doc: str, kind: type = str) -> Any:
    return dataclasses.field(default=default, metadata={"env": env, "doc": doc, "kind": kind})


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings in force in one process. Field order is the order in the documentation."""

    run_id: str | None = _setting(
        "OTEL_TF_RUN_ID", None, "Name of the run, the same in all its processes; default: made or agreed."
    )
    run_dir: Path | None = _setting(
        "OTEL_TF_RUN_DIR",
        None,
        "Folder of this run's spool, shared by its processes; default: ./otel-tf-runs/<run id>.",
        Path,
    )
    clock_domain: str | None = _setting(
        "OTEL_TF_CLOCK_DOMAIN",
        None,
        "Name of the clock this process runs on; default: the host's boot id. Read on every task.",
    )
    spool: bool = _setting(
        "OTEL_TF_SPOOL", True, "Write every span to the run directory before it is sent anywhere.", bool
    )
    capture_logs: bool = _setting(
        "OTEL_TF_CAPTURE_LOGS",
        True,
        "Take the records of Python's logging, with the step they belong to; handlers are left alone.",
        bool,
    )
    log_prefix: bool = _setting(
        "OTEL_TF_LOG_PREFIX",
        False,
        "Put [worker:1 step 41207] before the messages that the program's own log handlers get.",
        bool,
    )
    capture_stderr: bool = _setting(
        "OTEL_TF_CAPTURE_STDERR",
        True,
        "Under `otel-tf run`, take what is written to stderr, C++ included; it still appears there.",
        bool,
    )
    worker_stamps: bool = _setting(
        "OTEL_TF_WORKER_STAMPS",
        True,
        "Under ParameterServerStrategy, stamp each step inside the graph with its worker's own clock.",
        bool,
    )
    collective_stamps: bool = _setting(
        "OTEL_TF_COLLECTIVE_STAMPS",
        True,
        "Under MultiWorkerMirroredStrategy, stamp each collective inside the graph, before and after.",
        bool,
    )
    drain_interval_ms: int = _setting(
        "OTEL_TF_DRAIN_INTERVAL", 2000, "How often a worker's stamps are fetched, in ms.", int
    )
    clock_probe_interval_ms: int = _setting(
        "OTEL_TF_CLOCK_PROBE_INTERVAL",
        5000,
        "How often clocks are compared, each worker's with each parameter server's or the chief's, in ms; "
        "0 turns it off.",
        int,
    )
    data_wait_threshold_ms: int = _setting(
        "OTEL_TF_DATA_WAIT_THRESHOLD",
        10,
        "How long a step must have waited for its data to get a `data_wait` span, in ms.",
        int,
    )
    flight_recorder: int = _setting(
        "OTEL_TF_FLIGHT_RECORDER",
        16,
        "How many steps' shorter waits for data are held back, to be written when a step fails or takes "
        "three times as long as usual; 0: none.",
        int,
    )
    keep_batch: bool = _setting(
        "OTEL_TF_KEEP_BATCH",
        True,
        "Keep the batch that a graph takes from its iterator until the next one, to be looked at if the step "
        "fails; it takes memory for one batch on each device.",
        bool,
    )
    failure_capture_ms: int = _setting(
        "OTEL_TF_FAILURE_CAPTURE",
        2000,
        "How long a step that failed may be held up to look at its tensors, in ms; 0: they are not looked "
        "at.",
        int,
    )
    tf_summaries: bool = _setting(
        "OTEL_TF_SUMMARIES",
        False,
        "Put what the program writes with `tf.summary.scalar` and `histogram` on its steps, too.",
        bool,
    )
    flush_interval_ms: int = _setting(
        "OTEL_TF_FLUSH_INTERVAL", 200, "How long a finished span may wait before it is spooled, in ms.", int
    )
    exit_timeout_ms: int = _setting(
        "OTEL_TF_EXIT_TIMEOUT", 2000, "How long the process's exit may wait for the network, in ms.", int
    )
    profile: str = _setting(
        "OTEL_TF_PROFILE",
        "off",
        "When profiles are taken: off, every=N (steps), steps=N (in one profile; default 2), on-slow, "
        "with-collectives, by commas. Touch profile.request in the run directory for one at any time.",
    )
    profile_signal: str | None = _setting(
        "OTEL_TF_PROFILE_SIGNAL", None, "A signal that asks for a profile, such as SIGUSR2."
    )
    profile_limit_ms: int = _setting(
        "OTEL_TF_PROFILE_LIMIT", 10_000, "Longest time of one profile, in ms.", int
    )
    profile_max_size_mb: int = _setting(
        "OTEL_TF_PROFILE_MAX_SIZE",
        1_000,
        "What all profiles of a run may take on disk, in MB; then no more are taken.",
        int,
    )
    jaeger_bin: Path | None = _setting(
        "OTEL_TF_JAEGER_BIN", None, "A Jaeger 2 binary for `otel-tf jaeger` and `otel-tf demo`.", Path
    )

    origins: Mapping[str, Origin] = dataclasses.field(default_factory=dict, repr=False, compare=False)


def rows() -> list[dataclasses.Field[Any]]:
    """Returns the table: one dataclass field a setting, with ``env``, ``doc`` and ``kind`` metadata."""
    return [field for field in dataclasses.fields(Settings) if "env" in field.metadata]


def _parse(text: str, kind: type) -> Any:
    if kind is bool:
        lowered = text.strip().lower()
        if lowered not in ("true", "false"):
            raise ValueError("neither true nor false")
        return lowered == "true"
    if kind is int:
        value = int(text)
        if value < 0:
            raise ValueError("negative")
        return value
    if kind is Path:
        return Path(text).expanduser()
    if not text.isprintable():
        raise ValueError("not printable")
    return text.strip()


def _argument(name: str, given: Any, field: dataclasses.Field[Any]) -> Any:
    kind: type = field.metadata["kind"]
    try:
        if isinstance(given, str):
            return _parse(given, kind)
        if kind is Path:
            return Path(given)
        if type(given) is not kind:
            raise ValueError(f"not of type {kind.__name__}")
        return _parse(str(given), kind) if kind is int else given
    except (ValueError, TypeError) as error:
        raise UserError(f"{name}={given!r} ({field.metadata['env']}) cannot be used: {error}") from error


def resolve(environ: Mapping[str, str] | None = None, **arguments: Any) -> Settings:
    """Returns the settings in force from arguments, environment variables and defaults.

    Args:
        environ: The environment; default ``os.environ``.
        **arguments: Fields of `Settings` given in code; ``None`` counts as not given.

    Raises:
        UserError: An argument is no setting, or not what the setting can be. (A bad variable only warns:
            it must not stop a training.)
    """
    environ = os.environ if environ is None else environ
    known = {field.name: field for field in rows()}
    for name in arguments:
        if name not in known:
            raise UserError(f"unknown setting {name!r}; known are: {', '.join(known)}")
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for name, field in known.items():
        kind: type = field.metadata["kind"]
        env: str = field.metadata["env"]
        values[name], origins[name] = field.default, "default"
        given = arguments.get(name)
        if given is not None:
            values[name], origins[name] = _argument(name, given, field), "argument"
            continue
        text = environ.get(env, "")
        if text.strip():
            try:
                values[name], origins[name] = _parse(text, kind), "environment"
            except ValueError as error:
                _logger.warning("%s=%r is ignored (%s); using %r", env, text, error, field.default)
    return Settings(**values, origins=origins)
