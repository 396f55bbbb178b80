"""A failure as attributes and events of the span it happened in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from otel_tf import semconv
from otel_tf.diagnostics.explanations import explain
from otel_tf.diagnostics.messages import ParsedError, RootError

__all__ = ["Attributes", "of_enclosing", "of_error", "of_payloads", "of_roots"]

Attributes = dict[str, "str | bool | int | list[str]"]

_MOST_PAYLOADS = 8
_LONGEST_PAYLOAD = 512
#: What a span that only encloses the failure repeats of it.
_ENCLOSING = (semconv.ERROR_ORIGIN_WORKER, semconv.ERROR_NODE, semconv.ERROR_DERIVED)


def of_error(error: ParsedError) -> Attributes:
    """Returns the span's attributes: those of the first root error, and how many there were."""
    attributes = _of_root(error.first)
    if len(error.roots) > 1:
        attributes[semconv.ERROR_ROOTS] = len(error.roots)
    return attributes


def of_roots(error: ParsedError) -> list[Attributes]:
    """Returns the attributes of an event for each root error; none where there is but one."""
    if len(error.roots) == 1:
        return []
    found = []
    for root in error.roots:
        attributes = _of_root(root)
        if root.code is not None:
            attributes[semconv.ERROR_TYPE] = root.code
        found.append(attributes)
    return found


def of_payloads(payloads: Mapping[str, object]) -> Attributes:
    """Returns the payloads of a status, as a custom op may attach them: a JSON object of texts."""
    if not payloads:
        return {}
    texts = {
        str(name): (content.decode(errors="replace") if isinstance(content, bytes) else str(content))[
            :_LONGEST_PAYLOAD
        ]
        for name, content in list(payloads.items())[:_MOST_PAYLOADS]
    }
    return {semconv.ERROR_PAYLOADS: json.dumps(texts, ensure_ascii=False)}


def of_enclosing(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what of a failure's attributes belongs on the spans around it, too."""
    return {key: attributes[key] for key in _ENCLOSING if key in attributes}


def _of_root(root: RootError) -> Attributes:
    given: dict[str, str | bool | int | list[str] | None] = {
        semconv.ERROR_KIND: root.kind,
        semconv.ERROR_TEXT: root.text or None,
        semconv.ERROR_LABEL: root.label or None,
        semconv.ERROR_VALUES: list(root.values) or None,
        semconv.ERROR_OP: root.op,
        semconv.ERROR_NODE: root.node,
        semconv.ERROR_DEVICE: root.device,
        semconv.ERROR_REPLICA: root.replica,
        semconv.ERROR_ORIGIN_WORKER: root.worker,
        semconv.ERROR_DERIVED: root.derived or None,
        semconv.ERROR_STACK: "\n".join(map(str, root.stack)) or None,
        semconv.ERROR_EXPLANATION: explain(root),
    }
    return {key: value for key, value in given.items() if value is not None}
