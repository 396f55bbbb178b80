"""What a storage no longer has of a run, told from what it still has."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from otel_tf import ids, semconv

__all__ = ["Absent", "absent", "missing"]

Int = npt.NDArray[np.int64]

_CLOSURE, _STEP = "closure", "step"


@dataclasses.dataclass(frozen=True)
class Absent:
    """Steps of a run of which no span is there.

    Attributes:
        run: The run.
        kind: ``closure`` or ``step``, as in their trace ids.
        numbers: Their numbers, ascending.
    """

    run: str
    kind: str
    numbers: Int

    def trace_ids(self, numbers: Int) -> list[int]:
        """Returns the trace ids of some of them."""
        make = ids.trace_ids(self.run, self.kind)
        return [make(number) for number in numbers.tolist()]


def missing(spans: pa.Table) -> dict[str, int]:
    """Returns how much is missing, by what it is; what cannot be told is not in it.

    ============  ================================================================================
    ``parents``   spans whose parent is not there
    ``closures``  numbers of closures, from 0 to the last, of which no span is there
    ``steps``     numbers of synchronous steps, from the first to the last, of which no span is there
    ``sequence``  sequence numbers of the processes, from 1 to the last, that no span has
    ============  ================================================================================

    Args:
        spans: Rows of `tables.SPANS`, of one run.
    """
    found = {"parents": _without_parent(spans)}
    if numbered := _absent_numbers(spans):
        found[f"{numbered[0]}s"] = len(numbered[1])
    seq = spans["seq"]
    if seq.null_count < len(seq):
        last = spans.group_by("process").aggregate([("seq", "max"), ("seq", "count_distinct")])
        gaps = pc.subtract(last["seq_max"], last["seq_count_distinct"]).fill_null(0).to_numpy()
        found["sequence"] = int(np.maximum(gaps, 0).sum())
    return found


def absent(spans: pa.Table) -> Absent | None:
    """Returns the steps that are missing among ``spans``; None unless they are of one run, and numbered."""
    runs = spans["run"].drop_null().unique().to_pylist()
    numbered = _absent_numbers(spans) if len(runs) == 1 else None
    return Absent(runs[0], *numbered) if numbered else None


def _without_parent(spans: pa.Table) -> int:
    trace, span, parent = (spans[name].to_numpy() for name in ("trace_lo", "span_id", "parent_id"))
    # One word for both ids; two pairs that share one would only be counted wrongly.
    word = trace.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    child = np.flatnonzero(parent)
    wanted, there = (pa.array(word[child] ^ parent[child].astype(np.uint64)), word ^ span.astype(np.uint64))
    found = pc.is_in(wanted, value_set=pa.array(there))
    return len(child) - int(pc.sum(found).as_py() or 0)


def _absent_numbers(spans: pa.Table) -> tuple[str, Int] | None:
    named = spans["name"].cast(pa.string())
    closures = spans.filter(pc.equal(named, semconv.SPAN_CLOSURE))
    if closures.num_rows:
        key = semconv.CLOSURE_ID.replace(".", r"\.")
        texts = pc.extract_regex(closures["attributes"], rf'"{key}":(?P<number>\d+)').combine_chunks()
        there = np.unique(texts.field("number").drop_null().cast(pa.int64()).to_numpy())
        return (_CLOSURE, _between(0, there, 1)) if len(there) else None
    is_step = pc.is_in(named, value_set=pa.array([semconv.SPAN_STEP, semconv.SPAN_TRAIN_STEP]))
    # Loops beside the main one count for themselves.
    aside = pc.match_substring(spans["attributes"].fill_null(""), f'"{semconv.STEP_STREAM}"')
    steps = spans.filter(pc.and_not(is_step, aside))["global_step"].drop_null()
    there = np.unique(steps.to_numpy())
    if len(there) < 2:
        return None
    # Several steps may be run in one go, and then only the first of them has a number.
    return _STEP, _between(int(there[0]), there, int(np.gcd.reduce(np.diff(there))))


def _between(first: int, there: Int, stride: int) -> Int:
    """Returns the numbers from ``first`` to the last that are not there."""
    return np.setdiff1d(np.arange(first, int(there[-1]), stride), there, assume_unique=True)
