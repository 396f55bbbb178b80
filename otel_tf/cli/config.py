"""`otel-tf config`: every setting, its value in force and where that came from."""

from __future__ import annotations

import argparse
import json
import os
import textwrap
from collections.abc import Mapping
from typing import Any

from otel_tf.config import Settings, resolve, rows

__all__ = ["add_parser", "run"]

#: OpenTelemetry's own variables that we keep to: name, default here, what it does.
_OTEL: tuple[tuple[str, str | None, str], ...] = (
    ("OTEL_SDK_DISABLED", "false", "With true, nothing is recorded at all."),
    ("OTEL_SERVICE_NAME", None, "service.name of the spans; default: the script's name."),
    ("OTEL_RESOURCE_ATTRIBUTES", None, "Further attributes of the resource, key=value,key=value."),
    ("OTEL_EXPERIMENTAL_RESOURCE_DETECTORS", "otel", "Detectors of further resource attributes."),
    ("OTEL_TRACES_EXPORTER", "otlp", "otlp, console, none, or another installed exporter; a comma list."),
    ("OTEL_LOGS_EXPORTER", "none", "The same for log records, which a Jaeger does not take."),
    ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", "http/protobuf or grpc."),
    ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", None, "The same, for traces alone."),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318", "Where spans go (4317 with grpc)."),
    ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", None, "The same, for traces alone; the whole address."),
    ("OTEL_EXPORTER_OTLP_HEADERS", None, "Headers of each request; values are not shown here."),
    ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", None, "The same, for traces alone."),
    ("OTEL_EXPORTER_OTLP_TIMEOUT", "10", "Longest time of one request, in s."),
    ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", None, "The same, for traces alone."),
    ("OTEL_EXPORTER_OTLP_COMPRESSION", "none", "none or gzip."),
    ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", None, "The same, for traces alone."),
    ("OTEL_EXPORTER_OTLP_INSECURE", None, "With true, grpc without TLS."),
    ("OTEL_EXPORTER_OTLP_CERTIFICATE", None, "File of the certificates that the endpoint is checked by."),
    ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", None, "File of our own certificate."),
    ("OTEL_EXPORTER_OTLP_CLIENT_KEY", None, "File of our own certificate's key."),
    ("OTEL_TRACES_SAMPLER", "parentbased_always_on", "Which traces are kept; the same on all workers."),
    ("OTEL_TRACES_SAMPLER_ARG", None, "The sampler's argument, such as a ratio."),
    ("OTEL_BSP_SCHEDULE_DELAY", "2000", "How long spans gather before they are sent, in ms."),
    ("OTEL_BSP_MAX_QUEUE_SIZE", "100000", "Spans that may wait for a slow endpoint."),
    ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2000", "Spans of one request and of one line of the spool."),
    ("OTEL_ATTRIBUTE_COUNT_LIMIT", "128", "Attributes of a span, an event or a link."),
    ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", None, "Longest text of an attribute."),
    ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "128", "Attributes of a span."),
    ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", None, "Longest text of a span's attribute."),
    ("OTEL_SPAN_EVENT_COUNT_LIMIT", "128", "Events of a span."),
    ("OTEL_SPAN_LINK_COUNT_LIMIT", "128", "Links of a span."),
    ("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", "128", "Attributes of an event."),
    ("OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", "128", "Attributes of a link."),
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "config",
        help="show every setting",
        description="Show every setting: its value in force in this environment, where that comes from, "
        "its default and what it does; then OpenTelemetry's own variables. An argument in code wins over "
        "a variable, and that over the default.",
    )
    parser.add_argument(
        "--format",
        choices=("table", "json", "markdown"),
        default="table",
        help="markdown: the documentation's table of settings and their defaults",
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Prints the settings."""
    if args.format == "markdown":
        print(_markdown())
        return 0
    settings = _settings(resolve())
    opentelemetry = _opentelemetry(os.environ)
    if args.format == "json":
        print(json.dumps({"settings": settings, "opentelemetry": opentelemetry}, ensure_ascii=False))
        return 0
    for title, entries in (("otel-tf", settings), ("OpenTelemetry", opentelemetry)):
        print(f"{title}\n")
        for entry in entries:
            shown = "(not set)" if entry["value"] is None else entry["value"]
            print(f"  {entry['env']} = {str(shown).lower() if isinstance(shown, bool) else shown}")
            origin = "" if entry["source"] == "default" else f" [from the {entry['source']}]"
            print(textwrap.indent(textwrap.fill(entry["doc"] + origin, 100), "      "))
        print()
    return 0


def _markdown() -> str:
    lines = [
        "# Configuration",
        "",
        "Every setting is an environment variable and an argument of `otel_tf.instrument`; an argument wins",
        "over a variable, a variable over the default. An empty variable counts as unset, only `true` is",
        "true, durations are integer milliseconds. `otel-tf config` shows the values in force; this page is",
        "what `otel-tf config --format markdown` prints.",
        "",
        "| variable | argument | default | what it does |",
        "|---|---|---|---|",
    ]
    for row in rows():
        default = "" if row.default is None else f"`{str(row.default).lower()}`"
        lines.append(f"| `{row.metadata['env']}` | `{row.name}` | {default} | {row.metadata['doc']} |")
    lines += [
        "",
        "## OpenTelemetry's own",
        "",
        "Read by its SDK and exporters, and kept to by ours.",
        "",
        "| variable | default | what it does |",
        "|---|---|---|",
    ]
    for name, standard, doc in _OTEL:
        lines.append(f"| `{name}` | {'' if standard is None else f'`{standard}`'} | {doc} |")
    return "\n".join(lines)


def _settings(settings: Settings) -> list[dict[str, Any]]:
    return [
        {
            "env": row.metadata["env"],
            "value": _plain(getattr(settings, row.name)),
            "source": settings.origins[row.name],
            "default": _plain(row.default),
            "doc": row.metadata["doc"],
        }
        for row in rows()
    ]


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def _opentelemetry(environ: Mapping[str, str]) -> list[dict[str, Any]]:
    entries = []
    for env, default, doc in _OTEL:
        text = environ.get(env, "").strip()
        value = _without_secrets(text) if text and "HEADERS" in env else text
        entries.append(
            {
                "env": env,
                "value": value or default,
                "source": "environment" if text else "default",
                "default": default,
                "doc": doc,
            }
        )
    return entries


def _without_secrets(headers: str) -> str:
    """Returns headers with their names only: their values are keys to somebody's backend."""
    return ",".join(f"{pair.partition('=')[0].strip()}=***" for pair in headers.split(","))
