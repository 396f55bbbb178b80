"""Ordering without clocks that could be compared: by time, by step, by place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_tf.correlator.log_tables import LOGS
from otel_tf.logs.evidence import arrange
from otel_tf.logs.plain import read_plain


def order(tmp_path: Path, **files: str) -> tuple[list[str], dict[str, int]]:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    plain = read_plain([str(tmp_path / name) for name in files])
    table, evidence = arrange(plain.logs, plain.file)
    return table["body"].to_pylist(), evidence


def test_by_time_with_the_untimed_behind_their_predecessor(tmp_path: Path) -> None:
    a = "2024-01-01 00:00:01 INFO a1\nprinted by a\n2024-01-01 00:00:03 INFO a3\n"
    b = "first of b\n2024-01-01 00:00:02 INFO b2\n"
    bodies, evidence = order(tmp_path, a=a, b=b)
    assert bodies == ["a1", "printed by a", "first of b", "b2", "a3"]
    assert evidence == {"time": 3, "step": 0, "position": 2}


def test_by_step_against_those_that_have_times(tmp_path: Path) -> None:
    timed = "".join(f"2024-01-01 00:00:{n:02} INFO step {n} of a\n" for n in range(1, 6))
    untimed = "step 2 of b\nnoise\nstep 4 of b\n"
    bodies, evidence = order(tmp_path, a=timed, b=untimed)
    assert bodies == [
        *("step 1 of a", "step 2 of a", "step 2 of b", "noise", "step 3 of a", "step 4 of a", "step 4 of b"),
        "step 5 of a",
    ]
    assert evidence == {"time": 5, "step": 2, "position": 1}


def test_by_step_alone(tmp_path: Path) -> None:
    bodies, evidence = order(tmp_path, a="start a\nstep 1 a\nx\nstep 3 a", b="step 2 b\ny\nstep 4 b")
    assert bodies == ["start a", "step 1 a", "x", "step 2 b", "y", "step 3 a", "step 4 b"]
    assert evidence == {"time": 0, "step": 4, "position": 3}


def test_by_place_alone_is_the_order_of_the_input(tmp_path: Path) -> None:
    bodies, evidence = order(tmp_path, a="one\ntwo", b="three")
    assert bodies == ["one", "two", "three"]
    assert evidence == {"time": 0, "step": 0, "position": 3}
    assert order(tmp_path, a="")[1] == {"time": 0, "step": 0, "position": 0}


records = st.lists(
    st.tuples(
        st.integers(0, 3), st.one_of(st.none(), st.integers(0, 50)), st.one_of(st.none(), st.integers(0, 9))
    ),
    max_size=40,
)


@given(records)
@settings(deadline=None)
def test_no_record_is_lost_and_own_times_are_kept_to(made: list[tuple[int, int | None, int | None]]) -> None:
    made.sort(key=lambda one: one[0])
    table = LOGS.empty_table()
    if made:
        import pyarrow as pa

        rows = [
            {"severity": 0, "body": str(number), "time_ns": time, "global_step": step}
            for number, (_, time, step) in enumerate(made)
        ]
        plain = [f.type.value_type if pa.types.is_dictionary(f.type) else f.type for f in LOGS]
        table = pa.table(
            [pa.array([row.get(f.name) for row in rows], kind) for f, kind in zip(LOGS, plain, strict=True)],
            names=LOGS.names,
        ).cast(LOGS)
    found, evidence = arrange(table, np.array([one[0] for one in made], np.int64))
    assert sorted(found["body"].to_pylist(), key=int) == [str(number) for number in range(len(made))]
    assert sum(evidence.values()) == len(made)
    times = [time for time in found["time_ns"].to_pylist() if time is not None]
    assert times == sorted(times)
