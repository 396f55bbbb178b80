from __future__ import annotations

import numpy as np

from otel_tf.correlator.columns import from_spans
from otel_tf.correlator.local_time import local_times
from otel_tf.correlator.pipeline import correlate_tables
from otel_tf.correlator.resolution import resolutions
from tests.correlator.support import MS, T0, US, S, ingested


def local_of(rows, clocks=()):
    given = ingested(rows, clocks=clocks)
    local, steps = local_times(from_spans(given.spans), given.clocks)
    return (local - T0).tolist(), [(step.at_ns - T0, step.size_ns) for step in steps]


def spans(count, *, step_at=None, size=0, jitter=(), **more):
    """A span every 10 ms; from ``step_at`` on the wall clock is ``size`` ahead."""
    rows = []
    for n in range(count):
        ahead = size if step_at is not None and n >= step_at else 0
        wall = T0 + n * 10 * MS + ahead + (3 * MS if n in jitter else 0)
        rows.append(
            {"start_ns": wall, "end_ns": wall + MS, "mono_ns": 77 * S + n * 10 * MS, "seq": n, **more}
        )
    return rows


def true(count):
    return [value for n in range(count) for value in (n * 10 * MS, n * 10 * MS + MS)]


def test_without_a_step_local_time_is_wall_time_to_the_nanosecond():
    rows = spans(20)
    rows[3]["mono_ns"] += 700  # the two clocks are read one after the other
    assert local_of(rows) == (true(20), [])


def test_a_step_of_the_wall_clock_vanishes_either_way():
    for size in (-3 * S, -200 * US, 200 * US, 40 * S):
        assert local_of(spans(20, step_at=9, size=size)) == (true(20), [(90 * MS, size)])


def test_several_steps_vanish():
    rows = spans(30, step_at=10, size=5 * S)
    for row in rows[20:]:
        row["start_ns"] -= 7 * S
        row["end_ns"] -= 7 * S
    local, steps = local_of(rows)
    assert local == true(30)
    assert steps == [(100 * MS, 5 * S), (200 * MS + 5 * S, -7 * S)]


def test_a_thread_that_lost_the_processor_between_the_two_clocks_is_no_step():
    rows = spans(20, jitter={4, 11})
    local, steps = local_of(rows)
    assert steps == []
    assert local[8] == true(20)[8] + 3 * MS


def test_snapshots_tell_of_steps_to_spans_without_a_monotonic_clock():
    rows = [{"start_ns": T0 + n * S, "end_ns": T0 + n * S + MS} for n in range(5)]
    rows += [{"start_ns": T0 + 60 * S + n * S, "end_ns": T0 + 60 * S + n * S + MS} for n in range(5, 10)]
    clocks = [
        {
            "domain": "d0",
            "process": "p0",
            "mono_ns": S + n * S,
            "wall_ns": T0 + n * S + (60 * S if n >= 5 else 0),
        }
        for n in range(12)
    ]
    local, steps = local_of(rows, clocks)
    assert local == [value for n in range(10) for value in (n * S, n * S + MS)]
    assert [size for _, size in steps] == [60 * S]


def test_a_wall_clock_that_runs_at_another_rate_does_not_step():
    rows = spans(50)
    for n, row in enumerate(rows):
        row["mono_ns"] += n * 10_000  # 1000 ppm
    assert local_of(rows)[1] == []


def test_steps_are_reported_with_their_clock():
    report = correlate_tables(ingested(spans(20, step_at=9, size=-3 * S))).report
    assert report["clocks"][0]["steps"] == [{"at_ns": T0 + 90 * MS, "size_ns": -3 * S}]


def grid(of):
    rng = np.random.default_rng(5)
    starts = T0 + rng.integers(0, 10**12, 40)
    return [{"start_ns": of(int(t)), "end_ns": of(int(t) + 12_345_678)} for t in starts]


def test_the_resolution_of_stamps_is_found_in_them():
    cases = {
        0: lambda t: t,
        1000: lambda t: t // 1000 * 1000,
        MS: lambda t: t // MS * MS,
        239: lambda t: t // S * S + (t % S * 2**22 // S) * S // 2**22,
        256 + 239: lambda t: int(float(np.float64(t / 1e9) * 1e9)),
    }
    for expected, of in cases.items():
        assert resolutions(from_spans(ingested(grid(of)).spans)).tolist() == [expected]


def test_the_resolution_does_not_depend_on_where_the_clock_was_set_to():
    assert resolutions(from_spans(ingested(grid(lambda t: t // 1000 * 1000 + 7)).spans)).tolist() == [1000]


def test_few_stamps_tell_no_resolution():
    assert resolutions(from_spans(ingested(grid(lambda t: t // MS * MS)[:4]).spans)).tolist() == [0]
