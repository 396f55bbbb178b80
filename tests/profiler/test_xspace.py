"""XSpace files are read as protobuf reads them; what is damaged gives an error or the rest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_tf.errors import UserError
from otel_tf.profiler import xspace
from otel_tf.profiler._wire import Damaged, fields
from tests.profiler.spaces import SpaceOf, messages, shared


def read_back(space):
    """Returns the events, in the space's order, as (plane, line, name, start, duration, kept stats)."""
    stats = [{} for _ in range(len(space))]
    for name, stat in space.stats.items():
        for row, value, is_text in zip(stat.row, stat.value, stat.is_text, strict=True):
            stats[row][name] = space.texts[value] if is_text else int(value)
    return [
        (
            space.lines[line].plane,
            space.lines[line].name,
            space.names[name],
            space.base_ns * 1000 + int(start),
            int(duration),
            about,
        )
        for line, name, start, duration, about in zip(
            space.line, space.name, space.start_ps, space.duration_ps, stats, strict=True
        )
    ]


def as_protobuf_reads_it(data, started_ns):
    """Returns the same by walking messages, event by event."""
    found = []
    for plane in messages()["XSpace"].FromString(data).planes:
        names = {entry.key: entry.value.name for entry in plane.event_metadata}
        keys = {entry.key: entry.value.name for entry in plane.stat_metadata}
        for line in plane.lines:
            mine = []
            for event in line.events:
                about = {}
                for stat in event.stats:
                    kind = stat.WhichOneof("value")
                    value = getattr(stat, kind) if kind else None
                    key = keys.get(stat.metadata_id)
                    if key in xspace.STATS and kind not in (None, "double_value", "bytes_value"):
                        value = keys[value] if kind == "ref_value" else value
                        about[key] = value - (1 << 64) if kind == "uint64_value" and value >> 63 else value
                start = (started_ns + line.timestamp_ns) * 1000 + event.offset_ps
                name = names[event.metadata_id]
                shown = line.display_name or line.name
                mine.append((plane.name, shown, name, start, event.duration_ps, about))
            found += sorted(mine, key=lambda event: (event[3], -event[4]))
    return found


@pytest.mark.parametrize(
    ("name", "started_ns"),
    [("jax_gemm", 1771595650217823548), ("tf2_gpu_multi_worker", 0)],
)
def test_files_of_other_programs_are_read_as_protobuf_reads_them(name, started_ns):
    path = shared(name)
    space = xspace.read_file(path)
    assert read_back(space) == as_protobuf_reads_it(path.read_bytes(), started_ns)
    assert (space.lacking, space.dropped) == (0, 0)
    assert space.absolute == (name == "jax_gemm")


def test_the_mangled_file_gets_one_clear_error():
    path = shared("corrupt_utf8_mangled")
    with pytest.raises(UserError, match=r"corrupt_utf8_mangled.*as if it were text") as caught:
        xspace.read_file(path)
    assert "\n" not in str(caught.value)


def test_an_empty_file_says_why_it_may_be_empty(tmp_path):
    path = tmp_path / "vm.xplane.pb"
    path.touch()
    with pytest.raises(UserError, match=r"vm\.xplane\.pb: 0 bytes.*2 GB"):
        xspace.read_file(path)


@pytest.mark.parametrize(
    "content", [b"hello, world\n", b"\x0a\xff\xff\xff\xff\x7f", bytes(100), b"\x0a\x05abc"]
)
def test_other_files_are_named(tmp_path, content):
    path = tmp_path / "vm.xplane.pb"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"vm\.xplane\.pb: not an XSpace"):
        xspace.read_file(path)


