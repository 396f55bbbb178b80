"""Reading a profile as a test wants it, by TensorFlow's own messages."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from tensorflow.tsl.profiler.protobuf import xplane_pb2


@dataclasses.dataclass(frozen=True)
class Event:
    name: str
    start_ps: int
    end_ps: int
    stats: dict[str, Any]
    line: int

    def holds(self, other: Event) -> bool:
        return self.line == other.line and self.start_ps <= other.start_ps and other.end_ps <= self.end_ps


def events(profile: Path) -> list[Event]:
    """All events of a file, or of the only file below a folder, by their begin."""
    if profile.is_dir():
        (profile,) = profile.rglob("*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(profile.read_bytes())
    found = []
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                start_ps = line.timestamp_ns * 1000 + event.offset_ps
                stats = {
                    plane.stat_metadata[stat.metadata_id].name: _value(plane, stat) for stat in event.stats
                }
                name = plane.event_metadata[event.metadata_id].name
                found.append(Event(name, start_ps, start_ps + event.duration_ps, stats, line.id))
    return sorted(found, key=lambda event: event.start_ps)


def _value(plane: Any, stat: Any) -> Any:
    kind = stat.WhichOneof("value")
    value = getattr(stat, kind)
    return plane.stat_metadata[value].name if kind == "ref_value" else value
