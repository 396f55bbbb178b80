"""Jaeger's query API over HTTP, version 3: OTLP/JSON, the whole answer at once, no filter by attribute."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

from otel_tf.correlator.sources.jaeger_api import Found, Search, TooDeep, Unanswered
from otel_tf.correlator.sources.otlp_json import Lines, parse_lines
from otel_tf.correlator.sources.skipped import Skipped
from otel_tf.errors import UserError

__all__ = ["HttpApi"]

_CONNECT_S, _READ_S = 5.0, 300.0
_TRACE_ID = re.compile(rb'"traceId":"([0-9a-f]{32})","spanId":"[0-9a-f]{16}"')


class HttpApi:
    """An `Api`.

    Args:
        base: URL of the query service, without a slash at its end.
        skipped: Where unusable spans are counted.
        source: Number of the source, for the order of messages.
    """

    filters = False
    streams = False
    most = 50_000

    def __init__(self, base: str, skipped: Skipped, source: int) -> None:
        import requests

        self.name = base
        self._session = requests.Session()
        self._skipped, self._source = skipped, source

    def services(self) -> list[str]:
        """See `Api.services`."""
        text = self._get("/api/v3/services", {})
        found = json.loads(text or b"{}").get("services") or []
        return sorted(str(name) for name in found)

    def find(self, search: Search) -> Iterator[Found]:
        """See `Api.find`; there is one `Found`, or none."""
        text = self._get(
            "/api/v3/traces",
            {
                "query.service_name": search.service,
                "query.start_time_min": _rfc3339(search.begin_ns),
                "query.start_time_max": _rfc3339(search.end_ns),
                "query.num_traces": str(search.most),
                "query.raw_traces": "true",
            },
        )
        if text is not None:
            yield self._found(text)

    def trace(self, trace_id: int) -> Iterator[Found]:
        """See `Api.trace`."""
        text = self._get(f"/api/v3/traces/{trace_id:032x}", {"raw_traces": "true"})
        if text is not None:
            yield self._found(text)

    def _found(self, text: bytes) -> Found:
        piece = parse_lines(Lines(text, self.name, self._source), self._skipped)
        # Counted in the text: a trace of which no span is usable came back all the same.
        return Found(piece.chunk, len(set(_TRACE_ID.findall(text))))

    def _get(self, path: str, parameters: dict[str, str]) -> bytes | None:
        """Returns the JSON of an answer; None where Jaeger says that there is nothing."""
        import requests

        try:
            answer = self._session.get(self.name + path, params=parameters, timeout=(_CONNECT_S, _READ_S))
        except requests.exceptions.ConnectionError as error:
            raise Unanswered(f"{self.name}: no Jaeger there ({_innermost(error)})") from None
        except requests.exceptions.RequestException as error:
            raise Unanswered(f"{self.name}: {error}") from None
        # Jaeger answers unknown paths with its UI's page, and JSON as text/plain.
        is_json = answer.content.lstrip()[:1] == b"{"
        if answer.status_code == 404 and is_json:
            return None
        if answer.status_code != 200:
            said = answer.text.strip().partition("\n")[0][:200]
            if "search depth" in said:
                raise TooDeep(said)
            raise UserError(f"{self.name}{path}: HTTP {answer.status_code} {said}")
        if not is_json:
            raise Unanswered(
                f"{self.name}{path}: answers, but not with JSON: is this Jaeger's query address?"
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
