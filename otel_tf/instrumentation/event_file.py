"""Following a file of `tf.summary` while its writer appends to it: its scalars and histograms."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from google.protobuf.message import DecodeError
from tensorflow.core.framework import summary_pb2
from tensorflow.core.util import event_pb2
from tensorflow.python.framework import tensor_util

__all__ = ["EventFile", "Summary"]

#: A record is its length and a checksum of it, the data, and a checksum of that (TFRecord).
_HEAD = struct.Struct("<QI")
_CHECKSUM = 4
#: Images and graphs are longer than any number and are passed over unread.
_LONGEST = 1 << 16


class Summary(NamedTuple):
    """One number, or one histogram, that the program has written.

    Attributes:
        tag: Its tag.
        step: Its own step.
        time_ns: When it was written, ns since the epoch, exact to a microsecond.
        value: The number; None of a histogram.
        buckets: JSON text of rows ``[left edge, right edge, count]``; None of a number.
        folder: The folder that the writer was made for.
    """

    tag: str
    step: int
    time_ns: int
    value: float | None
    buckets: str | None
    folder: str


class EventFile:
    """Reads a file once, from its beginning; what is only half written yet is left for the next time.

    Args:
        path: The file.
        folder: The folder that the writer was made for, as the program called it.
    """

    def __init__(self, path: Path, folder: str) -> None:
        self._path = path
        self._folder = folder
        self._at = 0

    def read(self, most: int) -> list[Summary]:
        """Returns what was written since the last time.

        Args:
            most: Records that are read at most; the rest waits for the next time.
        """
        found = list[Summary]()
        for data in self._records(most):
            try:
                event = event_pb2.Event.FromString(data)
            except DecodeError:
                continue
            # It says microseconds: the end of this one, so that it is not before what it was written in.
            time_ns = round(event.wall_time * 1e6) * 1_000 + 1_000
            for value in event.summary.value:
                summary = self._summary(value, event.step, time_ns)
                if summary is not None:
                    found.append(summary)
        return found

    def _records(self, most: int) -> Iterator[bytes]:
        try:
            size = self._path.stat().st_size
            if size <= self._at:
                return
            file = self._path.open("rb")
        except OSError:  # removed, or not ours to read
            return
        with file:
            for _ in range(most):
                file.seek(self._at)
                head = file.read(_HEAD.size)
                if len(head) < _HEAD.size:
                    return
                length = _HEAD.unpack(head)[0]
                end = self._at + _HEAD.size + length + _CHECKSUM
                if end > size:
                    return
                self._at = end
                if length <= _LONGEST:
                    yield file.read(length)

    def _summary(self, value: summary_pb2.Summary.Value, step: int, time_ns: int) -> Summary | None:
        kind = value.metadata.plugin_data.plugin_name
        if kind not in ("scalars", "histograms") or not value.HasField("tensor"):
            return None
        array = tensor_util.MakeNdarray(value.tensor)
        if kind == "scalars" and array.size == 1:
            return Summary(value.tag, step, time_ns, float(array.item()), None, self._folder)
        if kind == "histograms" and array.ndim == 2:
            text = json.dumps(array.tolist(), separators=(",", ":"))
            return Summary(value.tag, step, time_ns, None, text, self._folder)
        return None
