"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

__all__ = ["draft"]


@contextlib.contextmanager
def draft(path: Path) -> Iterator[Path]:
    """Yields another name to write to; afterwards the file is ``path``, or gone if writing failed.

    Makes the folders above ``path``.

    Raises:
        OSError: It cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    other = path.with_name(f".{path.name}.part")
    try:
        yield other
        other.replace(path)
    finally:
        other.unlink(missing_ok=True)
