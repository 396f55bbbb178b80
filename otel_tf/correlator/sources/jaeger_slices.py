"""All traces of a service: Jaeger has no paging and does not say when it left something out.

Of a storage in memory one answer can hold everything. Elsewhere time is cut into windows, the latest
first, as wide as lately fitted an answer; one that comes back full is asked for again in narrower ones.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator

import numpy as np

from otel_tf.correlator.sources.extract import Chunk
from otel_tf.correlator.sources.jaeger_api import Api, Search, TooDeep
from otel_tf.errors import UserError

__all__ = ["EARLIEST_NS", "LATEST_NS", "Reading"]

_DAY_NS = 86_400 * 10**9
EARLIEST_NS, LATEST_NS = 0, 7_258_118_400 * 10**9
#: Some storages compare whole microseconds: windows begin and end at such, and overlap by one.
_STEP_NS = 1000
_NARROWEST_NS = 2 * _STEP_NS
_SAY_EVERY_S = 2.0
#: Traces to ask for at first, and spans to aim at: unless it streams them, an answer is in Jaeger's memory
#: as a whole, and over HTTP one JSON text.
_FIRST = 500
_SPANS_AN_ANSWER = 100_000
#: Elasticsearch gives no more than 10,000 of anything unless told to.
_MOST_ELSEWHERE = 10_000


@dataclasses.dataclass
class Reading:
    """Reads a Jaeger.

    Attributes:
        api: Who is asked.
        attributes: What a span of each trace, or its resource, must have.
        say: Told what is going on, one line at a time.
    """

    api: Api
    attributes: dict[str, str]
    say: Callable[[str], None]
    _spans: int = 0
    _said: float = dataclasses.field(default_factory=time.monotonic)

    def is_in_memory(self, service: str) -> bool:
        """Returns whether the storage is Jaeger's memory: that refuses to look for no trace at all.

        Others then look for a default number. A large number would tell as well, but badger storage makes
        room for as many traces as it is asked for: two thousand million end the process.
        """
        return self._is_too_deep(service, 0)

    def everything(self, service: str) -> Iterator[list[Chunk]]:
        """Yields all that a storage in memory has of a service; of all of them if it is empty.

        Traces may come more than once, but not in one list.
        """
        # Streamed from memory, an answer may have any size.
        first = self.api.most if self.api.streams else _FIRST
        depth = _Depth(first, self.api.most, in_memory=True, adapts=not self.api.streams)
        yield from self._windows(service, EARLIEST_NS, LATEST_NS, depth)

    def of_service(self, service: str) -> Iterator[list[Chunk]]:
        """Yields the traces of a service from any storage; they may come more than once, as above.

        The near past first: storages with an index per day answer that best, and may not answer at all
        for times long ago or to come, from clocks that are wrong by years.
        """
        now = time.time_ns() // _STEP_NS * _STEP_NS
        edges = [now + _DAY_NS, now - 3 * _DAY_NS, now - 60 * _DAY_NS, now - 800 * _DAY_NS, EARLIEST_NS]
        near, *far = [*itertools.pairwise(edges), (LATEST_NS, edges[0])]
        depth = _Depth(_FIRST, min(self.api.most, _MOST_ELSEWHERE))
        yield from self._windows(service, near[1], near[0], depth)
        for end, begin in far:
            try:
                yield from self._windows(service, begin, end, depth)
            except UserError as error:
                self.say(f"traces of {service} from {_date(begin)} to {_date(end)} are left out: {error}")

    def _windows(self, service: str, begin: int, end: int, depth: _Depth) -> Iterator[list[Chunk]]:
        ranges = [(begin, end, end - begin)]
        while ranges:
            begin, upper, width = ranges.pop()
            lower = max(begin, upper - width)
            try:
                chunks, traces = self._answer(Search(service, lower, upper, depth.most, self.attributes))
            except TooDeep:
                depth.lower()
                ranges.append((begin, upper, width))
                continue
            yield chunks
            asked = depth.most
            full = traces >= asked
            if full and depth.in_memory and self._is_too_deep(service, asked + 1):
                # It cannot hold more, so this was all.
                full = False
            depth.adapt(sum(chunk.spans.num_rows for chunk in chunks), full=full)
            if not full:
                if lower > begin:
                    # Aimed at answers that are not quite full.
                    factor = min(max(0.7 * depth.most / max(traces, 1), 0.5), 4.0)
                    ranges.append((begin, lower + _STEP_NS, max(_whole(width * factor), _NARROWEST_NS)))
            elif width <= _NARROWEST_NS:
                # All in one microsecond or two: time cannot tell them apart.
                depth.raise_above(asked)
                ranges.append((begin, upper, width))
            else:
                last, narrow = _where(chunks, lower, upper)
                ranges.append((begin, last, narrow))
                if last < upper:
                    # Mostly there is nothing: the latest come first.
                    ranges.append((last, upper, upper - last))

    def _answer(self, search: Search) -> tuple[list[Chunk], int]:
        chunks, traces = [], 0
        for found in self.api.find(search):
            chunks.append(found.chunk)
            traces += found.traces
            self._spans += found.chunk.spans.num_rows
            if time.monotonic() - self._said > _SAY_EVERY_S:
                self._said = time.monotonic()
                self.say(f"{self._spans:,} spans read from {self.api.name}")
        return chunks, traces

    def _is_too_deep(self, service: str, most: int) -> bool:
        """Asks for traces where there are none."""
        try:
            self._answer(Search(service, EARLIEST_NS + _STEP_NS, EARLIEST_NS + 2 * _STEP_NS, most))
        except TooDeep:
            return True
        except UserError:
            pass
        return False


@dataclasses.dataclass
class _Depth:
    """How many traces to ask for at once.

    Attributes:
        most: So many now.
        limit: Never more than that.
        in_memory: Whether the storage is Jaeger's memory.
        adapts: Whether it depends on how many spans lately came.
    """

    most: int
    limit: int
    in_memory: bool = False
    adapts: bool = True
    _too_deep: int | None = None

    def lower(self) -> None:
        """Asks for fewer, since the storage does not hold that many."""
        self._too_deep = self.most
        self.most = self.limit = _lower(self.most)

    def raise_above(self, asked: int) -> None:
        """Asks for more than it should: nothing else would find all."""
        more = 2 * asked
        if self._too_deep is not None and more >= self._too_deep:
            more = (asked + self._too_deep) // 2
        self.most = self.limit = more

    def adapt(self, spans: int, *, full: bool) -> None:
        """Adapts to the size of an answer: some traces have two spans, some have thousands."""
        if self.adapts and spans > 2 * _SPANS_AN_ANSWER:
            self.most = max(self.most // 2, 1)
        elif self.adapts and full and spans < _SPANS_AN_ANSWER // 4:
            self.most = min(4 * self.most, self.limit)


def _lower(most: int) -> int:
    """Returns the next lower of 1, 2, 5, 10, 20, …: what a storage may hold at most is mostly such a number.

    Raises:
        UserError: There is none.
    """
    digits = 10 ** (len(str(most - 1)) - 1) if most > 1 else 0
    for digit in (5, 2, 1):
        if 0 < digit * digits < most:
            return digit * digits
    raise UserError("the storage gives no trace at all")


def _where(chunks: list[Chunk], lower: int, upper: int) -> tuple[int, int]:
    """Returns, of a window that was full, after what time it had nothing, and a width for narrower ones."""
    starts = np.concatenate([chunk.spans["start_ns"].to_numpy() for chunk in chunks])
    inside = starts[(starts >= lower) & (starts < upper)]
    width = (upper - lower) // 4
    if not len(inside):
        return upper, max(_whole(width), _NARROWEST_NS)
    low, high = np.quantile(inside, [0.1, 0.9])
    last = min(_whole(int(inside.max())) + _STEP_NS, upper)
    return last, max(_whole(min(width, int(high - low))), _NARROWEST_NS)


def _whole(time_ns: float) -> int:
    return int(time_ns) // _STEP_NS * _STEP_NS


def _date(time_ns: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(time_ns // 10**9))
