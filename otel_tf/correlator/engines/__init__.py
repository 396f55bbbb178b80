"""Engines that run the statements of `otel_tf/correlator/sql`."""

from __future__ import annotations
