"""What was left out, counted by reason, with the first example of each."""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["Skipped"]

_LONGEST_EXAMPLE = 200


class Skipped:
    """Counts what could not be used. Safe to share between the threads that read one source.

    The reasons are the keys of the report's ``skipped`` object:

    ==========================  ======================================================================
    ``not_json``                a line or file that is not JSON
    ``truncated``               a file or line that was cut off; the whole spans before that are used
    ``not_utf8``                a line with bytes that are not UTF-8; used, with U+FFFD in their place
    ``not_otlp``                JSON or protobuf, but nothing that this correlator knows
    ``not_protobuf``            bytes that cannot be read as OTLP protobuf
    ``wrong_type``              a span with a field of the wrong type
    ``bad_id``                  a span whose trace or span id is zero or of the wrong length
    ``bad_parent_id``           a parent id of the wrong length; the span is used as if it had none
    ``absurd_time``             a span that starts or ends at 0 or after the year 2200
    ``end_before_start``        a span of negative duration
    ``attributes_cut``          a span with too many attributes; used with the first ones
    ``duplicate``               a span that was already there, with the same content
    ``conflicting_duplicate``   a span whose ids were already there, with other content
    ``bad_clock_line``          a clock snapshot without its numbers
    ==========================  ======================================================================
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.first: dict[str, str] = {}
        self._where: dict[str, tuple[int, ...]] = {}
        self._lock = threading.Lock()

    def add(self, reason: str, example: str, count: int = 1, order: tuple[int, ...] = ()) -> None:
        """Counts ``count`` more of ``reason``.

        Args:
            reason: A key of the table above.
            example: ``file:line: text`` of the first of them.
            count: How many; 0 and less count nothing.
            order: Where the example stands in the input: of several, the smallest is kept, so that
                the answer doesn't depend on which thread was faster.
        """
        if count <= 0:
            return
        with self._lock:
            self.counts[reason] = self.counts.get(reason, 0) + count
            if reason not in self.first or order < self._where[reason]:
                text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in example)
                self.first[reason] = text[:_LONGEST_EXAMPLE]
                self._where[reason] = order

    def as_json(self) -> dict[str, Any]:
        """Returns it as `absorb` takes it."""
        return {
            reason: [self.counts[reason], self.first[reason], self._where[reason]] for reason in self.counts
        }

    def absorb(self, other: dict[str, Any]) -> None:
        """Counts what another process counted (`as_json`)."""
        for reason, (count, example, order) in other.items():
            self.add(reason, example, count, tuple(order))
