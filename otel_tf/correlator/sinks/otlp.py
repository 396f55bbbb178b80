"""``otlp=FILE``: logical traces as OTLP JSON lines, for the upload in Jaeger's UI, or to read again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from otel_tf.correlator.sinks.draft import draft
from otel_tf.correlator.sinks.encode_json import json_lines
from otel_tf.correlator.sinks.logical import logical
from otel_tf.errors import UserError

if TYPE_CHECKING:
    from otel_tf.correlator.result import Result

__all__ = ["write"]


def write(result: Result, target: str, say: Callable[[str], None]) -> None:
    """Writes the file ``target``, one trace a line.

    Raises:
        UserError: It cannot be written.
    """
    path = Path(target)
    traces = logical(result)
    try:
        with draft(path) as part, part.open("wb") as file:
            file.writelines(line + b"\n" for line in json_lines(traces))
    except OSError as error:
        raise UserError(f"otlp={target}: {error.strerror or error}") from None
    say(f"{len(traces.span_id):,} spans in {len(traces.traces):,} traces written to {path}")
