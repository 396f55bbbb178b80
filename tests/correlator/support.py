"""Runs to correlate: written by hand, or random ones whose truth is known."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from otel_tf.correlator.tables import CLOCKS, LINKS, SPANS, Ingested

T0 = 1_796_000_000_000_000_000
US = 1_000
MS = 1_000_000
S = 1_000_000_000
INTERNAL, SERVER, CLIENT, PRODUCER, CONSUMER = 1, 2, 3, 4, 5

_BLANK = {
    "trace_hi": 1,
    "trace_lo": 1,
    "parent_id": 0,
    "name": "work",
    "kind": INTERNAL,
    "status": 0,
    "service": "job",
    "run": "run-1",
    "process": "p0",
    "domain": "d0",
}


def ingested(
    rows: list[dict[str, Any]],
    links: list[tuple[int, int]] = (),
    clocks: list[dict[str, Any]] = (),
) -> Ingested:
    """Returns rows of SPANS with blanks filled in; ``links`` are (row of the linking span, linked span)."""
    full = [{**_BLANK, "span_id": number + 1, **row} for number, row in enumerate(rows)]
    linked = {row["span_id"]: row for row in full}
    ids = {span: linked.get(span, _BLANK) for _, span in links}
    return Ingested(
        _table(SPANS, full),
        _table(
            LINKS,
            [
                {"row": row, "span_id": span, **{key: ids[span][key] for key in ("trace_hi", "trace_lo")}}
                for row, span in links
            ],
        ),
        _table(CLOCKS, list(clocks)),
    )


def _table(schema: pa.Schema, rows: list[dict[str, Any]]) -> pa.Table:
    plain = [field.type.value_type if pa.types.is_dictionary(field.type) else field.type for field in schema]
    arrays = [
        pa.array([row.get(field.name) for row in rows], kind)
        for field, kind in zip(schema, plain, strict=True)
    ]
    return pa.table(arrays, names=schema.names).cast(schema)


@dataclasses.dataclass
class TrueRun:
    """A random run: its rows, links, and when everything really was."""

    rows: list[dict[str, Any]]
    links: list[tuple[int, int]]
    start: list[int]
    end: list[int]
    clock: dict[str, tuple[int, float]]

    def ingested(self, order: list[int] | None = None) -> Ingested:
        """Returns it as a source would deliver it, its rows in the given order."""
        if order is None:
            return ingested(self.rows, self.links)
        place = {row: number for number, row in enumerate(order)}
        return ingested(
            [self.rows[row] for row in order],
            [(place[row], span) for row, span in self.links if row in place],
        )


class _Maker:
    """Makes spans in true time, every cause before its effect, then reads them off each process's clock."""

    def __init__(self, rng: np.random.Generator, domains: int, *, drift_ppm: float) -> None:
        self.rng = rng
        self.rows: list[dict[str, Any]] = []
        self.start: list[int] = []
        self.end: list[int] = []
        self.links: list[tuple[int, int]] = []
        self.clock = {
            f"d{number}": (
                int(rng.normal(0, 50 * MS)) if number else 0,
                float(rng.normal(0, drift_ppm)) if number else 0.0,
            )
            for number in range(domains)
        }
        # Two processes share the first host's clock.
        self.processes = [("p0", "d0"), ("p0b", "d0"), *((f"p{n}", f"d{n}") for n in range(1, domains))]

    def latency(self) -> int:
        return int(self.rng.integers(1, 50)) + int(self.rng.exponential(200 * US))

    def span(self, process: int, start: int, depth: int, parent: int | None, kind: int) -> int:
        """Adds a span with its descendants and returns its number; they all begin and end as they must."""
        number = len(self.rows)
        name, domain = self.processes[process]
        self.rows.append(
            {
                "span_id": number + 1,
                "parent_id": 0 if parent is None else parent + 1,
                "kind": kind,
                "process": name,
                "domain": domain,
            }
        )
        self.start.append(start)
        self.end.append(0)
        now = start
        for _ in range(int(self.rng.integers(0, 4)) if depth else 0):
            now += 1 + int(self.rng.exponential(100 * US))
            now = self._child(process, number, now, depth)
        self.end[number] = now + 1 + int(self.rng.exponential(100 * US))
        return number

    def _child(self, process: int, number: int, now: int, depth: int) -> int:
        """Adds a child of span ``number`` at ``now`` and returns when its parent goes on."""
        what = self.rng.choice(["local", "call", "message", "asynchronous", "context", "link"])
        other = int(self.rng.integers(0, len(self.processes)))
        if what == "call" and other != process:
            client = self.span(process, now, 0, number, CLIENT)
            server = self.span(other, now + self.latency(), depth - 1, client, SERVER)
            self.end[client] = self.end[server] + self.latency()
            return self.end[client] + 1
        if what in ("message", "context") and other != process:
            sender = self.span(process, now, 0, number, PRODUCER if what == "message" else INTERNAL)
            self.span(
                other, now + self.latency(), depth - 1, sender, CONSUMER if what == "message" else INTERNAL
            )
            return self.end[sender] + 1
        if what == "asynchronous":
            child = self.span(process, now, 0, number, INTERNAL)
            self.end[child] = now + 1 + int(self.rng.exponential(2 * MS))
            return now + 1
        if what == "link" and other != process:
            self.links.append((len(self.rows), number + 1))
            self.span(other, now + self.latency(), 0, None, CONSUMER)
            return now + 1
        return self.end[self.span(process, now, depth - 1, number, INTERNAL)] + 1

    def read(self) -> TrueRun:
        """Returns the spans as the processes' clocks saw them, with sequence numbers by true start."""
        counts: dict[str, int] = {}
        for number in sorted(range(len(self.rows)), key=lambda n: (self.start[n], n)):
            row = self.rows[number]
            counts[row["process"]] = row["seq"] = counts.get(row["process"], 0) + 1
        for number, row in enumerate(self.rows):
            for key, true in (("start_ns", self.start[number]), ("end_ns", self.end[number])):
                row[key] = T0 + self.reading(row["domain"], true)
        return TrueRun(self.rows, self.links, self.start, self.end, self.clock)

    def reading(self, domain: str, true: int) -> int:
        offset, drift = self.clock[domain]
        return true + offset + round(true * drift * 1e-6)


@st.composite
def true_runs(draw: st.DrawFn, *, drift_ppm: float = 30.0, most_domains: int = 4) -> TrueRun:
    """Random runs of up to some hundred spans on 1 to ``most_domains`` clocks; ``d0`` keeps true time."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    maker = _Maker(rng, draw(st.integers(1, most_domains)), drift_ppm=drift_ppm)
    maker.span(0, 0, 0, None, INTERNAL)  # the reference has something to say
    for _ in range(draw(st.integers(1, 12))):
        process = int(rng.integers(0, len(maker.processes)))
        maker.span(process, int(rng.integers(0, 50 * MS)), draw(st.integers(0, 3)), None, INTERNAL)
    return maker.read()
