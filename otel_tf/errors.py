"""The errors that otel-tf shows to people."""

from __future__ import annotations


class OtelTfError(Exception):
    """Base of every error that otel-tf raises on its own behalf."""


class UserError(OtelTfError):
    """Bad usage or unreadable input: one line that names the file, variable or value.

    The command line prints it without a traceback and exits with 2.
    """


class DidNotInstrument(OtelTfError):
    """A seam could not be attached: the installed TensorFlow lacks it, or the loop cannot be traced."""
