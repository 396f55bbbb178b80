"""When profiles are taken: what ``OTEL_TF_PROFILE`` says, and whether steps have become slow."""

from __future__ import annotations

import dataclasses
import statistics
from collections import deque
from collections.abc import Iterable

__all__ = ["Policy", "SlowSteps"]

_DEFAULT_STEPS = 2
_WORDS = {"on-slow": "on_slow", "with-collectives": "collectives"}
#: Steps that say how long a step takes: those before, and the last few, which must be slow together. One slow
#: step is over before a profile could be taken of it.
_BEFORE = 100
_LAST = 10
#: How much slower the last few must be, by their medians.
_SLOW = 1.5


@dataclasses.dataclass(frozen=True)
class Policy:
    """When to take a profile without being asked.

    Attributes:
        every: Steps from one profile to the next; 0: never by number.
        steps: Steps to be wholly inside of one.
        on_slow: Whether to take one when steps have become slow.
        collectives: Whether to take one of a worker that meets others in collectives, though TensorFlow 2.21
            may crash at its end.
    """

    every: int = 0
    steps: int = _DEFAULT_STEPS
    on_slow: bool = False
    collectives: bool = False

    @property
    def watches(self) -> bool:
        """Whether steps are to be looked at all the time."""
        return bool(self.every) or self.on_slow

    @classmethod
    def parse(cls, text: str) -> Policy:
        """Returns what a setting says: ``off``, or of what is in the message below, by commas.

        Raises:
            ValueError: It says something else.
        """
        if text.strip() in ("", "off"):
            return cls()
        found: dict[str, int | bool] = {}
        for part in text.split(","):
            name, _, value = (piece.strip() for piece in part.partition("="))
            if name in _WORDS and not value:
                found[_WORDS[name]] = True
            elif name in ("every", "steps") and value.isdecimal() and int(value) > 0:
                found[name] = int(value)
            else:
                raise ValueError(
                    f"{part.strip()!r} is none of off, every=N, steps=N, on-slow, with-collectives"
                )
        if "steps" in found and not found.keys() & {"every", "on_slow"}:
            raise ValueError("it says how many steps, but not when: every=N or on-slow")
        return cls(**found)  # type: ignore[arg-type]


class SlowSteps:
    """Finds out when steps have become slow: the last few beside those before, by their medians."""

    def __init__(self) -> None:
        self._durations_ns: deque[int] = deque(maxlen=_BEFORE + _LAST)

    def saw(self, durations_ns: Iterable[int]) -> bool:
        """Takes the steps that have ended since, in ns; returns whether they are slow now."""
        self._durations_ns.extend(durations_ns)
        known = list(self._durations_ns)
        if len(known) < _BEFORE + _LAST:
            return False
        return statistics.median(known[-_LAST:]) > _SLOW * statistics.median(known[:-_LAST])

    def forget(self) -> None:
        """Starts anew: what is slow now is what is usual from now on."""
        self._durations_ns.clear()
