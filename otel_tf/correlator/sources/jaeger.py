"""Spans from a running Jaeger: ``jaeger+http://HOST:16686[?run=ID][&service=NAME]``.

Jaeger's v3 API is asked for raw traces: otherwise it adjusts clocks itself. It has no paging and does not
say when it left something out, so time is sliced, and a slice that comes back full is halved.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

import numpy as np
import pyarrow as pa

from otel_tf import semconv
from otel_tf.correlator.sources import select
from otel_tf.correlator.sources.extract import Chunk
from otel_tf.correlator.sources.otlp_json import Lines, parse_lines
from otel_tf.correlator.sources.skipped import Skipped
from otel_tf.errors import UserError

__all__ = ["read_jaeger"]

#: How many traces a query may return. The whole answer is one JSON text in Jaeger's memory and in ours.
_TRACES_A_QUERY = 500
_CONNECT_S, _READ_S = 5.0, 300.0
_SAY_EVERY_S = 2.0
_DAY_NS = 86_400 * 10**9
_EARLIEST_NS, _LATEST_NS = 0, 7_258_118_400 * 10**9
#: Slices no longer than this are not halved again: more traces are asked for instead.
_SHORTEST_NS = 1000
#: Services of traces that were written back by ``--to jaeger=``.
_LOGICAL = re.compile(re.escape(semconv.LOGICAL_SERVICE_SUFFIX) + r"( |$)")


def read_jaeger(
    spec: str, skipped: Skipped, source: int, *, run: str | None, say: Callable[[str], None]
) -> tuple[list[Chunk], str | None]:
    """Returns the spans of a Jaeger, and the run that its address names.

    Services that this program wrote (``….logical``) are left out unless ``service=`` names them.

    Args:
        spec: The address, with ``jaeger+`` before it.
        skipped: Where unusable spans are counted.
        source: Number of the source, for the order of messages.
        run: The run that is wanted; the address may name it too.
        say: Told how far it is.

    Raises:
        UserError: There is no Jaeger at that address, it answers with an error, or it has no traces.
    """
    url = urlsplit(spec.removeprefix("jaeger+"))
    options = parse_qs(url.query)
    unknown = sorted(set(options) - {"run", "service"})
    if unknown:
        raise UserError(f"{spec}: unknown {unknown[0]!r} after the ?; known are run and service")
    base = urlunsplit((url.scheme, url.netloc, url.path.rstrip("/"), "", ""))
    wanted = options.get("run", [run])[-1]
    api = _Api(base)
    services = options.get("service") or [name for name in api.services() if not _LOGICAL.search(name)]
    chunks: list[Chunk] = []
    seen = np.empty(0, _TRACE)
    count, said = 0, time.monotonic()
    for service in services:
        for text in _texts(api, service):
            piece = parse_lines(Lines(text, base, source), skipped)
            chunk, seen = _new_traces(piece.chunk, seen)
            if not chunk.spans.num_rows:
                continue
            chunks.append(chunk)
            count += chunk.spans.num_rows
            if time.monotonic() - said > _SAY_EVERY_S:
                said = time.monotonic()
                say(f"{count:,} spans read from {base}")
    if not chunks:
        raise UserError(f"{spec}: no traces of {', '.join(services) or 'any service'}")
    return chunks, wanted


_TRACE = np.dtype([("hi", np.int64), ("lo", np.int64)])


def _trace_ids(spans: pa.Table) -> Any:
    ids = np.empty(spans.num_rows, _TRACE)
    ids["hi"], ids["lo"] = spans["trace_hi"].to_numpy(), spans["trace_lo"].to_numpy()
    return ids


def _new_traces(chunk: Chunk, seen: Any) -> tuple[Chunk, Any]:
    """Returns the spans of traces not seen yet: each trace comes whole, once for every slice it touches."""
    traces = _trace_ids(chunk.spans)
    new = ~np.isin(traces, seen)
    return select.keep(chunk, new), np.union1d(seen, traces)


def _texts(api: _Api, service: str) -> Iterator[bytes]:
    """Yields Jaeger's answers for all traces of a service.

    The near past first, in slices that grow: storages with an index per day answer those best. Traces
    from clocks that are wrong by years are found too.
    """
    now = time.time_ns()
    edges = [now + _DAY_NS, now - 3 * _DAY_NS, now - 60 * _DAY_NS, now - 800 * _DAY_NS, _EARLIEST_NS]
    slices = [(_LATEST_NS, edges[0]), *itertools.pairwise(edges)]
    for end, begin in slices:
        yield from _slice(api, service, begin, end, _TRACES_A_QUERY)


def _slice(api: _Api, service: str, begin: int, end: int, most: int) -> Iterator[bytes]:
    text = api.traces(service, begin, end, most)
    if text is None:
        return
    starts = _starts(text)
    if len(starts) < most:
        yield text
        return
    # Where the traces are that came back, there are more; both halves get fewer than all.
    inside = [start for start in starts.values() if begin < start < end]
    middle = int(np.median(inside)) if inside else (begin + end) // 2
    if end - begin <= _SHORTEST_NS or not begin < middle < end:
        yield from _slice(api, service, begin, end, most * 2)
        return
    yield from _slice(api, service, middle, end, most)
    yield from _slice(api, service, begin, middle, most)


def _starts(text: bytes) -> dict[bytes, int]:
    """Returns the earliest start of each trace in an answer, ns, without parsing it.

    Jaeger writes a span's fields in the order of OTLP, so the ids and times of spans pair up.
    """
    found: dict[bytes, int] = {}
    pairs = re.findall(rb'"traceId":"([0-9a-f]{32})"[^{}\[\]]*?"startTimeUnixNano":"(\d+)"', text)
    for trace, start in pairs:
        found[trace] = min(found.get(trace, _LATEST_NS), int(start))
    return found


class _Api:
    """Jaeger's query API over HTTP, version 3."""

    def __init__(self, base: str) -> None:
        import requests

        self._base = base
        self._session = requests.Session()

    def services(self) -> list[str]:
        """Returns the names of all services, sorted."""
        text = self._get("/api/v3/services", {})
        found = json.loads(text or b"{}").get("services") or []
        return sorted(str(name) for name in found)

    def traces(self, service: str, begin: int, end: int, most: int) -> bytes | None:
        """Returns the answer with the traces of a service from ``begin`` to ``end``, ns; None if none."""
        return self._get(
            "/api/v3/traces",
            {
                "query.service_name": service,
                "query.start_time_min": _rfc3339(begin),
                "query.start_time_max": _rfc3339(end),
                "query.num_traces": str(most),
                "query.raw_traces": "true",
            },
        )

    def _get(self, path: str, parameters: dict[str, str]) -> bytes | None:
        import requests

        try:
            answer = self._session.get(self._base + path, params=parameters, timeout=(_CONNECT_S, _READ_S))
        except requests.exceptions.ConnectionError as error:
            raise UserError(f"{self._base}: no Jaeger there ({_innermost(error)})") from None
        except requests.exceptions.RequestException as error:
            raise UserError(f"{self._base}: {error}") from None
        if answer.status_code == 404 and answer.content.lstrip()[:1] == b"{":
            return None
        if answer.status_code != 200:
            said = answer.text.strip().partition("\n")[0][:200]
            raise UserError(f"{self._base}{path}: HTTP {answer.status_code} {said}")
        # Jaeger answers unknown paths with its UI's page, and JSON as text/plain.
        if answer.content.lstrip()[:1] != b"{":
            raise UserError(
                f"{self._base}{path}: answers, but not with JSON: is this Jaeger's query address?"
            )
        return answer.content


def _innermost(error: BaseException | None) -> str:
    """Returns what the operating system said: 'Connection refused' tells more than the layers around it."""
    seen, text = error, str(error)
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            text = seen.strerror
        seen = seen.__cause__ or seen.__context__
    return text


def _rfc3339(time_ns: int) -> str:
    moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=time_ns // 10**9)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ns % 10**9:09d}Z"
