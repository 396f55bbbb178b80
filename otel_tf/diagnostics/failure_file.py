"""The file of failures: all that is known of each, a JSON object a line, beside the process's spool.

Spans take only so much; whoever looks into a failure wants all of it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from otel_tf.diagnostics.summary import BOUNDS, TensorSummary

__all__ = ["FAILURES_SUFFIX", "append"]

FAILURES_SUFFIX = ".failures.jsonl"
#: Of one file; a program that fails over and over must not fill the disk.
_MOST_BYTES = 64 << 20


def append(
    run_dir: Path, task: str, failure: dict[str, Any], groups: Mapping[str, Sequence[TensorSummary]]
) -> tuple[Path, int] | None:
    """Appends one failure; returns the file and the number of the line, from 1, or None where it is full.

    Args:
        run_dir: The run directory; made where it is missing.
        task: This process's task, such as ``worker:1``.
        failure: What is known of the failure itself.
        groups: Summaries by a name of the group; written as ``tensors``, ``watched``.

    Raises:
        OSError: It cannot be written.
    """
    name = re.sub(r"[^A-Za-z0-9_-]", "_", task.replace(":", "-"))
    path = run_dir / f"{name}.{os.getpid()}{FAILURES_SUFFIX}"
    written = {
        **failure,
        "histogram_bounds": BOUNDS,
        **{name: [one.as_json() for one in summaries] for name, summaries in groups.items()},
    }
    line = (json.dumps(_plain(written), ensure_ascii=False, separators=(",", ":")) + "\n").encode(
        errors="replace"
    )
    run_dir.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        if file.tell() + len(line) > _MOST_BYTES:
            return None
        file.seek(0)
        # An earlier process may have had this id.
        before = sum(1 for _ in file)
        file.write(line)
    return path, before + 1


def _plain(value: Any) -> Any:
    """Returns a value as JSON has it: numbers that are none become text."""
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
