"""Becomes another program, after asking Linux to end it together with its parent.

Run as a script, `python die_with_parent.py PARENT_PID PROGRAM ARGS…`: it keeps its pid. A hook between
fork and exec would do the same, but is not safe in a process with threads, which a training has.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h; exec keeps it


def main() -> int:
    """Returns only where the program did not take this process over."""
    parent, program = int(sys.argv[1]), sys.argv[2]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it went before the line above, and no signal will come
        return 1
    try:
        os.execv(program, sys.argv[2:])
    except OSError as error:
        sys.stderr.write(f"{program}: {error.strerror}\n")
        return 126


if __name__ == "__main__":
    raise SystemExit(main())
