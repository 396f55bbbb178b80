"""As many digits as are known, and no more."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_tf.cli._figures import duration, measured, measured_time, natural, number, share, table, time_step


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (8_001_100_123, 2_140_000, "+8.0011 s ± 2.1 ms"),
        (-9_000_116_691, 1_178_978, "-9.0001 s ± 1.2 ms"),
        (8_000_000_000, 2e9, "+8.0 s ± 2.0 s"),
        (-1_500, 2_500_000, "0.0 ms ± 2.5 ms"),
        (-18_346_789, 61_000, "-18.347 ms ± 61 µs"),
        (40_123, 0, "+40.123000000 µs ± 0 ns"),
        (5, 3, "+5.0 ns ± 3 ns"),
        (3_600_000_000_000, 150_000_000, "+3,600.00 s ± 150 ms"),
    ],
)
def test_times_with_their_bars(value, error, text):
    assert measured_time(value, error) == text


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (14.8123, 0.312, "+14.81 ± 0.31 ppm"),
        (0.6, 3359.6, "0 ± 3,400 ppm"),
        (-25.2, 14.6, "-25 ± 15 ppm"),
        (-0.004, 0.02, "-0.004 ± 0.020 ppm"),
        (0.0, 0.0, "0.000000000 ± 0 ppm"),
    ],
)
def test_figures_with_their_uncertainty(value, error, text):
    assert measured(value, error, "ppm") == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 ns"),
        (999.6, "1.0 µs"),
        (340_000, "340 µs"),
        (999_999, "1.0 ms"),
        (2_140_000, "2.1 ms"),
        (1_500_000_000, "1.5 s"),
        (99_000_000_000_000, "99,000 s"),
    ],
)
def test_durations(value, text):
    assert duration(value) == text


def test_small_things():
    assert [number(value) for value in (None, 2, 2.0, 3.83, 12_000)] == ["-", "2", "2", "3.8", "12,000"]
    assert [share(value) for value in (0.58, -0.25, 0.002, -0.002)] == ["+58%", "-25%", "0%", "0%"]
    assert [time_step(value) for value in (20_000_000, -5_000)] == ["+20 ms", "-5.0 µs"]
    assert sorted(["w:10", "w:2", "ps:0", "x"], key=natural) == ["ps:0", "w:2", "w:10", "x"]


@given(st.integers(-(10**13), 10**13), st.integers(1, 10**12))
def test_what_is_shown_is_the_value_within_a_twentieth_of_its_bar(value, error):
    text, unit = re.fullmatch(r"(\S+) (s|ms|µs|ns) ± .*", measured_time(value, error)).groups()
    shown = float(text.replace(",", "")) * {"s": 1e9, "ms": 1e6, "µs": 1e3, "ns": 1}[unit]
    assert abs(shown - value) <= max(0.05 * error, 1e-6 * abs(value) * 1e-6) + 0.5


def test_a_table_without_what_is_of_nobody():
    rows = [("a", "1", "-", "-"), ("bcd", "-", "-", "x")]
    assert table(("N", "ONE", "TWO", "THREE"), rows, 9) == "N    ONE  THREE\na      1      -\nbcd    -      x"
