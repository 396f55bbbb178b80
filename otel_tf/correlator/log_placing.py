"""Where log records belong among the spans of a correlated run: corrected times, error bars, steps in flight.

A record is placed between the events of its own process, in the program order that its clock readings give,
and never outside of them: what the spans' order says of two processes then holds for their records too.
Between two events it keeps its share of the time between; before the first and after the last of them the
clock goes on at the rate it had. A process without spans has the events of its clock domain. Of one that is
tied to nothing, the own time stays, with no error bar.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from otel_tf import semconv
from otel_tf.correlator.columns import Int, codes, integers
from otel_tf.correlator.crossings import HARD_DRIFT
from otel_tf.correlator.log_tables import PLACED
from otel_tf.correlator.sources.lives import SECOND_LIFE

__all__ = ["by_own_time", "place"]

#: What is known of a clock's rate is worth something over more than that.
_RATE_OVER_NS = 1_000_000_000
_LONGEST_DELAY_NS = 60_000_000_000
_UNKNOWN = np.iinfo(np.int64).max
PROGRAM, CLOCK, TIME = "program", "clock", "time"
_EVIDENCE = (PROGRAM, CLOCK, TIME)

Mask = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class _Anchors:
    """Events of one process or one clock, by their local times.

    Attributes:
        local_ns: Local times, growing; of the monotonic clock where `monotonic`.
        corrected_ns: Corrected times, growing with them.
        error_ns: Half-widths of the error bars; `_UNKNOWN` where nothing is known.
        monotonic: Which clock.
    """

    local_ns: Int
    corrected_ns: Int
    error_ns: Int
    monotonic: bool

    @property
    def rate(self) -> float:
        """Corrected time per local time over all of it."""
        local = int(self.local_ns[-1] - self.local_ns[0])
        if local < _RATE_OVER_NS:
            return 1.0
        rate = int(self.corrected_ns[-1] - self.corrected_ns[0]) / local
        limit = HARD_DRIFT / 2**30
        return min(max(rate, 1 - limit), 1 + limit)

    def place(self, time_ns: Int, drift: int) -> tuple[Int, Int]:
        """Returns corrected times and error bars of local times.

        Args:
            time_ns: Local times.
            drift: How far the clock may be off per time outside of all events, in units of 2^-30.
        """
        right = np.searchsorted(self.local_ns, time_ns, side="right")
        after = np.minimum(right, len(self.local_ns) - 1)
        before = np.maximum(right - 1, 0)
        low, high = self.local_ns[before], self.local_ns[after]
        corrected_low, corrected_high = self.corrected_ns[before], self.corrected_ns[after]
        width = np.maximum(high - low, 1)
        share = (time_ns - low) * ((corrected_high - corrected_low) / width)
        placed = np.clip(corrected_low + share.astype(np.int64), corrected_low, corrected_high)
        outside = np.where(
            right == 0, time_ns - high, np.where(right == len(self.local_ns), time_ns - low, 0)
        )
        if outside.any():
            base = np.where(right == 0, corrected_high, corrected_low)
            placed = np.where(outside != 0, base + (outside * self.rate).astype(np.int64), placed)
        error = np.maximum(self.error_ns[before], self.error_ns[after])
        grown = error + (np.abs(outside) * (drift / 2**30)).astype(np.int64)
        return placed, np.where(error == _UNKNOWN, _UNKNOWN, grown)


@dataclasses.dataclass(frozen=True)
class _Steps:
    """Steps of one process, by the local times of their starts."""

    start_ns: Int
    end_ns: Int
    row: Int

    def in_flight(self, time_ns: Int) -> tuple[Int, Int]:
        """Returns the row of the only step in flight at each time, and of the one before it; −1 for none."""
        begun = np.searchsorted(self.start_ns, time_ns, side="right")
        ended = np.searchsorted(np.sort(self.end_ns), time_ns, side="left")
        last = np.maximum(begun - 1, 0)
        alone = (begun - ended == 1) & (self.end_ns[last] >= time_ns)
        row = self.row[last]
        return np.where(alone, row, -1), np.where(begun > 0, row, -1)


def place(logs: pa.Table, spans: pa.Table, *, reference: str | None = None) -> pa.Table:
    """Returns the records in causal order, rows of `PLACED`.

    Args:
        logs: Rows of `LOGS`.
        spans: Spans as `correlate` leaves them (`Result.correlated`).
        reference: The clock domain whose time corrected times are in.
    """
    count = logs.num_rows
    groups = _groups(logs)
    own_ns, read_ns, mono_ns = _local_times(logs, [rows for rows, _, _ in groups])
    corrected, error = own_ns.copy(), np.full(count, _UNKNOWN, np.int64)
    evidence = np.full(count, _EVIDENCE.index(TIME), np.int32)
    step = integers(logs["global_step"])
    ids = [integers(logs[name], 0).copy() for name in ("trace_hi", "trace_lo", "span_id")]
    unlinked = ids[2] == 0
    step, ids_of = step.copy(), [integers(spans[name]) for name in ("trace_hi", "trace_lo", "span_id")]
    step_of = integers(spans["global_step"])
    by_process, by_domain, steps = _anchors(spans)
    for all_rows, name, domain in groups:
        process = _life(name, by_process, int(np.median(own_ns[all_rows])))
        rows, anchors, how = all_rows, by_process.get(process), PROGRAM
        if anchors is None:
            anchors, how = by_domain.get(domain), CLOCK
        if anchors is None:
            continue
        local = own_ns[rows]
        if anchors.monotonic:
            known = mono_ns[rows] >= 0
            rows, local = all_rows[known], mono_ns[all_rows][known]
        if not len(rows):
            continue
        corrected[rows], error[rows] = anchors.place(local, 0 if domain == reference else HARD_DRIFT)
        evidence[rows] = _EVIDENCE.index(how)
        if process in steps:
            flying, latest = steps[process].in_flight(local)
            link = unlinked[rows] & (flying >= 0)
            for mine, theirs in zip(ids, ids_of, strict=True):
                mine[rows[link]] = theirs[flying[link]]
            unnumbered = (step[rows] < 0) & (latest >= 0)
            step[rows[unnumbered]] = step_of[latest[unnumbered]]
    return _ordered(logs, corrected, read_ns, error, evidence, step, ids)


def by_own_time(logs: pa.Table) -> pa.Table:
    """Returns the records by their own times, where there are no spans to place them among."""
    own_ns, read_ns, _ = _local_times(logs, [rows for rows, _, _ in _groups(logs)])
    count = logs.num_rows
    ids = [integers(logs[name], 0) for name in ("trace_hi", "trace_lo", "span_id")]
    unknown = np.full(count, _UNKNOWN, np.int64)
    evidence = np.full(count, _EVIDENCE.index(TIME), np.int32)
    return _ordered(logs, own_ns, read_ns, unknown, evidence, integers(logs["global_step"]), ids)


def _local_times(logs: pa.Table, groups: list[Int]) -> tuple[Int, Int, Int]:
    """Returns when each record was made, and read, by the wall clock; and made by the monotonic one, or −1.

    A line of stderr may say when it was made; its reader says when it came. One that does not say it was made
    before the next one that does.
    """
    own, read = integers(logs["time_ns"], 0), integers(logs["observed_ns"], 0)
    own, read = np.where(own == 0, read, own), np.where(read == 0, own, read)
    stream, names = codes(logs["stream"])
    stderr = stream == (names.index("stderr") if "stderr" in names else -2)
    mono = integers(logs["mono_ns"])
    delay = read - own
    late = (delay > 0) & (delay < _LONGEST_DELAY_NS)
    made = np.where(mono >= 0, mono - np.where(late, delay, 0), -1)
    for group in groups:
        rows = group[stderr[group]]
        says = own[rows] != read[rows]
        if says.any():
            for times in (own, made):
                following = np.minimum.accumulate(np.where(says, times[rows], _UNKNOWN)[::-1])[::-1]
                times[rows] = np.where(says, times[rows], np.minimum(times[rows], following))
    return own, read, made


def _groups(logs: pa.Table) -> list[tuple[Int, str, str]]:
    """Returns the records by process and clock: rows in the order of the input, and their names."""
    process, processes = codes(logs["process"])
    pid, pids = codes(logs["pid"])
    domain, domains = codes(logs["domain"])
    key = (process.astype(np.int64) * (len(pids) + 1) + pid + 1) * (len(domains) + 1) + domain + 1
    order = np.argsort(key, kind="stable")
    found = []
    for rows in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
        if len(rows):
            name = processes[process[rows[0]]] if process[rows[0]] >= 0 else ""
            clock = domains[domain[rows[0]]] if domain[rows[0]] >= 0 else name
            found.append((rows, name, clock))
    return found


def _life(name: str, by_process: dict[str, _Anchors], middle_ns: int) -> str:
    """Returns which of the lives of a restarted process records are of: the one nearest to them."""
    lives = [other for other in by_process if other == name or other.startswith(f"{name}{SECOND_LIFE}")]
    if len(lives) < 2:
        return name

    def distance(life: str) -> int:
        corrected = by_process[life].corrected_ns
        return max(int(corrected[0]) - middle_ns, middle_ns - int(corrected[-1]), 0)

    return min(lives, key=distance)


def _anchors(spans: pa.Table) -> tuple[dict[str, _Anchors], dict[str, _Anchors], dict[str, _Steps]]:
    """Returns the events by process, those by clock, and each process's steps."""
    start, end = integers(spans["start_ns"]), integers(spans["end_ns"])
    mono = integers(spans["mono_ns"])
    corrected = integers(spans["corrected_start_ns"]), integers(spans["corrected_end_ns"])
    error = integers(spans["error_ns"], _UNKNOWN)
    name, names = codes(spans["name"])
    stepping = np.array([each == semconv.SPAN_TRAIN_STEP for each in names] + [False], np.bool_)[name]
    stepping &= integers(spans["global_step"]) >= 0
    processes: dict[str, _Anchors] = {}
    domains: dict[str, _Anchors] = {}
    steps: dict[str, _Steps] = {}

    def made(rows: Int, local: Int, *, monotonic: bool) -> _Anchors:
        times = np.concatenate([local, local + end[rows] - start[rows]])
        fixed = np.concatenate([corrected[0][rows], corrected[1][rows]])
        order = np.lexsort((fixed, times))
        # What was repaired of one thread may lie across another's: records stay in program order.
        return _Anchors(
            times[order],
            np.maximum.accumulate(fixed[order]),
            np.concatenate([error[rows], error[rows]])[order],
            monotonic,
        )

    for all_rows, process in _rows_by(spans["process"]):
        monotonic = bool((mono[all_rows] >= 0).any())
        rows = all_rows[mono[all_rows] >= 0] if monotonic else all_rows
        local = (mono if monotonic else start)[rows]
        processes[process] = made(rows, local, monotonic=monotonic)
        some = rows[stepping[rows]]
        if len(some):
            local = (mono if monotonic else start)[some]
            order = np.argsort(local, kind="stable")
            lasts = (local + end[some] - start[some])[order]
            steps[process] = _Steps(local[order], lasts, some[order])
    for rows, domain in _rows_by(spans["domain"]):
        domains[domain] = made(rows, start[rows], monotonic=False)
    return processes, domains, steps


