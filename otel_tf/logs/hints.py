"""Worker and step, where a text names them: patterns of TensorFlow's own loops and hooks, and of Keras."""

from __future__ import annotations

import re

__all__ = ["Patterns", "Progress", "own_task"]

_TASKS = r"worker|ps|chief|master|evaluator|coordinator"

#: The one who writes, at the front of a line, or where the runtime says who it is. Other tasks that a text
#: names may be anybody.
_WORKER = re.compile(rf"\[?({_TASKS}|rank)[ :_\-#]?(\d+)(?=[\]\s:|,)])", re.IGNORECASE)
_OWN_TASK = re.compile(
    r"eager service context with rendezvous_id on host \S+ /job:(\w+)/replica:\d+/task:(\d+)"
)
_STEP = re.compile(
    r"(?:"
    r"\bglobal[ _]step(?:s)?(?!/sec)\s*(?:[=:#]\s*|\s)(?P<a>\d+)"
    r"|\bSaving checkpoints for (?P<b>\d+)\b"
    r"|\b(?:training |train |local )?[Ss]tep(?!s)\s*[=:#]?\s*(?P<c>\d+)\b"
    r"|^(?P<d>\d+)\timages/sec:"
    r"|\bmodel\.ckpt-(?P<e>\d+)\b"
    r"|\[[^\[\]]*\bstep\] \[(?P<f>\d+)\]"
    r")"
)
#: Looking for a text is many times as fast as for a pattern.
_STEP_WORDS = ("tep", "checkpoints for", "images/sec", "ckpt-")
_OWN_TASK_WORD = "rendezvous_id"
_EPOCH = re.compile(r"Epoch (\d+)(?:/(\d+))?:?\s*$")
_BATCH = re.compile(r"\s*(\d+)/(\d+) +[\[━.=>]")
_COLOURS = re.compile(r"\x1b\[[\d;]*m")


class Patterns:
    """Finds worker and step in a text.

    Args:
        step: A pattern of the user's own, tried first; its first group is the number.
        worker: Likewise; the whole match of its first group is the worker.
    """

    def __init__(self, step: re.Pattern[str] | None = None, worker: re.Pattern[str] | None = None) -> None:
        self._step = step
        self._worker = worker

    def step(self, text: str) -> int | None:
        """Returns the global step that the text names."""
        if self._step is not None and (match := self._step.search(text)):
            group = match[1] if match.re.groups else match[0]
            if group is not None and group.strip().isdigit():
                return int(group)
        if not any(word in text for word in _STEP_WORDS):
            return None
        match = _STEP.search(text)
        return int(match[match.lastgroup or 0]) if match else None

    def worker(self, text: str) -> str | None:
        """Returns the task that says of itself that it writes."""
        if self._worker is not None and (match := self._worker.search(text)):
            return match[1] if match.re.groups else match[0]
        if match := _WORKER.match(text):
            return f"{match[1].lower()}:{match[2]}"
        return own_task(text)


def own_task(text: str) -> str | None:
    """Returns the task that the runtime says this server is."""
    match = _OWN_TASK.search(text) if _OWN_TASK_WORD in text else None
    return f"{match[1]}:{match[2]}" if match else None


class Progress:
    """Keras's progress bar: an epoch, then batches of it; together a step, counted from the start."""

    def __init__(self) -> None:
        self._epoch: int | None = None

    def step(self, text: str) -> int | None:
        """Returns the step that a line stands for: the batches of whole epochs and of this one."""
        if match := _EPOCH.match(text):
            self._epoch = int(match[1])
            return None
        if self._epoch is None:
            return None
        match = _BATCH.match(_COLOURS.sub("", text) if "\x1b" in text else text)
        if match is None:
            return None
        return (self._epoch - 1) * int(match[2]) + int(match[1])
