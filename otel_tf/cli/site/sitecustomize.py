"""Run by Python itself at start-up of a program under `otel-tf run`, before any of the program's own code.

Its folder is first in ``PYTHONPATH``, and stays there, so that the processes which a launcher starts are
recorded as well. The program's own path, and a ``sitecustomize`` of its own, are as they would be without.
"""

from __future__ import annotations

import contextlib
import os
import sys


def _step_aside() -> None:
    """Takes this folder out of the module search, and runs the sitecustomize that it hid, if any."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - no further imports
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]  # noqa: PTH100
    own = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401 - not this one
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own


def _instrument() -> None:
    # Another interpreter, started by the program, may not have us.
    with contextlib.suppress(ImportError):
        from otel_tf.instrumentation.on_import import instrument_on_import
        from otel_tf.logs.on_import import capture_on_import

        capture_on_import()
        instrument_on_import()


try:
    _instrument()
finally:
    _step_aside()
