"""Where a Jaeger 2 binary may be on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from otel_tf import config
from otel_tf.errors import UserError

__all__ = ["find_binary"]

_ANSWER_WITHIN_S = 20


def find_binary() -> Path | None:
    """Returns a Jaeger 2 binary, or None where there is none.

    Taken is the first of: ``OTEL_TF_JAEGER_BIN``; ``jaeger`` on the PATH, if it is version 2; the newest
    one that the repository's builder has left in the user's cache folder.

    Raises:
        UserError: ``OTEL_TF_JAEGER_BIN`` names something that cannot be run.
    """
    given = config.resolve().jaeger_bin
    if given is not None:
        if not (given.is_file() and os.access(given, os.X_OK)):
            raise UserError(f"OTEL_TF_JAEGER_BIN={given}: no such program, or it cannot be run")
        return given
    on_path = shutil.which("jaeger")
    if on_path is not None and _is_version_2(on_path):
        return Path(on_path)
    return _newest_built()


def _is_version_2(program: str) -> bool:
    """Asks the program: a Jaeger 1 takes other options, and a module build knows no version number."""
    try:
        answer = subprocess.run(
            [program, "--help"], capture_output=True, text=True, timeout=_ANSWER_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "Jaeger backend v2" in answer.stdout


def _newest_built() -> Path | None:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    built = (cache / "otel-tf").glob("jaeger-*/jaeger")
    return max(built, key=lambda path: path.stat().st_mtime, default=None)
