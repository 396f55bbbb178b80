"""otel-tf: a distributed TensorFlow job, explained. See `instrument` and the README."""

from __future__ import annotations

__version__ = "0.1.0"

__all__ = ["__version__"]
