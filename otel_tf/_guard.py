"""The guard around all telemetry code that a training program's own calls run through.

Telemetry never raises into the program it watches. In production a failure inside a guard is logged
once for each place (logger ``otel_tf``) and swallowed; under test it is raised, so that no test passes
over a broken seam. The test hook is `strict`: a ``conftest.py`` calls ``strict(True)``, and the
variable ``OTEL_TF_TESTING=true`` does the same for processes that a test starts.
"""

from __future__ import annotations

import contextlib
import logging
import os
from types import TracebackType

__all__ = ["Guard", "is_strict", "strict"]

_logger = logging.getLogger("otel_tf")
_reported: set[str] = set()
_strict = os.environ.get("OTEL_TF_TESTING", "").strip().lower() == "true"


def strict(on: bool) -> bool:
    """Makes guards raise (``True``) or log and swallow (``False``); returns what was in force."""
    global _strict
    before, _strict = _strict, on
    return before


def is_strict() -> bool:
    """Returns whether guards raise."""
    return _strict


class Guard(contextlib.ContextDecorator):
    """Context manager and decorator; a decorated function returns ``None`` when it was guarded.

    Stateless, so one instance serves any number of threads: make it once, at module level, where the
    guarded code runs often. Only `Exception` is held back: an interrupt of the user's passes.

    Args:
        place: What failed, as the log line names it, for example ``"the Keras seam"``.
    """

    __slots__ = ("place",)

    def __init__(self, place: str) -> None:
        self.place = place

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if kind is None or _strict or not issubclass(kind, Exception):
            return False
        if self.place not in _reported:
            _reported.add(self.place)
            _logger.warning(
                "%s failed; training goes on, and further failures there are not logged",
                self.place,
                exc_info=(kind, error, trace) if error is not None else None,
            )
        return True
