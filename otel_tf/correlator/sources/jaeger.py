"""Spans from a running Jaeger: ``jaeger+http://HOST:16686[?run=ID][&service=NAME][&grpc=HOST:PORT]``.

Jaeger's v3 API is asked for raw traces: otherwise it adjusts clocks itself. Over gRPC (port 16685) it
streams, and gives one run of a Jaeger that many share; over HTTP it has no filter for that. Steps whose
numbers are missing in between are then asked for by their trace ids, which are known.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import parse_qs, urlsplit, urlunsplit

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from otel_tf import semconv
from otel_tf.correlator.sources import ids, select
from otel_tf.correlator.sources.extract import Chunk
from otel_tf.correlator.sources.jaeger_api import Api, Search, Unanswered
from otel_tf.correlator.sources.jaeger_grpc import GrpcApi
from otel_tf.correlator.sources.jaeger_http import HttpApi
from otel_tf.correlator.sources.jaeger_slices import EARLIEST_NS, LATEST_NS, Reading
from otel_tf.correlator.sources.missing import Absent, absent
from otel_tf.correlator.sources.skipped import Skipped
from otel_tf.errors import UserError

__all__ = ["keys_of_run", "read_jaeger"]

_OPTIONS = ("run", "service", "grpc")
_UI_PORT, _GRPC_PORT = 16686, 16685
#: Services of traces that were written back by ``--to jaeger=``.
_LOGICAL = re.compile(re.escape(semconv.LOGICAL_SERVICE_SUFFIX) + r"( |$)")
#: That many of the absent traces are asked for first: where none is there, nor are the others.
_SAMPLE = 64
#: One question a trace takes about a millisecond.
_MOST_ASKED = 20_000

Say = Callable[[str], None]
Mask = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class _Address:
    base: str
    run: str | None
    services: list[str]
    grpc: str | None
    secure: bool
    #: Whether the gRPC address is a guess from the other.
    guessed: bool


def read_jaeger(
    spec: str, skipped: Skipped, source: int, *, run: str | None, say: Say
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
    address = _address(spec, run)
    http, services = _http(address, skipped, source)
    grpc = _grpc(address, services, skipped, source, say)
    try:
        api: Api = http if grpc is None else grpc
        wanted = address.services or _recorded(services)
        chunks = list(_chunks(api, address, wanted, say))
        if not chunks:
            raise UserError(f"{spec}: no traces of {_whose(api, address, wanted)}")
        chunks += _by_id(api, chunks, address.run, say)
    finally:
        if grpc is not None:
            grpc.close()
    return chunks, address.run


def keys_of_run(spec: str, run: str, say: Say) -> set[str] | None:
    """Returns trace id and span id, 48 hex digits, of every span that a Jaeger has of a run.

    Args:
        spec: The address, as for `read_jaeger`; ``jaeger+`` may be left out.
        run: The run.
        say: Told how far it is, and why not, where the answer is None.

    Returns:
        None where that Jaeger cannot be asked for one run alone.

    Raises:
        UserError: There is no Jaeger at that address, or it answers with an error.
    """
    address = _address(spec, run)
    _, services = _http(address, Skipped(), 0)
    grpc = _grpc(address, services, Skipped(), 0, say)
    if grpc is None:
        return None
    keys: set[str] = set()
    try:
        for chunk in _chunks(grpc, address, _recorded(services), say):
            words = [chunk.spans[name].to_numpy() for name in ("trace_hi", "trace_lo", "span_id")]
            keys.update(ids.to_hex(*words).to_pylist())
    finally:
        grpc.close()
    return keys


def _recorded(services: list[str]) -> list[str]:
    return [name for name in services if not _LOGICAL.search(name)]


def _http(address: _Address, skipped: Skipped, source: int) -> tuple[HttpApi, list[str]]:
    api = HttpApi(address.base, skipped, source)
    try:
        return api, api.services()
    except Unanswered as error:
        raise UserError(str(error)) from None


def _address(spec: str, run: str | None) -> _Address:
    url = urlsplit(spec.removeprefix("jaeger+"))
    options = parse_qs(url.query)
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise UserError(f"{spec}: unknown {unknown[0]!r} after the ?; known are {', '.join(_OPTIONS)}")
    try:
        port = url.port
    except ValueError:
        raise UserError(f"{spec}: the port is not a number") from None
    given = options.get("grpc", [""])[-1]
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    grpc: str | None = None
    if given.isdigit():
        grpc = f"{host}:{given}"
    elif given and given != "none":
        grpc = given.partition("://")[2] or given
    elif not given and port in (_UI_PORT, None):
        grpc = f"{host}:{_GRPC_PORT}"
    base = urlunsplit((url.scheme, url.netloc, url.path.rstrip("/"), "", ""))
    wanted = options.get("run", [run])[-1]
    return _Address(base, wanted, options.get("service") or [], grpc, url.scheme == "https", not given)


def _grpc(address: _Address, services: list[str], skipped: Skipped, source: int, say: Say) -> GrpcApi | None:
    """Returns the same Jaeger over gRPC, or None; then it is said what that means."""
    why = "its gRPC address is not known"
    if address.grpc is not None:
        api = GrpcApi(address.grpc, secure=address.secure, skipped=skipped, source=source)
        try:
            there = api.services()
            if not address.guessed or there == services or set(there) & set(services):
                return api
            why = f"{address.grpc} is another Jaeger"
        except Unanswered as error:
            why = str(error)
        api.close()
    if address.grpc is None and not address.guessed:
        return None  # asked for
    cost = "which cannot look for one run" if address.run else "which is slower"
    say(f"{address.base} is asked over HTTP, {cost} ({why}; ?grpc=HOST:PORT after the address names it)")
    return None


def _chunks(api: Api, address: _Address, services: list[str], say: Say) -> Iterator[Chunk]:
    """Yields the spans of all services, each trace once."""
    if not services:
        return
    attributes = {semconv.RUN_ID: address.run} if address.run and api.filters else {}
    reading = Reading(api, attributes, say)
    if not reading.is_in_memory(services[0]):
        answers = [reading.of_service(service) for service in services]
    elif address.services:
        answers = [reading.everything(service) for service in services]
    else:
        answers = [reading.everything("")]
    seen = _Seen()
    for chunk in itertools.chain.from_iterable(map(seen.new, itertools.chain.from_iterable(answers))):
        kept = chunk if address.services else select.keep(chunk, ~_is_logical(chunk))
        if kept.spans.num_rows:
            yield kept


class _Seen:
    """Which traces there were: each comes whole, once for every search that it fits."""

    def __init__(self) -> None:
        self._traces: set[tuple[int, int]] = set()
        self._first: list[Chunk] | None = None

    def new(self, chunks: list[Chunk]) -> list[Chunk]:
        """Returns what is in none of the lists before."""
        if self._first is None:
            # Mostly one list is all there is.
            self._first = chunks
            return chunks
        for chunk in self._first:
            self._traces.update(_traces(chunk))
        self._first = []
        traces = [list(_traces(chunk)) for chunk in chunks]
        masks = [np.array([trace not in self._traces for trace in some], np.bool_) for some in traces]
        self._traces.update(itertools.chain.from_iterable(traces))
        return [select.keep(chunk, mask) for chunk, mask in zip(chunks, masks, strict=True)]


def _traces(chunk: Chunk) -> Iterable[tuple[int, int]]:
    return zip(chunk.spans["trace_hi"].to_pylist(), chunk.spans["trace_lo"].to_pylist(), strict=True)


def _is_logical(chunk: Chunk) -> Mask:
    service = chunk.spans["service"].combine_chunks()
    logical = [bool(_LOGICAL.search(name)) for name in service.dictionary.to_pylist()]
    mask: Mask = np.array([*logical, False], np.bool_)[service.indices.to_numpy(zero_copy_only=False)]
    return mask


def _by_id(api: Api, chunks: list[Chunk], run: str | None, say: Say) -> list[Chunk]:
    """Returns traces that no search found though their number lies between those of others."""
    columns = [chunk.spans.select(["run", "name", "global_step", "attributes"]) for chunk in chunks]
    spans = pa.concat_tables(columns).unify_dictionaries().combine_chunks()
    lacking = absent(spans if run is None else spans.filter(pc.equal(spans["run"], run)))
    if lacking is None or not len(lacking.numbers):
        return []
    sample = lacking.numbers[:: max(len(lacking.numbers) // _SAMPLE, 1)]
    found = _traces_by_id(api, lacking, sample)
    rest = np.setdiff1d(lacking.numbers, sample)[:_MOST_ASKED]
    if found and len(rest):
        say(f"{len(rest):,} more traces are asked for one by one")
        found += _traces_by_id(api, lacking, rest)
    return found


def _traces_by_id(api: Api, lacking: Absent, numbers: npt.NDArray[np.int64]) -> list[Chunk]:
    answers = itertools.chain.from_iterable(map(api.trace, lacking.trace_ids(numbers)))
    return [answer.chunk for answer in answers if answer.chunk.spans.num_rows]


def _whose(api: Api, address: _Address, services: list[str]) -> str:
    """Returns whose traces were not there, for an error; names the runs that are."""
    whose = ", ".join(services) or "any service"
    if not address.run:
        return whose
    newest = [
        found.chunk.spans["run"].unique().to_pylist()
        for service in services
        for found in api.find(Search(service, EARLIEST_NS, LATEST_NS, _SAMPLE))
    ]
    runs = sorted({run for some in newest for run in some if run})
    return f"run {address.run!r}; runs here: {', '.join(runs) or 'none'}"
