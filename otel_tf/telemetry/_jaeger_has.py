"""Asks a Jaeger which spans it has: for a whole run over gRPC, else by GET /api/v3/traces/{id}."""

from __future__ import annotations

import json
from collections.abc import Callable

from otel_tf import semconv
from otel_tf.errors import UserError

__all__ = ["JaegerHas"]

_TIMEOUT_S = 30.0
#: Traces whose spans are remembered: the processes of a run share traces, and their files come in turn.
_MAX_TRACES = 100_000


class JaegerHas:
    """What the Jaeger at a query address has. Its answers are remembered: spans sent later are not in.

    Args:
        url: Address of the query API, such as ``http://localhost:16686``; ``?grpc=HOST:PORT`` after it
            where its gRPC port is not the usual one.
        run: The run that will be asked about; None if it is not known, or several.
        say: Told how far it is, one line at a time.

    Raises:
        UserError: There is no Jaeger at the address.
    """

    def __init__(self, url: str, run: str | None, say: Callable[[str], None]) -> None:
        import requests

        from otel_tf.correlator.sources.jaeger import keys_of_run

        self._base = url.partition("?")[0].rstrip("/")
        self._session = requests.Session()
        self._spans: dict[str, frozenset[str]] = {}
        mark = f'"{semconv.RUN_ID}","value":{{"stringValue":{json.dumps(run, ensure_ascii=False)}}}'
        self._mark = mark.encode()
        try:
            self._all = None if run is None else keys_of_run(url, run, say)
        except UserError as error:
            raise UserError(f"--query {error}") from None

    def have(self, keys: list[tuple[str, str]], line: bytes) -> set[tuple[str, str]]:
        """Returns those of the (trace id, span id), in hex and all of a line, that it has.

        Raises:
            UserError: There is no Jaeger at the address.
        """
        everything = self._all
        if everything is not None and self._mark in line:
            return {key for key in keys if key[0] + key[1] in everything}
        return {(trace_id, span_id) for trace_id, span_id in keys if span_id in self._of(trace_id)}

    def _of(self, trace_id: str) -> frozenset[str]:
        found = self._spans.get(trace_id)
        if found is None:
            if len(self._spans) >= _MAX_TRACES:
                self._spans.clear()
            found = self._spans[trace_id] = self._ask(trace_id)
        return found

    def _ask(self, trace_id: str) -> frozenset[str]:
        import requests

        url = f"{self._base}/api/v3/traces/{trace_id}"
        try:
            # Raw: the adjusters of Jaeger's memory storage would work on what it has stored.
            answer = self._session.get(url, params={"raw_traces": "true"}, timeout=_TIMEOUT_S)
        except requests.exceptions.RequestException as error:
            from otel_tf.telemetry._otlp import why

            raise UserError(f"--query {self._base}: no Jaeger there ({why(error)})") from None
        try:
            document = json.loads(answer.content)
            if answer.status_code == 404:
                return frozenset()
            return frozenset(
                span["spanId"]
                for resource_spans in document["result"]["resourceSpans"]
                for scope_spans in resource_spans["scopeSpans"]
                for span in scope_spans["spans"]
            )
        except (ValueError, KeyError, TypeError):
            # Jaeger answers unknown paths with its page, and status 200.
            raise UserError(
                f"--query {self._base}: answers (HTTP {answer.status_code}), but is no Jaeger's query address"
            ) from None
