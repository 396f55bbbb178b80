"""The embedded engine: DuckDB over numpy columns, in this process."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any, Protocol

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["DuckEngine", "Engine", "statement"]

Array = npt.NDArray[Any]


class Engine(Protocol):
    """Runs one of our statements over tables of equally long columns."""

    def query(self, name: str, /, **tables: Any) -> dict[str, Array]:
        """Returns the columns of ``sql/<name>.sql`` over the given tables, rows in any order."""


def statement(name: str) -> str:
    """Returns the text of ``sql/<name>.sql``."""
    return (resources.files("otel_tf.correlator") / "sql" / f"{name}.sql").read_text("utf-8")


def as_table(columns: Mapping[str, Array] | pa.Table) -> pa.Table:
    """Returns columns as an Arrow table, without copying what is contiguous."""
    if isinstance(columns, pa.Table):
        return columns
    return pa.table({name: np.ascontiguousarray(values) for name, values in columns.items()})


class DuckEngine:
    """DuckDB in memory.

    Args:
        memory_limit: DuckDB's own limit, e.g. ``"2GB"``; beyond it, it spills to a temporary folder.
    """

    def __init__(self, memory_limit: str | None = None) -> None:
        self._connection = duckdb.connect()
        # The order of rows is nobody's promise here; without it DuckDB streams in parallel.
        self._connection.execute("SET preserve_insertion_order = false")
        if memory_limit is not None:
            self._connection.execute("SET memory_limit = ?", [memory_limit])

    def query(self, name: str, /, **tables: Any) -> dict[str, Array]:
        """Returns the columns of ``sql/<name>.sql`` over the given tables, rows in any order."""
        for table, columns in tables.items():
            self._connection.register(table, as_table(columns))
        try:
            found = self._connection.sql(statement(name)).to_arrow_table()
        finally:
            for table in tables:
                self._connection.unregister(table)
        return {column: found[column].to_numpy() for column in found.column_names}