def test_a_missing_file_and_a_folder_without_profiles_are_named(tmp_path):
    with pytest.raises(UserError, match="nowhere: No such file"):
        xspace.find(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no profile"):
        xspace.find(tmp_path)


def some_space(events=40):
    space = SpaceOf()
    plane = space.plane()
    for line in range(3):
        thread = plane.line(f"tf_Compute/{line}", number=-line, timestamp_ns=1000 + line)
        for n in range(events):
            thread.add(f"node_{n % 7}:MatMul", n * 10, 5, id=n - 20, x_key=f"k{n % 3}", _c=(1 << 63) + n)
    space.plane("/device:GPU:0").line("Stream #1").add("kernel", 3, 4, correlation_id=7)
    return space


def test_texts_numbers_and_order(tmp_path):
    space = SpaceOf()
    thread = space.plane().line("python", timestamp_ns=5)
    thread.add("inner", 10, 5).add("outer", 10, 20).add("first", 1, 2, step_num=3, otel_trace="t-1", other=5)
    found = xspace.read_file(space.write(tmp_path / "a.xplane.pb"))
    assert read_back(found) == as_protobuf_reads_it(space.bytes(), 1_700_000_000_000_000_000)
    assert [found.names[name] for name in found.name] == ["first", "outer", "inner"]
    assert found.base_ns == 1_700_000_000_000_000_005
    assert set(found.stats) == {"step_num", "otel_trace"}
    assert found.hostname == "vm"


def test_without_a_start_time_times_are_relative(tmp_path):
    space = SpaceOf(started_ns=None)
    space.plane().line("python", timestamp_ns=77).add("x", 1, 2)
    found = xspace.read_file(space.write(tmp_path / "a.xplane.pb"))
    assert (found.absolute, found.base_ns) == (False, 77)


def test_a_long_line_is_read_in_pieces(tmp_path, monkeypatch):
    space = some_space()
    path = space.write(tmp_path / "a.xplane.pb")
    whole = read_back(xspace.read_file(path))
    monkeypatch.setattr(xspace, "_PIECE", 100)
    monkeypatch.setattr(xspace, "_LONG_LINE", 200)
    cut = xspace.read_file(path)
    assert len(cut.lines) > 30
    assert sorted(map(str, read_back(cut))) == sorted(map(str, whole))
    assert cut.lacking == 0


def test_of_a_file_that_was_cut_off_the_whole_planes_are_kept(tmp_path):
    space = some_space()
    data = space.bytes()
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(data[: len(data) - 30])  # within the last plane
    found = xspace.read_file(path)
    assert found.lacking > 0
    assert read_back(found)[:120] == as_protobuf_reads_it(data, 1_700_000_000_000_000_000)[:120]


def test_events_at_impossible_times_are_counted(tmp_path):
    space = SpaceOf()
    line = space.plane().line("python")
    line.add("good", 1, 1).add("bad", -5, 1).add("bad", 2e18 / 1e6, 1).add("bad", 1, -1)
    found = xspace.read_file(space.write(tmp_path / "a.xplane.pb"))
    assert [found.names[name] for name in found.name] == ["good"]
    assert found.dropped == 3


SPACE = some_space(12).bytes()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    cut=st.integers(0, len(SPACE)),
    changes=st.lists(st.tuples(st.integers(0, len(SPACE) - 1), st.integers(0, 255)), max_size=6),
)
def test_whatever_is_damaged_gives_events_or_one_error(tmp_path, cut, changes):
    data = bytearray(SPACE)
    for at, byte in changes:
        data[at] = byte
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(data[:cut])
    space = said = None
    try:
        space = xspace.read_file(path)
    except UserError as error:
        said = str(error)
    if space is None:
        assert str(path) in said
        return
    end = space.start_ps + space.duration_ps
    assert (space.start_ps >= 0).all() and (end >= space.start_ps).all()
    assert (space.name >= 0).all() and (space.name < len(space.names)).all()
    for stat in space.stats.values():
        assert (np.diff(stat.row) > 0).all() and stat.row.max(initial=-1) < len(space)
        assert (stat.value[stat.is_text] < len(space.texts)).all()


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=60))
def test_the_walk_ends_and_covers_what_it_yields(data):
    at, damaged_at = 0, len(data)
    try:
        for field in fields(memoryview(data), 0, len(data)):
            assert field.begin == at < field.content <= field.end <= len(data)
            at = field.end
    except Damaged as damage:
        damaged_at = damage.at
    assert damaged_at == at
