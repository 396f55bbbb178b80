"""Keeping our frames out of the stack that TensorFlow stores with each op of the user's graph.

It prints that stack with every error of the op; the user's errors must read as they do without us.
"""

from __future__ import annotations

from pathlib import Path

from tensorflow.python.util import tf_stack

__all__ = ["HiddenFrames"]

_OURS = frozenset(str(path) for path in Path(__file__).parent.rglob("*.py"))


class HiddenFrames(tf_stack.StackTraceFilter):  # type: ignore[misc]
    """A context manager for code that builds a graph; one instance a use, as TensorFlow demands."""

    def get_filtered_filenames(self) -> frozenset[str]:
        """Returns the files whose frames are left out."""
        hidden_already: frozenset[str] = self.parent.get_filtered_filenames()
        return _OURS | hidden_already
