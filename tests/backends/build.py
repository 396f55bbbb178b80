#!/usr/bin/env python3
"""Builds the Jaeger that the tests talk to, once, and keeps it in the user's cache folder.

Standard library only: it runs before anything is installed, and with any Python. Prints the path of the
binary on stdout (with OTEL_TF_JAEGER_BIN set, that one) and what it is doing on stderr. Exit codes: 0 the
binary is there; 3 there is no Go that could build it (the tests that need it are then skipped with the
line printed here); 1 the build failed.

The binary's folder is named after go.mod and go.sum, so another version is another folder, and
`otel_tf.jaeger.find_binary` takes the newest one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

MODULE = Path(__file__).resolve().parent / "jaeger"
PACKAGE = "github.com/jaegertracing/jaeger/cmd/jaeger"
EXIT_FAILED = 1
EXIT_NO_GO = 3
SAY_EVERY_S = 30


def target() -> Path:
    """Returns where the binary of this go.mod and go.sum belongs."""
    digest = hashlib.sha256((MODULE / "go.sum").read_bytes() + (MODULE / "go.mod").read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "otel-tf" / f"jaeger-{digest.hexdigest()[:16]}" / "jaeger"


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def missing_go() -> str | None:
    """Returns why Go cannot build it, or None if it can."""
    wanted = re.search(r"^go (\d+\.\d+)", (MODULE / "go.mod").read_text(), re.MULTILINE)
    if wanted is None:
        raise SystemExit(f"{MODULE / 'go.mod'}: no go line")
    go = shutil.which("go")
    if go is None:
        return f"Go is not installed (Jaeger is built from source by Go >= {wanted[1]})"
    answer = subprocess.run([go, "version"], capture_output=True, text=True, check=False)
    found = re.search(r"\bgo(\d+\.\d+)", answer.stdout)
    if found is None:
        return f"`go version` says {(answer.stdout + answer.stderr).strip()!r}"
    if numbers(found[1]) < numbers(wanted[1]):
        return f"Go {found[1]} is too old (Jaeger is built from source by Go >= {wanted[1]})"
    return None


@contextlib.contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Holds the lock file at `path`; the kernel releases it however this process ends."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another process is building Jaeger; waiting for it.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def go_build(output: Path, log: Path) -> int:
    """Runs the build into `output` and says every half minute that it goes on."""
    # readonly: a build never changes the committed go.mod and go.sum.
    command = ["go", "build", "-mod=readonly", "-trimpath", "-o", str(output), PACKAGE]
    environment = {"HOME": str(Path.home()), **os.environ, "GOFLAGS": "-buildvcs=false"}
    started = time.monotonic()
    with log.open("w") as stream:
        build = subprocess.Popen(
            command, cwd=MODULE, env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
        )
        try:
            while True:
                try:
                    return build.wait(timeout=SAY_EVERY_S)
                except subprocess.TimeoutExpired:
                    say(f"… still building Jaeger, {time.monotonic() - started:.0f} s so far")
        finally:
            if build.poll() is None:
                build.kill()
                build.wait()


def main() -> int:
    # So that the folder half built in, and the compiler, go when this process is told to.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_FAILED))
    given = os.environ.get("OTEL_TF_JAEGER_BIN")
    binary = Path(given) if given else target()
    if not given and not binary.exists():
        reason = missing_go()
        if reason is not None:
            say(f"No Jaeger to test against: {reason}.")
            return EXIT_NO_GO
        binary.parent.mkdir(parents=True, exist_ok=True)
        with only_one(binary.parent / "lock"):
            if not binary.exists() and not build(binary):
                return EXIT_FAILED
    sys.stdout.write(f"{binary}\n")
    return 0


def build(binary: Path) -> bool:
    """Builds beside `binary` and renames, so that a half-written one is never found."""
    say("Building Jaeger from source, once: about 5 minutes where Go has built none of it yet.")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="build-", dir=binary.parent) as folder:
        log = Path(folder) / "log"
        if go_build(Path(folder) / "jaeger", log) != 0:
            say("Jaeger could not be built; the end of what go said:")
            say("\n".join(f"  {line}" for line in log.read_text(errors="replace").splitlines()[-15:]))
            return False
        (Path(folder) / "jaeger").replace(binary)
    say(f"Jaeger is built ({time.monotonic() - started:.0f} s): {binary}")
    return True


if __name__ == "__main__":
    raise SystemExit(main())
