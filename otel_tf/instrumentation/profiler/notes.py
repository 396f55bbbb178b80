"""What a reader of profiles needs to know beside them: whose a port is, which variable an op touches.

Both are files in the run directory, one JSON object a line. ``<task>.<pid>.cluster.json`` has the task by
address: profiles that are taken through a port are named by it. ``<task>.<pid>.graph.json`` has, by name as
profiles show it, the variable of each op of the functions that a coordinator's workers run: the event of one
says what it did, but not to which variable.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from tensorflow.python.eager import context
from tensorflow.python.framework import dtypes

from otel_tf._guard import Guard
from otel_tf.telemetry import Pipeline

__all__ = ["Names", "Notes", "addresses", "variables_of"]

_NOTING = Guard("noting what is beside a profile")
_CALLS = ("StatefulPartitionedCall", "PartitionedCall")
_PASSES = ("Identity", "IdentityN")


class Notes:
    """Writes them; on the flusher's thread, once the run has its name."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._addresses: Mapping[str, str] = {}
        self._names = Names()

    def cluster(self) -> None:
        """Notes the addresses of this process's cluster, when they are known and new."""
        found = addresses()
        if found and found != self._addresses:
            self._addresses = found
            self._pipeline.record_later(self._write, ("cluster", found))

    def function(self, concrete: Any) -> None:
        """Notes the variables of a traced function."""
        with _NOTING:
            name = concrete.name
            text = name.decode() if isinstance(name, bytes) else name
            facts = {"function": text, "variables": variables_of(concrete, self._names)}
            self._pipeline.record_later(self._write, ("graph", facts))

    def _write(self, facts: tuple[str, Mapping[str, Any]]) -> tuple[()]:
        kind, content = facts
        if self._pipeline.settings.spool:
            task = self._pipeline.identity.task.replace(":", "-")
            file = self._pipeline.run_dir / f"{task}.{os.getpid()}.{kind}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(content) + "\n")
        return ()


def addresses() -> dict[str, str]:
    """Returns the task, such as ``worker:1``, of each ``host:port`` of this process's cluster."""
    ours = context.context()
    server = ours.get_server_def() or getattr(ours, "_collective_ops_server_def", None)
    if server is None:
        return {}
    return {
        address: f"{job.name}:{index}"
        for job in server.cluster.job
        for index, address in sorted(job.tasks.items())
    }


class Names:
    """Names of variables, as the program gave them; one that was given before gets a number."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._given: Counter[str] = Counter()

    def of(self, variable: Any) -> str:
        """Returns the name of a variable, the same in all functions."""
        known = self._names.get(variable._unique_id)
        if known is None:
            given = variable.name.partition(":")[0]
            self._given[given] += 1
            count = self._given[given]
            known = self._names[variable._unique_id] = given if count == 1 else f"{given}#{count}"
        return known


def variables_of(concrete: Any, names: Names) -> dict[str, str]:
    """Returns the variable that each op reads or writes, by op name; also in the functions it calls."""
    by_handle = {id(variable.handle): names.of(variable) for variable in concrete.graph.variables}
    captures = concrete.graph.captures
    known = {id(inside): by_handle[id(outside)] for outside, inside in captures if id(outside) in by_handle}
    return dict(_touched(concrete.graph, known, ""))


def _touched(graph: Any, known: dict[int, str], prefix: str) -> Iterator[tuple[str, str]]:
    """Yields op names and variables; ``known`` has those of the graph's tensors, by identity."""
    for op in graph.get_operations():
        handles = [each for each in op.inputs if each.dtype == dtypes.resource and id(each) in known]
        if not handles:
            continue
        if op.type in _CALLS:
            called = graph._get_function(op.get_attr("f").name)
            inner = getattr(called, "graph", None)
            if inner is None:
                continue
            pairs = zip(op.inputs, inner.inputs, strict=False)
            passed = {id(inside): known[id(outside)] for outside, inside in pairs if id(outside) in known}
            # A called function's ops become those of its caller.
            yield from _touched(inner, passed, f"{prefix}{op.name}/")
        elif op.type in _PASSES:
            for outside, inside in zip(op.inputs, op.outputs, strict=True):
                if id(outside) in known:
                    known[id(inside)] = known[id(outside)]
        else:
            yield f"{prefix}{op.name}", known[id(handles[0])]
