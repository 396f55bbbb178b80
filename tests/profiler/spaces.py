"""Writes XSpaces for tests, through protobuf's own messages and a full description of the format."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "xplane"

#: tsl/profiler/protobuf/xplane.proto.
MESSAGES: dict[str, list[tuple[str, int, str, bool]]] = {
    "XStat": [
        ("metadata_id", 1, "int64", False),
        ("double_value", 2, "double", False),
        ("uint64_value", 3, "uint64", False),
        ("int64_value", 4, "int64", False),
        ("str_value", 5, "string", False),
        ("bytes_value", 6, "bytes", False),
        ("ref_value", 7, "uint64", False),
    ],
    "XEvent": [
        ("metadata_id", 1, "int64", False),
        ("offset_ps", 2, "int64", False),
        ("duration_ps", 3, "int64", False),
        ("stats", 4, "XStat", True),
        ("num_occurrences", 5, "int64", False),
    ],
    "XLine": [
        ("id", 1, "int64", False),
        ("name", 2, "string", False),
        ("timestamp_ns", 3, "int64", False),
        ("events", 4, "XEvent", True),
        ("duration_ps", 9, "int64", False),
        ("display_id", 10, "int64", False),
        ("display_name", 11, "string", False),
    ],
    "XEventMetadata": [
        ("id", 1, "int64", False),
        ("name", 2, "string", False),
        ("metadata", 3, "bytes", False),
        ("display_name", 4, "string", False),
        ("stats", 5, "XStat", True),
    ],
    "XStatMetadata": [
        ("id", 1, "int64", False),
        ("name", 2, "string", False),
        ("description", 3, "string", False),
    ],
    "EventEntry": [("key", 1, "int64", False), ("value", 2, "XEventMetadata", False)],
    "StatEntry": [("key", 1, "int64", False), ("value", 2, "XStatMetadata", False)],
    "XPlane": [
        ("id", 1, "int64", False),
        ("name", 2, "string", False),
        ("lines", 3, "XLine", True),
        ("event_metadata", 4, "EventEntry", True),
        ("stat_metadata", 5, "StatEntry", True),
        ("stats", 6, "XStat", True),
    ],
    "XSpace": [
        ("planes", 1, "XPlane", True),
        ("errors", 2, "string", True),
        ("warnings", 3, "string", True),
        ("hostnames", 4, "string", True),
    ],
}


@cache
def messages() -> dict[str, type[Any]]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field_type = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="test/xplane.proto", package="test", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        if name == "XStat":
            message.oneof_decl.add(name="value")
        for field, number, kind, repeated in fields:
            added = message.field.add(name=field, number=number)
            added.label = field_type.LABEL_REPEATED if repeated else field_type.LABEL_OPTIONAL
            if kind in MESSAGES:
                added.type, added.type_name = field_type.TYPE_MESSAGE, f".test.{kind}"
            else:
                added.type = getattr(field_type, f"TYPE_{kind.upper()}")
            if field.endswith("_value"):
                added.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"test.{name}")) for name in MESSAGES
    }


@dataclasses.dataclass
class Plane:
    """A plane under construction. Times are in µs here, since that is what tests think in."""

    message: Any
    events: dict[str, int] = dataclasses.field(default_factory=dict)
    stats: dict[str, int] = dataclasses.field(default_factory=dict)

    def line(self, name: str, number: int | None = None, timestamp_ns: int = 0) -> LineOf:
        line = self.message.lines.add(
            id=len(self.message.lines) if number is None else number, name=name, timestamp_ns=timestamp_ns
        )
        return LineOf(self, line)

    def event_id(self, name: str) -> int:
        if name not in self.events:
            self.events[name] = len(self.events) + 1
            entry = self.message.event_metadata.add(key=self.events[name])
            entry.value.id, entry.value.name = self.events[name], name
            node, _, kind = name.rpartition(":")
            if node and not node.endswith(":"):
                entry.value.display_name = kind
        return self.events[name]

    def stat_id(self, name: str) -> int:
        if name not in self.stats:
            self.stats[name] = len(self.stats) + 1
            entry = self.message.stat_metadata.add(key=self.stats[name])
            entry.value.id, entry.value.name = self.stats[name], name
        return self.stats[name]


@dataclasses.dataclass
class LineOf:
    plane: Plane
    message: Any

    def add(self, name: str, start_us: float, duration_us: float = 0, **stats: int | str) -> LineOf:
        """Adds an event. A stat's name may be written with a leading ``x_`` where Python has no such name."""
        event = self.message.events.add(
            metadata_id=self.plane.event_id(name),
            offset_ps=round(start_us * 1e6),
            duration_ps=round(duration_us * 1e6),
        )
        for key, value in stats.items():
            stat = event.stats.add(metadata_id=self.plane.stat_id(key.removeprefix("x_")))
            if isinstance(value, str):
                stat.ref_value = self.plane.stat_id(value)
            elif value >= 1 << 63:
                stat.uint64_value = value
            else:
                stat.int64_value = value
        return self


class SpaceOf:
    """An XSpace under construction."""

    def __init__(self, started_ns: int | None = 1_700_000_000_000_000_000, hostname: str = "vm") -> None:
        self.message = messages()["XSpace"](hostnames=[hostname])
        if started_ns is not None:
            environment = self.plane("Task Environment")
            stat = environment.message.stats.add(metadata_id=environment.stat_id("profile_start_time"))
            stat.uint64_value = started_ns

    def plane(self, name: str = "/host:CPU") -> Plane:
        return Plane(self.message.planes.add(id=len(self.message.planes), name=name))

    def bytes(self) -> bytes:
        return self.message.SerializeToString()

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.bytes())
        return path


def shared(name: str) -> Path:
    path = SHARED / f"{name}.xplane.pb"
    if not path.exists():
        pytest.skip(f"{path.name} is not there: the folder of shared test inputs is absent")
    return path
