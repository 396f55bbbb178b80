"""Of everything that was read: one run, the steps asked for, every span once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from otel_tf.correlator.sources.chunks import READ, Chunk
from otel_tf.correlator.sources.skipped import Skipped
from otel_tf.correlator.tables import LINKS
from otel_tf.errors import UserError

__all__ = ["choose_run", "keep", "keep_steps", "once", "together"]

Mask = npt.NDArray[np.bool_]


def together(chunks: Sequence[Chunk]) -> Chunk:
    """Returns all chunks as one, with one dictionary a text column."""
    spans = pa.concat_tables([chunk.spans for chunk in chunks] or [READ.empty_table()])
    first_row, links = 0, []
    for chunk in chunks:
        row = pc.add(chunk.links["row"], first_row)
        links.append(chunk.links.set_column(0, LINKS.field("row"), row))
        first_row += chunk.spans.num_rows
    return Chunk(
        spans.unify_dictionaries().combine_chunks(),
        pa.concat_tables(links or [LINKS.empty_table()]).combine_chunks(),
    )


def keep(chunk: Chunk, mask: Mask) -> Chunk:
    """Returns the spans of ``mask`` and their links."""
    if mask.all():
        return chunk
    row = chunk.links["row"].to_numpy()
    new_row = np.cumsum(mask) - 1
    links = chunk.links.set_column(0, LINKS.field("row"), pa.array(new_row[row], pa.int64()))
    return Chunk(
        chunk.spans.filter(pa.array(mask)).combine_chunks(),
        links.filter(pa.array(mask[row])).combine_chunks(),
    )


def once(chunk: Chunk, skipped: Skipped) -> Chunk:
    """Returns every span once; which one of several is kept does not depend on their order."""
    spans = chunk.spans
    span_id = spans["span_id"].to_numpy()
    ordered = np.sort(span_id)
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(again):
        return chunk
    rows = np.flatnonzero(np.isin(span_id, again))
    some = spans.take(pa.array(rows))
    identity = [some[name].to_numpy() for name in ("trace_hi", "trace_lo", "span_id")]
    content = [some[name].to_numpy() for name in ("start_ns", "end_ns", "parent_id", "kind")]
    content += [_rank(some[name]) for name in ("process", "domain", "name")]
    # The last key is lexsort's first.
    order = np.lexsort([*reversed(content), *reversed(identity)])
    same_id = _equals_previous(identity, order)
    same = same_id & _equals_previous(content, order)
    for reason, mask in (("duplicate", same), ("conflicting_duplicate", same_id & ~same)):
        found = np.flatnonzero(mask)
        if len(found):
            skipped.add(reason, _describe(some, int(order[found[0]])), len(found))
    left_out = np.zeros(spans.num_rows, np.bool_)
    left_out[rows[order[same_id]]] = True
    return keep(chunk, ~left_out)


def _equals_previous(columns: list[npt.NDArray[np.int64]], order: npt.NDArray[np.int64]) -> Mask:
    equal = np.ones(len(order), np.bool_)
    equal[:1] = False
    for column in columns:
        values = column[order]
        equal[1:] &= values[1:] == values[:-1]
    return equal


def _rank(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Returns numbers that compare as the texts of a dictionary column do."""
    array = column.combine_chunks()
    names = array.dictionary.to_pylist()
    rank = {name: place for place, name in enumerate(sorted(set(names)))}
    table = np.array([rank[name] for name in names], np.int64)
    ranks: npt.NDArray[np.int64] = table[array.indices.to_numpy(zero_copy_only=False)]
    return ranks


def _describe(spans: pa.Table, row: int) -> str:
    from otel_tf.correlator.sources import ids

    one = spans.slice(row, 1)
    trace = ids.to_hex(one["trace_hi"].to_numpy(), one["trace_lo"].to_numpy())[0]
    span = ids.to_hex(one["span_id"].to_numpy())[0]
    return f"span {one['name'][0].as_py()!r} of {one['process'][0].as_py()}: trace id {trace}, span id {span}"


@dataclasses.dataclass(frozen=True)
class _Run:
    name: str
    end_ns: int


def choose_run(chunk: Chunk, wanted: str | None, say: Callable[[str], None]) -> Chunk:
    """Returns the spans of one run, and those without a run that belong to it.

    Without ``wanted``, the run that ended last is taken, and ``say`` is told of the others: whoever looks
    into a folder of runs mostly means the last one. A span that names no run (another
    instrumentation's) belongs to the run of its trace; if nobody in its trace names one, it is kept only
    when there is no more than one run.

    Raises:
        UserError: ``wanted`` is not there.
    """
    column = chunk.spans["run"].combine_chunks()
    if wanted is None and len(column.dictionary) < 2:
        return chunk
    runs = _runs(chunk.spans)
    if wanted is not None and wanted not in {run.name for run in runs}:
        there = ", ".join(run.name for run in runs) or "none"
        raise UserError(f"no spans of run {wanted!r}; runs here: {there}")
    if len(runs) < 2:
        return chunk
    chosen = wanted or runs[0].name
    if wanted is None:
        others = ", ".join(run.name for run in runs[1:4]) + (", …" if len(runs) > 4 else "")
        say(f"{len(runs)} runs here: taking the last one, {chosen} (others: {others}; choose with --run)")
    mine = pc.equal(column, chosen).fill_null(False).to_numpy(zero_copy_only=False)
    nobodys = column.is_null().to_numpy(zero_copy_only=False)
    return keep(chunk, mine | (nobodys & _in_traces_of(chunk.spans, mine)))


def _runs(spans: pa.Table) -> list[_Run]:
    ends = spans.group_by("run").aggregate([("end_ns", "max")])
    pairs = zip(ends["run"].to_pylist(), ends["end_ns_max"].to_pylist(), strict=True)
    return sorted(
        (_Run(name, end) for name, end in pairs if name is not None), key=lambda run: (-run.end_ns, run.name)
    )


def _in_traces_of(spans: pa.Table, mask: Mask) -> Mask:
    """Returns the spans whose trace has a span of ``mask``."""
    words = np.stack([spans["trace_hi"].to_numpy(), spans["trace_lo"].to_numpy()], axis=1)
    traces = np.ascontiguousarray(words).view([("hi", np.int64), ("lo", np.int64)]).ravel()
    found: Mask = np.isin(traces, np.unique(traces[mask]))
    return found


def keep_steps(chunk: Chunk, steps: tuple[int | None, int | None]) -> Chunk:
    """Returns the spans of the global steps from ``steps[0]`` to ``steps[1]``, both included.

    A span without a step stays if a span of its trace does, or if no span of its trace has a step.
    """
    step = chunk.spans["global_step"].combine_chunks()
    there = step.is_valid().to_numpy(zero_copy_only=False)
    number = step.fill_null(0).to_numpy(zero_copy_only=False)
    first, last = steps
    inside = there & (number >= (first if first is not None else number.min(initial=0)))
    if last is not None:
        inside &= number <= last
    stays = _in_traces_of(chunk.spans, inside) | ~_in_traces_of(chunk.spans, there)
    return keep(chunk, inside | (~there & stays))
