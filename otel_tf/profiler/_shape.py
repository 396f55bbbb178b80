"""The shape of an XSpace in Arrow. Descriptors are made in code, so neither TensorFlow nor generated files.

Field numbers are those of ``tsl/profiler/protobuf/xplane.proto``; a field that is not listed is not read. All
texts are read as bytes: profilers put names of any encoding into them. Maps are lists of entries, as on the
wire.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from otel_tf import _proto

__all__ = ["EVENT", "LINE", "METADATA", "PLANE_LINES", "SPACE_HOSTNAMES", "SPACE_PLANES", "handler"]

#: Field numbers that `xspace` walks along.
SPACE_PLANES, SPACE_HOSTNAMES = 1, 4
PLANE_LINES = 3
EVENT = 4
#: Messages with a handler of their own.
LINE, METADATA = "Line", "Metadata"

_MESSAGES: dict[str, list[tuple[str, int, str, bool]]] = {
    # message: (field, number, protobuf type or message, repeated)
    "Stat": [
        ("metadata_id", 1, "int64", False),
        ("uint64", 3, "uint64", False),
        ("int64", 4, "int64", False),
        ("text", 5, "bytes", False),
        ("ref", 7, "uint64", False),
    ],
    "Event": [
        ("metadata_id", 1, "int64", False),
        ("offset_ps", 2, "int64", False),
        ("duration_ps", 3, "int64", False),
        ("stats", EVENT, "Stat", True),
    ],
    "Line": [
        ("id", 1, "int64", False),
        ("name", 2, "bytes", False),
        ("timestamp_ns", 3, "int64", False),
        ("events", 4, "Event", True),
        ("display_name", 11, "bytes", False),
    ],
    "EventMetadata": [("name", 2, "bytes", False), ("display_name", 4, "bytes", False)],
    "EventEntry": [("key", 1, "int64", False), ("value", 2, "EventMetadata", False)],
    "StatMetadata": [("name", 2, "bytes", False)],
    "StatEntry": [("key", 1, "int64", False), ("value", 2, "StatMetadata", False)],
    # A plane without its lines.
    "Metadata": [
        ("name", 2, "bytes", False),
        ("events", 4, "EventEntry", True),
        ("stats", 5, "StatEntry", True),
        ("own", 6, "Stat", True),
    ],
}
#: Of these fields one is set, and which one matters also where it is 0.
_ONEOF = {"Stat": ("uint64", "int64", "text", "ref")}


@cache
def _handlers() -> dict[str, Any]:
    return _proto.handlers("otel_tf.xspace", _MESSAGES, _ONEOF, (LINE, METADATA))


def handler(message: str) -> Any:
    """Returns what turns serialized messages of one kind into Arrow."""
    return _handlers()[message]
