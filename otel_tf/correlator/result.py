"""What a correlation gives back."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Result"]


@dataclasses.dataclass(frozen=True)
class Result:
    """A run in causal order.

    Attributes:
        correlated: One row a span in the order of the input: the columns of `tables.SPANS`, and ``order``
            (int64, 0 first), ``corrected_start_ns``, ``corrected_end_ns``, ``shift_ns`` (corrected minus
            recorded start) and ``error_ns`` (half-width of the error bar).
        edges_by_event: Rows of `tables.EDGES`: what had to happen before what.
        links: Rows of `tables.LINKS`; ``row`` counts in ``correlated``.
        report: The object that ``otel-tf correlate --format json`` prints.
    """

    correlated: pa.Table
    edges_by_event: pa.Table
    links: pa.Table
    report: dict[str, Any]

    @functools.cached_property
    def spans(self) -> pa.Table:
        """The spans in causal order, with the columns of ``spans.parquet``: ids as hex texts."""
        from otel_tf.correlator.sinks.parquet import spans_table

        return spans_table(self.correlated, self.links)

    @functools.cached_property
    def edges(self) -> pa.Table:
        """The edges between spans, with the columns of ``edges.parquet``."""
        from otel_tf.correlator.sinks.parquet import edges_table

        return edges_table(self.edges_by_event, self.correlated)
