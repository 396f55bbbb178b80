"""Spark: the same statements on a cluster. Needs the extra ``otel-tf[spark]`` and Java."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from otel_tf.correlator.engines.duckdb import as_table, statement
from otel_tf.errors import UserError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkEngine", "active_session"]


class SparkEngine:
    """Runs the statements on Spark.

    Joins and aggregations run where Spark runs; their tables come from the driver's columns, and their
    answers, a row a span at most, go back there.

    Args:
        session: Default: the active session, else a new one. Where that runs is Spark's own business
            (``spark-submit --master``, ``SPARK_REMOTE``, ``spark-defaults.conf``); unset, in this process.

    Raises:
        UserError: PySpark or Java is not there.
    """

    def __init__(self, session: SparkSession | None = None) -> None:
        self._session = session or active_session()

    def query(self, name: str, /, **tables: Any) -> dict[str, npt.NDArray[Any]]:
        """Returns the columns of ``sql/<name>.sql`` over the given tables, rows in any order."""
        for table, columns in tables.items():
            self._session.createDataFrame(as_table(columns)).createOrReplaceTempView(table)
        try:
            found = self._session.sql(statement(name)).toArrow()
        finally:
            for table in tables:
                self._session.catalog.dropTempView(table)
        return {column: np.asarray(found[column].to_numpy()) for column in found.column_names}


def active_session() -> SparkSession:
    """Returns the active session, else a new one.

    Raises:
        UserError: PySpark or Java is not there, or Spark does not start.
    """
    try:
        from pyspark import SparkConf
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError:
        raise UserError("--engine spark needs PySpark: pip install 'otel-tf[spark]'") from None
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    if not (os.environ.get("SPARK_REMOTE") or os.environ.get("JAVA_HOME") or shutil.which("java")):
        raise UserError(
            "--engine spark needs Java 17 or newer: none is on the PATH, and JAVA_HOME is not set"
        )
    builder = SparkSession.builder.appName("otel-tf correlate")
    if not SparkConf().contains("spark.driver.maxResultSize"):
        # Columns of all spans go to the driver; what limits them is its memory.
        builder = builder.config("spark.driver.maxResultSize", "0")
    try:
        if not os.environ.get("SPARK_REMOTE") and not SparkConf().contains("spark.master"):
            # Nobody else has to reach a Spark inside this process.
            builder = builder.master("local[*]").config("spark.ui.enabled", "false")
            for key in ("spark.driver.host", "spark.driver.bindAddress"):
                builder = builder.config(key, "127.0.0.1")
        return builder.getOrCreate()
    except (PySparkException, OSError, RuntimeError) as error:
        raise UserError(f"Spark does not start: {str(error).splitlines()[0]}") from None