def _rows_by(column: pa.ChunkedArray) -> list[tuple[Int, str]]:
    code, names = codes(column)
    order = np.argsort(code, kind="stable")
    cuts = np.searchsorted(code[order], np.arange(len(names) + 1))
    return [(order[cuts[number] : cuts[number + 1]], name) for number, name in enumerate(names)]


def _ordered(
    logs: pa.Table,
    corrected: Int,
    read_ns: Int,
    error: Int,
    evidence: npt.NDArray[np.int32],
    step: Int,
    ids: list[Int],
) -> pa.Table:
    # Of one moment: as they were read, then as they stand in the input.
    order = np.lexsort((np.arange(len(corrected)), integers(logs["seq"]), read_ns, corrected))
    linked = ids[2] != 0
    columns = {name: logs[name] for name in logs.column_names}
    columns["global_step"] = pa.array(step, mask=step < 0)
    for name, values in zip(("trace_hi", "trace_lo", "span_id"), ids, strict=True):
        columns[name] = pa.array(values, mask=~linked)
    sorted_ = pa.table(columns).take(pa.array(order))
    extra = {
        "order": pa.array(np.arange(len(order), dtype=np.int64)),
        "corrected_ns": pa.array(corrected[order], mask=corrected[order] == 0),
        "error_ns": pa.array(error[order], mask=error[order] == _UNKNOWN),
        "evidence": pa.DictionaryArray.from_arrays(pa.array(evidence[order]), pa.array(_EVIDENCE)),
    }
    for name, values in extra.items():
        sorted_ = sorted_.append_column(name, values)
    return sorted_.cast(PLACED)
