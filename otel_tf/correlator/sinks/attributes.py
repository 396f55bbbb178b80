"""The attributes of logical spans: the original ones, and what the correlator found out."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from otel_tf import semconv
from otel_tf.correlator.sources import ids

__all__ = ["attributes_of"]

#: Columns of the canonical table that were attributes, and are again.
_COLUMNS = {
    "worker": semconv.WORKER,
    "global_step": semconv.GLOBAL_STEP,
    "local_step": semconv.LOCAL_STEP,
    "seq": semconv.SEQ,
    "mono_ns": semconv.MONOTONIC_NS,
    "staleness": semconv.STALENESS,
    "staleness_source": semconv.STALENESS_SOURCE,
    "group_key": semconv.COLLECTIVE_GROUP_KEY,
    "instance_key": semconv.COLLECTIVE_INSTANCE_KEY,
    "order": semconv.LOGICAL_ORDER,
    "shift_ns": semconv.LOGICAL_SHIFT_NS,
    "error_ns": semconv.LOGICAL_ERROR_NS,
}


def attributes_of(spans: pa.Table) -> list[dict[str, Any]]:
    """Returns the attributes of each span of ``spans``."""
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    texts = spans["attributes"].to_pylist()
    result: list[dict[str, Any]] = [decode(text) if text else {} for text in texts]
    made = {
        semconv.LOGICAL_ORIGINAL_TRACE: ids.to_hex(
            spans["trace_hi"].to_numpy(), spans["trace_lo"].to_numpy()
        ),
        semconv.LOGICAL_ORIGINAL_SPAN: ids.to_hex(spans["span_id"].to_numpy()),
    }
    for key, column in (*((key, spans[name]) for name, key in _COLUMNS.items()), *made.items()):
        if column.null_count == len(column):
            continue
        for attributes, value in zip(result, column.to_pylist(), strict=True):
            if value is not None:
                attributes[key] = value
    return result
