"""Small runs with known causes, written by hand, correlated for real."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_tf import ids
from otel_tf.correlator import Result, correlate

T0 = 1_796_000_000_000_000_000
MS = 1_000_000


class Run:
    """Collects spans by process and writes them as a run directory."""

    def __init__(self, folder: Path, run: str) -> None:
        self.folder, self.run = folder / run, run
        self.spans: dict[str, list[dict[str, Any]]] = {}
        self.ahead: dict[str, int] = {}

    def add(
        self,
        task: str,
        name: str,
        span: tuple[str | int, ...],
        *,
        trace: tuple[str | int, ...],
        at: tuple[int, int],
        parent: tuple[str | int, ...] | None = None,
        kind: int = 1,
        links: list[tuple[tuple[str | int, ...], tuple[str | int, ...]]] | None = None,
        error: str | None = None,
        **attributes: Any,
    ) -> None:
        """Adds a span of ``task`` from ``at[0]`` to ``at[1]``, true ns after T0, on its clock."""
        spans = self.spans.setdefault(task, [])
        ahead = self.ahead.get(task, 0)
        attributes["tensorflow.seq"] = len(spans) + 1
        attributes["tensorflow.monotonic_ns"] = at[0] + 5_000_000_000
        spans.append(
            {
                "traceId": f"{ids.trace_id(self.run, *trace):032x}",
                "spanId": f"{ids.span_id(self.run, *span):016x}",
                "parentSpanId": f"{ids.span_id(self.run, *parent):016x}" if parent else "",
                "name": name,
                "kind": kind,
                "startTimeUnixNano": str(T0 + at[0] + ahead),
                "endTimeUnixNano": str(T0 + at[1] + ahead),
                "attributes": _pairs(attributes),
                "links": [
                    {
                        "traceId": f"{ids.trace_id(self.run, *t):032x}",
                        "spanId": f"{ids.span_id(self.run, *s):016x}",
                    }
                    for t, s in links or []
                ],
                "status": {"code": 2, "message": error} if error else {},
            }
        )

    def write(self) -> str:
        """Writes one file a task and returns the folder."""
        self.folder.mkdir(exist_ok=True)
        for task, spans in self.spans.items():
            kind, _, index = task.partition(":")
            resource = {
                "service.name": "mnist",
                "service.instance.id": f"{self.run}/{task}",
                "tensorflow.run.id": self.run,
                "tensorflow.clock.domain": f"boot-{task}",
                "tensorflow.task.type": kind,
                "tensorflow.task.index": int(index),
            }
            line = {
                "resourceSpans": [
                    {"resource": {"attributes": _pairs(resource)}, "scopeSpans": [{"spans": spans}]}
                ]
            }
            path = self.folder / f"{kind}-{index}.traces.jsonl"
            path.write_text(json.dumps(line) + "\n")
        return str(self.folder)

    def result(self) -> Result:
        """Writes and correlates it."""
        return correlate(self.write())


def _pairs(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    def value(of: Any) -> dict[str, Any]:
        if isinstance(of, bool):
            return {"boolValue": of}
        if isinstance(of, int):
            return {"intValue": str(of)}
        return {"doubleValue": of} if isinstance(of, float) else {"stringValue": of}

    return [{"key": key, "value": value(of)} for key, of in attributes.items()]


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[[str], Run]:
    return lambda name: Run(tmp_path, name)


@pytest.fixture
def synchronous(make_run: Callable[[str], Run]) -> Run:
    """Ten steps of four workers: worker:2 takes 20 ms to the barrier, the others 8; a clock is off."""
    run = make_run("sync-1")
    run.ahead = {"worker:1": 15 * MS}
    begin = 0
    for n in range(10):
        trace, root = ("step", n), ("step", n, "root")
        leave = begin + 20_300_000
        run.add(
            "worker:0",
            "step",
            root,
            trace=trace,
            at=(begin - 5000, leave + MS),
            **{"tensorflow.global_step": n},
        )
        for w in range(4):
            step, worker = ("step", n, w), f"worker:{w}"
            common = {"tensorflow.global_step": n, "tensorflow.worker": worker}
            start = begin + w * 10_000
            # The straggler is not the last to end by the clock.
            end = leave + 500_000 - (40_000 if w == 2 else 0) + w * 1000
            run.add(worker, "train_step", step, trace=trace, parent=root, at=(start, end), **common)
            run.add(
                worker,
                "collective",
                (*step, "c"),
                trace=trace,
                parent=step,
                at=(start + (20 if w == 2 else 8) * MS, leave + w * 7000),
                **common,
                **{"tensorflow.collective.group_key": 1, "tensorflow.collective.instance_key": n},
            )
        begin = leave + 3 * MS
    return run


@pytest.fixture
def asynchronous(make_run: Callable[[str], Run]) -> Run:
    """A parameter-server run: 1,000 closures on three workers whose clocks are tens of ms apart."""
    run = make_run("pss-1")
    run.ahead = {"worker:0": -40 * MS, "worker:1": 55 * MS, "worker:2": 3 * MS}
    for k in range(1000):
        w, begin = k % 3, k * 2 * MS
        trace, closure, dispatch = ("closure", k), ("closure", k, "c"), ("closure", k, "d")
        common = {"tensorflow.global_step": k, "tensorflow.worker": f"worker:{w}"}
        failed = {"error": "lost its worker"} if k == 500 else {}
        run.add(
            "chief:0", "closure", closure, trace=trace, at=(begin, begin + 5 * MS), kind=4, **common, **failed
        )
        run.add(
            "chief:0",
            "dispatch",
            dispatch,
            trace=trace,
            parent=closure,
            kind=3,
            at=(begin + 1000, begin + 5 * MS - 1000),
            links=[(("closure", k - 1), ("closure", k - 1, "d"))] if k else [],
            **common,
        )
        run.add(
            f"worker:{w}",
            "train_step",
            ("closure", k, "t"),
            trace=trace,
            parent=dispatch,
            kind=2,
            at=(begin + 200_000, begin + 4_700_000),
            **common,
        )
    return run
