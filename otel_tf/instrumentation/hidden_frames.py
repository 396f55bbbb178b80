"""Keeping our frames out of what TensorFlow shows of the user's errors.

It stores a stack with each op of the user's graph and prints it with every error of the op, and it leaves
its own frames out of the tracebacks it raises; the user's errors must read as they do without us.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorflow.python.util import tf_stack, traceback_utils

from otel_tf.instrumentation.seams import Seams

__all__ = ["HiddenFrames", "leave_out_of_tracebacks"]

_OURS = frozenset(str(path) for path in Path(__file__).parent.rglob("*.py") if path.name != "demo_job.py")


class HiddenFrames(tf_stack.StackTraceFilter):  # type: ignore[misc]
    """A context manager for code that builds a graph; one instance a use, as TensorFlow demands."""

    def get_filtered_filenames(self) -> frozenset[str]:
        """Returns the files whose frames are left out."""
        hidden_already: frozenset[str] = self.parent.get_filtered_filenames()
        return _OURS | hidden_already


def leave_out_of_tracebacks(seams: Seams, module: Any = traceback_utils) -> None:
    """Adds our files to those whose frames TensorFlow, or a Keras, leaves out of its tracebacks.

    Args:
        seams: What undoes it.
        module: The ``traceback_utils`` of TensorFlow or of a Keras.
    """
    name = "_EXCLUDED_PATHS"
    excluded = getattr(module, name, None)
    if isinstance(excluded, tuple):
        seams.replace(module, name, (*excluded, *sorted(_OURS)))
