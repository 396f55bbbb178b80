"""What Jaeger's user interface makes of the answers of its API: rows, their order, the critical path."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

from otel_tf import semconv
from otel_tf.jaeger import Jaeger

#: All times, in µs.
EVER = {"start": 0, "end": 4 * 10**15}


def ask(jaeger: Jaeger, path: str, **query: Any) -> Any:
    """Returns the data of an answer to one of the interface's own requests."""
    url = f"{jaeger.ui}{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)["data"]


def traces_of(jaeger: Jaeger, service: str, count: int) -> list[dict[str, Any]]:
    """Returns the traces of a service, when there are ``count``: what was sent shows a moment later."""
    deadline = time.monotonic() + 20
    while True:
        found: list[dict[str, Any]] = ask(jaeger, "/api/traces", service=service, limit=10_000, **EVER)
        if len(found) >= count or time.monotonic() > deadline:
            assert len(found) == count
            return found
        time.sleep(0.05)


def tags_of(span: dict[str, Any]) -> dict[str, Any]:
    return {tag["key"]: tag["value"] for tag in span["tags"]}


def process_of(trace: dict[str, Any], span: dict[str, Any]) -> dict[str, Any]:
    """Returns the process of a span: its tags, and ``service``."""
    process = trace["processes"][span["processID"]]
    return {tag["key"]: tag["value"] for tag in process["tags"]} | {"service": process["serviceName"]}


def parent_of(span: dict[str, Any]) -> str | None:
    """Returns the id of the span below which it is drawn: its first reference's."""
    return span["references"][0]["spanID"] if span["references"] else None


def rows_of(trace: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Returns (depth, span) in the order in which the rows are drawn: siblings by their start in whole µs."""
    children: dict[str | None, list[dict[str, Any]]] = {}
    for span in trace["spans"]:
        children.setdefault(parent_of(span), []).append(span)

    def below(parent: str | None, depth: int) -> Iterator[tuple[int, dict[str, Any]]]:
        for span in sorted(children.get(parent, []), key=lambda span: span["startTime"]):
            yield depth, span
            yield from below(span["spanID"], depth + 1)

    return list(below(None, 0))


def originals_in_order(trace: dict[str, Any]) -> list[str]:
    """Returns the ids of the recorded spans that a logical trace shows, row by row.

    Every span hangs in the tree, siblings start in logical order, and no two in the same microsecond: rows
    are drawn by start, so nothing is left to chance.
    """
    rows = rows_of(trace)
    assert len(rows) == len(trace["spans"]), "every span hangs in the tree"
    by_parent: dict[str | None, list[tuple[int, int]]] = {}
    originals = []
    for depth, span in rows:
        tags = tags_of(span)
        assert span["warnings"] is None
        if depth == 0 and span["operationName"] == semconv.SPAN_STEPS:
            continue
        assert isinstance(tags[semconv.LOGICAL_SHIFT_NS], int)
        assert 0 <= tags[semconv.LOGICAL_ERROR_NS] < 60e9
        pair = (span["startTime"], tags[semconv.LOGICAL_ORDER])
        by_parent.setdefault(parent_of(span), []).append(pair)
        originals.append(tags[semconv.LOGICAL_ORIGINAL_SPAN])
    for pairs in by_parent.values():
        starts, orders = zip(*pairs, strict=True)
        assert list(starts) == sorted(set(starts))
        assert list(orders) == sorted(set(orders))
    return originals


def critical_path(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the spans on the black line.

    Its rule: children are cut to their parent's time, or left out where they lie outside; from the end of
    the root, the line goes to the child that finishes last, and before its start to the one that finished
    last until then.
    """
    begin = {span["spanID"]: span["startTime"] for span in trace["spans"]}
    end = {span["spanID"]: span["startTime"] + span["duration"] for span in trace["spans"]}
    children: dict[str, list[dict[str, Any]]] = {}
    (root,) = (span for span in trace["spans"] if not span["references"])
    for _, span in rows_of(trace):
        if not span["references"]:
            continue
        own, parent = span["spanID"], span["references"][0]["spanID"]
        if begin[own] < end[parent] and end[own] > begin[parent]:
            begin[own], end[own] = max(begin[own], begin[parent]), min(end[own], end[parent])
            children.setdefault(parent, []).append(span)
    path: list[dict[str, Any]] = []

    def walk(span: dict[str, Any]) -> None:
        path.append(span)
        done = children.get(span["spanID"], [])
        while done:
            last = max(done, key=lambda child: end[child["spanID"]])
            walk(last)
            done = [child for child in done if end[child["spanID"]] < begin[last["spanID"]]]

    walk(root)
    return path
