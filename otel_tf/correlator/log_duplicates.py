"""Lines that came twice: as a record of Python's `logging`, and through stderr, where a handler wrote it.

The handler's format is the program's and unknown, but the message is in what it wrote, right after the record
was made. The record is kept, since it knows its step; the line is left out.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from otel_tf.correlator.columns import Int, codes, integers

__all__ = ["without_duplicates"]

#: How long a handler may take to write, and the reader to read.
_LATEST_NS = 2_000_000_000
#: The clocks of the two processes are one; their readings are not at one instant.
_EARLIEST_NS = 5_000_000
#: Several handlers write one after the other.
_TOGETHER_NS = 20_000_000
#: A shorter message is in too much: it must be the end of the line.
_SHORT = 8


def without_duplicates(logs: pa.Table) -> tuple[pa.Table, int]:
    """Returns the records without lines of stderr that are Python's records too, and how many those were.

    Args:
        logs: Rows of `LOGS`.
    """
    stream, names = codes(logs["stream"])
    through_stderr = stream == (names.index("stderr") if "stderr" in names else -2)
    if not through_stderr.any() or through_stderr.all():
        return logs, 0
    process, _ = codes(logs["process"])
    pid, pids = codes(logs["pid"])
    key = process.astype(np.int64) * (len(pids) + 1) + pid
    read = integers(logs["observed_ns"], 0)
    duplicate = np.zeros(logs.num_rows, np.bool_)
    order = np.lexsort((np.arange(len(read)), read, key))
    for rows in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
        lines, records = rows[through_stderr[rows]], rows[~through_stderr[rows]]
        if len(lines) and len(records):
            _mark(logs, read, lines, records, duplicate)
    if not duplicate.any():
        return logs, 0
    return logs.filter(pa.array(~duplicate)).combine_chunks(), int(duplicate.sum())


def _mark(logs: pa.Table, read: Int, lines: Int, records: Int, duplicate: npt.NDArray[np.bool_]) -> None:
    texts = logs["body"].take(pa.array(lines)).to_pylist()
    messages = logs["body"].take(pa.array(records)).to_pylist()
    traces = logs["exception_stacktrace"].take(pa.array(records)).to_pylist()
    times = read[lines]
    first = np.searchsorted(times, read[records] - _EARLIEST_NS)
    until = np.searchsorted(times, read[records] + _LATEST_NS)
    taken = [False] * len(texts)
    for message, trace, begin, end in zip(messages, traces, first.tolist(), until.tolist(), strict=True):
        whole = f"{message}\n{trace}" if trace else message
        head = message.strip().partition("\n")[0].strip()
        if not head:
            continue
        at = next((n for n in range(begin, end) if not taken[n] and _says(texts[n], head)), None)
        while at is not None and at < end and not taken[at]:
            taken[at] = True
            following = at + 1
            goes_on = following < end and times[following] - times[at] < _TOGETHER_NS
            text = texts[following] if goes_on else ""
            at = following if text and (_says(text, head) or text.strip() in whole) else None
    duplicate[lines[np.array(taken, np.bool_)]] = True


def _says(text: str, head: str) -> bool:
    return head in text if len(head) >= _SHORT else text.partition("\n")[0].rstrip().endswith(head)
