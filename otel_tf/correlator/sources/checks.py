"""Which spans are usable: the same checks for every format."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["LATEST_NS", "Report", "usable"]

#: Times after the year 2200 are not times.
LATEST_NS = 7_258_118_400_000_000_000


class Report(Protocol):
    """Counts the rows of a mask under a reason of `Skipped`; ``say`` describes a row."""

    def __call__(self, reason: str, bad: npt.NDArray[np.bool_], say: Callable[[int], str]) -> None: ...  # noqa: D102


def usable(
    good_id: npt.NDArray[np.bool_],
    start_ns: npt.NDArray[np.int64],
    end_ns: npt.NDArray[np.int64],
    id_text: Callable[[int], str],
    report: Report,
) -> npt.NDArray[np.bool_]:
    """Returns a mask of the spans that have ids, possible times, and a duration that is not negative."""
    report("bad_id", ~good_id, id_text)
    absurd = good_id & ((start_ns <= 0) | (end_ns <= 0) | (start_ns > LATEST_NS) | (end_ns > LATEST_NS))
    report("absurd_time", absurd, lambda row: f"from {start_ns[row]} to {end_ns[row]} ns")
    negative = good_id & ~absurd & (end_ns < start_ns)
    report(
        "end_before_start", negative, lambda row: f"ends {start_ns[row] - end_ns[row]} ns before it starts"
    )
    return good_id & ~absurd & ~negative
