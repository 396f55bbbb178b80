"""Where profiles go: ``otlp=FILE``, ``jaeger=URL``, ``parquet=DIR``, and the run directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from otel_tf.correlator.sinks import check
from otel_tf.errors import UserError
from otel_tf.profiler.encode import Format, requests
from otel_tf.profiler.limit import MOST_OPS, longest, summaries
from otel_tf.profiler.otlp import Json, Proto
from otel_tf.profiler.spans import batches, op_spans, resource_of

if TYPE_CHECKING:
    from otel_tf.profiler.pipeline import Profile

__all__ = ["KINDS", "OPS_SUFFIX", "encoded", "write", "write_run"]

Say = Callable[[str], None]

KINDS = {"otlp": "FILE", "jaeger": "URL", "parquet": "DIR"}
#: Not of the spool, which `otel-tf replay` sends on: these are more spans than Jaeger shows.
OPS_SUFFIX = ".ops.jsonl"


def encoded(
    profile: Profile, format_: Format, *, limited: bool = False, session: str | None = None
) -> Iterator[tuple[bytes, int]]:
    """Yields serialized requests, and how many spans are in each.

    Args:
        profile: The profiles.
        format_: `otlp.Proto` or `otlp.Json`.
        limited: Whether to give of each step only the longest ops, and sums of the others.
        session: Only what is of one session.
    """
    spans = op_spans(profile)
    rows = np.arange(len(profile.whole.ops))
    if limited:
        rows, spans = longest(profile, spans)
    for host, batch in batches(profile, spans, rows, session):
        yield from requests(format_, batch, resource_of(profile, host))
    for number, host in enumerate(profile.whole.hosts if limited else ()):
        yield from requests(format_, summaries(profile, spans, rows, number), resource_of(profile, host))


def write(profile: Profile, spec: str, say: Say) -> None:
    """Writes to one sink.

    Raises:
        UserError: The sink is unknown, cannot be reached or written.
    """
    check(spec, KINDS)
    kind, _, target = spec.partition("=")
    {"otlp": _write_otlp, "jaeger": _write_jaeger, "parquet": _write_parquet}[kind](profile, target, say)


def write_run(profile: Profile, folder: Path, say: Say) -> None:
    """Writes all ops into a run directory, a file a session: `otel-tf correlate` reads them with the rest.

    Raises:
        UserError: It cannot be written.
    """
    for session in sorted({host.session for host in profile.whole.hosts}):
        _write_otlp(profile, str(folder / f"{session}{OPS_SUFFIX}"), say, session)


def _write_otlp(profile: Profile, target: str, say: Say, session: str | None = None) -> None:
    from otel_tf.correlator.sinks.draft import draft

    path = Path(target)
    proto = path.suffix in (".pb", ".binpb")
    count = 0
    try:
        with draft(path) as part, part.open("wb") as file:
            for payload, spans in encoded(profile, Proto() if proto else Json(), session=session):
                file.write(payload if proto else payload + b"\n")
                count += spans
    except OSError as error:
        raise UserError(f"otlp={target}: {error.strerror or error}") from None
    say(f"{count:,} spans written to {path}")


def _write_jaeger(profile: Profile, target: str, say: Say) -> None:
    from otel_tf.correlator.sinks.encode_proto import Request
    from otel_tf.correlator.sinks.jaeger import send_all

    shown = (Request(*each) for each in encoded(profile, Proto(), limited=True))
    total = len(profile.whole.ops)
    endpoint = send_all(target, shown, total, say)
    say(f"{total:,} ops sent to {endpoint}: of a step the longest {MOST_OPS:,}, sums of the others")


def _write_parquet(profile: Profile, target: str, say: Say) -> None:
    import pyarrow.parquet as pq

    from otel_tf.correlator.sinks.draft import draft

    folder = Path(target)
    tables: dict[str, Any] = {
        "hosts": profile.hosts,
        "steps": profile.steps,
        "ops": profile.ops,
        "regions": profile.region_spans,
        "edges": profile.edges,
        "staleness": profile.staleness,
    }
    try:
        for name, table in tables.items():
            with draft(folder / f"{name}.parquet") as part:
                pq.write_table(table, part, compression="zstd")
    except OSError as error:
        raise UserError(f"parquet={target}: {error.strerror or error}") from None
    say(f"{profile.ops.num_rows:,} ops and {profile.edges.num_rows:,} edges written to {folder}")
