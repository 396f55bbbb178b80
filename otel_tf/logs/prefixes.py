"""What launchers and log collectors put before a line of a process's own output: who wrote it, and when."""

from __future__ import annotations

import re
from typing import NamedTuple

from otel_tf.logs.heads import Clock, zoned
from otel_tf.logs.severity import UNKNOWN, of_word

__all__ = ["Prefix", "strip_prefix", "task_in"]


class Prefix(NamedTuple):
    """What stood before a line.

    Attributes:
        rest: The line behind it.
        source: What tells the sources of an interleaved stream apart: a pod, a rank, a process.
        worker: The task, where the prefix names one, such as ``worker:1`` or ``rank:3``.
        stream: ``stdout`` or ``stderr``, where it says so.
        time_ns: When the line was taken, where it says so.
        severity: The launcher's own level, 0 for none.
        file: The launcher's own source file, where it says so.
        line: Line in it.
        pod: The pod, where it names one.
    """

    rest: str
    source: str | None = None
    worker: str | None = None
    stream: str | None = None
    time_ns: int | None = None
    severity: int = UNKNOWN
    file: str | None = None
    line: int | None = None
    pod: str | None = None


_TASKS = r"worker|ps|chief|master|evaluator|launcher|coordinator"
_TASK_NAME = re.compile(rf"(?:^|[-_./])({_TASKS})[-_:]?(\d+)(?=$|[-_./:])", re.IGNORECASE)
#: Pods, containers and services are named in lower case, with dashes and a number at the end mostly.
_POD = r"[a-z0-9][a-z0-9.\-]*"

_MPIRUN = re.compile(
    r"\[(?:[\w.@\-]*@)?(\d+),(\d+)\](?:\[[^\]]*\])?<(stdout|stderr|stddiag)>: ?(.*)", re.DOTALL
)
_HOROVODRUN = re.compile(r"\[(\d+)\]<(stdout|stderr)>: ?(.*)", re.DOTALL)
_RANK = re.compile(r"\[(?:default|rank)(\d+)\]: ?(.*)", re.DOTALL)
_KUBECTL = re.compile(rf"\[pod/({_POD})/({_POD})\] ?(.*)", re.DOTALL)
_RAY = re.compile(r"\((?:([\w.:]+) )?pid=(\d+)(?:, ip=([\w.:]+))?\) ?(.*)", re.DOTALL)
_COMPOSE = re.compile(rf"({_POD}[-_]\d+) +\| (.*)", re.DOTALL)
_STERN = re.compile(rf"({_POD}-(?:\d+|[a-z0-9]{{5}})) ({_POD}) (?:› |[│|] )?(.*)", re.DOTALL)
#: ``kubectl logs --timestamps``, a container's own log file.
_STAMP = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d:\d\d:\d\d)\.(\d{6,9})(Z|[+-]\d\d:\d\d) (?:(stdout|stderr) [FP] )?(.*)",
    re.DOTALL,
)
#: Kubeflow's launcher.
_LAUNCHER = re.compile(
    r"(DEBUG|INFO|WARNING|ERROR)\|(\d{4})-(\d\d)-(\d\d)T(\d\d:\d\d:\d\d)\|([^|]+)\|(\d+)\| ?(.*)", re.DOTALL
)
_OWN = re.compile(rf"\[((?:{_TASKS}|local|rank):\d+) step (\d+)\] (.*)", re.DOTALL)
_NCCL = re.compile(r"([\w.\-]+):(\d+):(\d+) \[(\d+)\] (?=.*NCCL )", re.DOTALL)


def task_in(name: str) -> str | None:
    """Returns the task that a pod, host or file is named after, such as ``ps:0`` for ``train-ps-0.log``."""
    match = _TASK_NAME.search(name)
    return f"{match[1].lower()}:{match[2]}" if match else None


def strip_prefix(text: str, clock: Clock) -> Prefix | None:
    """Returns what a launcher put before a line, one layer of it; None where there is nothing known.

    Args:
        text: The line.
        clock: Says what local times mean.
    """
    first = text[:1]
    if first == "[":
        return _bracketed(text)
    if first == "(":
        if match := _RAY.match(text):
            name, pid, ip, rest = match.groups()
            source = f"{name or 'ray'} pid={pid}" + (f", ip={ip}" if ip else "")
            return Prefix(rest, source, task_in(name or ""))
        return None
    if first.isdigit() and (match := _STAMP.match(text)):
        year, month, day, time, fraction, zone, stream, rest = match.groups()
        time_ns = zoned(clock, (int(year), int(month), int(day)), time, fraction, zone)
        return Prefix(rest, stream=stream, time_ns=time_ns)
    if first in "DIWE" and (match := _LAUNCHER.match(text)):
        level, year, month, day, time, file, line, rest = match.groups()
        time_ns = clock.ns((int(year), int(month), int(day)), time)
        return Prefix(rest, time_ns=time_ns, severity=of_word(level), file=file, line=int(line))
    return _named(text)


def _bracketed(text: str) -> Prefix | None:
    if match := _MPIRUN.match(text):
        job, rank, stream, rest = match.groups()
        return Prefix(rest, f"rank {rank} of job {job}", f"rank:{rank}", stream)
    if match := _HOROVODRUN.match(text):
        rank, stream, rest = match.groups()
        return Prefix(rest, f"rank {rank}", f"rank:{rank}", stream)
    if match := _RANK.match(text):
        return Prefix(match[2], f"rank {match[1]}", f"rank:{match[1]}")
    if match := _KUBECTL.match(text):
        pod, container, rest = match.groups()
        return Prefix(rest, f"{pod}/{container}", task_in(pod), pod=pod)
    return None


def _named(text: str) -> Prefix | None:
    if " | " in text[:80] and (match := _COMPOSE.match(text)):
        return Prefix(match[2], match[1], task_in(match[1]))
    if "NCCL" in text and (match := _NCCL.match(text)):
        host, pid, _, _ = match.groups()
        # The line is left as it is: this is NCCL's own head.
        return Prefix(text, f"{host}:{pid}", None, pod=host)
    if (match := _STERN.match(text)) and task_in(match[1]):
        pod, container, rest = match.groups()
        return Prefix(rest, f"{pod}/{container}", task_in(pod), pod=pod)
    return None
