from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otel_tf import ids


def test_a_step_has_one_trace_id_everywhere() -> None:
    """Pinned: processes of one run may run different versions, and must still agree."""
    assert f"{ids.trace_id('run', 'step', 41207):032x}" == "adb35ebaef20c560c0a63d2de440b169"
    assert f"{ids.span_id('run', 'step', 41207, 'root'):016x}" == "9241824edd3664d9"


def test_another_process_computes_the_same() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from otel_tf import ids; print(ids.trace_id('r', 'step', 7), ids.span_id('r', 7))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(ids.trace_id("r", "step", 7)), str(ids.span_id("r", 7))]


@given(st.lists(st.one_of(st.integers(0), st.text(st.characters(exclude_categories=["C"]))), min_size=1))
def test_ids_are_valid_and_apart(parts: list[int | str]) -> None:
    assert 0 < ids.trace_id(*parts) < 1 << 128
    assert 0 < ids.span_id(*parts) < 1 << 64
    assert ids.trace_id(*parts) != ids.trace_id(*parts, 0)
    assert ids.trace_id(*parts) & ((1 << 64) - 1) != ids.span_id(*parts)


def test_parts_do_not_run_together() -> None:
    assert ids.trace_id("a", "bc") != ids.trace_id("ab", "c")
    assert ids.trace_id(1, 11) != ids.trace_id(11, 1)


def test_the_low_56_bits_are_uniform() -> None:
    """What a ratio sampler looks at: a quarter of the steps at a ratio of a quarter, on every worker."""
    kept = sum(ids.trace_id("r", "step", step) & ((1 << 56) - 1) < 1 << 54 for step in range(8_000))
    assert 1_800 < kept < 2_200


def test_random_ids_leave_the_programs_streams_alone() -> None:
    random.seed(7)
    np.random.seed(7)
    expected = random.random(), np.random.random()
    random.seed(7)
    np.random.seed(7)
    made = {(ids.random_trace_id(), ids.random_span_id(), ids.new_run_id()) for _ in range(100)}
    assert (random.random(), np.random.random()) == expected
    assert len(made) == 100


def test_a_seeded_program_gets_other_random_ids_each_time() -> None:
    code = "import random; random.seed(7); from otel_tf import ids; print(ids.random_trace_id())"
    seen = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert len(seen) == 2


def test_prepared_ids_are_the_same() -> None:
    assert ids.trace_ids("run", "step")(7) == ids.trace_id("run", "step", 7)
    assert ids.trace_ids("run", "step")(7, "stream", 1) == ids.trace_id("run", "step", 7, "stream", 1)
    assert ids.span_ids("run", "step")(7, "root") == ids.span_id("run", "step", 7, "root")
