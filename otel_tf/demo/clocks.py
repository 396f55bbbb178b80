"""A wrong, drifting clock for each task, by libfaketime: the process reads it, nothing is simulated."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["FalseClock", "FalseClocks", "false_clocks"]


@dataclasses.dataclass(frozen=True)
class FalseClock:
    """How a task's clock is wrong at its start, in s, and how fast it drifts, in ppm."""

    offset_s: float
    drift_ppm: float

    @property
    def faketime(self) -> str:
        """The value of ``FAKETIME``."""
        return f"{self.offset_s:+g}s x{1 + self.drift_ppm / 1e6:.6f}"


@dataclasses.dataclass(frozen=True)
class FalseClocks:
    """The library that makes them, or why there is none."""

    library: Path | None
    problem: str | None

    def environment(self, clock: FalseClock) -> dict[str, str]:
        """Returns the variables that put a process under ``clock``; none where there is no library."""
        if self.library is None:
            return {}
        return {
            "LD_PRELOAD": str(self.library),
            "FAKETIME": clock.faketime,
            # Sleeps to a deadline on the monotonic clock would never end.
            "DONT_FAKE_MONOTONIC": "1",
        }


def false_clocks() -> FalseClocks:
    """Finds libfaketime and tries it on a short process of this interpreter."""
    library = _find()
    if library is None:
        return FalseClocks(None, "libfaketime is not installed (pip install 'otel-tf[demo]', x86-64 Linux)")
    environment = {**os.environ, "LD_PRELOAD": str(library), "FAKETIME": "+1000s"}
    try:
        said = subprocess.run(
            [sys.executable, "-I", "-S", "-c", "import time; print(time.time())"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout
        ahead_s = float(said) - time.time()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return FalseClocks(None, f"{library} cannot be loaded: {error}")
    if ahead_s < 900:
        return FalseClocks(None, f"{library} was loaded but the process still read the true time")
    return FalseClocks(library, None)


def _find() -> Path | None:
    spec = importlib.util.find_spec("libfaketime")
    roots = list(spec.submodule_search_locations or ()) if spec else []
    for root in roots:
        library = Path(root) / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
        if library.is_file():
            return library
    debian = Path("/usr/lib") / f"{os.uname().machine}-linux-gnu" / "faketime" / "libfaketime.so.1"
    return debian if debian.is_file() else None
