#!/usr/bin/env python3
"""Builds a server that the tests talk to, once, and keeps it in the user's cache folder.

    build.py [jaeger|collector]

Standard library only: it runs before anything is installed, and with any Python. Prints the path of the
binary on stdout (with OTEL_TF_JAEGER_BIN or OTEL_TF_COLLECTOR_BIN set, that one) and what it is doing on
stderr. Exit codes: 0 the binary is there; 3 there is no Go that could build it (the tests that need it are
then skipped with the line printed here); 1 the build failed; 2 there is no such server.

The binary's folder is named after the files that it is built from, so another version is another folder,
and `otel_tf.jaeger.find_binary` takes the newest one.
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

HERE = Path(__file__).resolve().parent
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NO_GO = 3
SAY_EVERY_S = 30


class Backend:
    """A server: which files it is built from, and how."""

    name = ""
    title = ""
    binary_name = ""
    #: Files in its folder; their content names the binary's folder.
    sources: tuple[str, ...] = ()
    takes = ""

    @property
    def folder(self) -> Path:
        return HERE / self.name

    @property
    def given(self) -> str | None:
        return os.environ.get(f"OTEL_TF_{self.name.upper()}_BIN")

    def target(self) -> Path:
        """Returns where the binary of these sources belongs."""
        digest = hashlib.sha256(b"".join((self.folder / name).read_bytes() for name in self.sources))
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "otel-tf" / f"{self.name}-{digest.hexdigest()[:16]}" / self.binary_name

    def oldest_go(self) -> str:
        raise NotImplementedError

    def command(self, folder: Path) -> tuple[list[str], Path, Path]:
        """Returns the command that builds it in `folder`, where to run it, and the binary it makes."""
        raise NotImplementedError


class Jaeger(Backend):
    name = "jaeger"
    title = "Jaeger"
    binary_name = "jaeger"
    sources = ("go.sum", "go.mod")
    takes = "about 5 minutes"

    def oldest_go(self) -> str:
        wanted = re.search(r"^go (\d+\.\d+)", (self.folder / "go.mod").read_text(), re.MULTILINE)
        if wanted is None:
            raise SystemExit(f"{self.folder / 'go.mod'}: no go line")
        return wanted[1]

    def command(self, folder: Path) -> tuple[list[str], Path, Path]:
        binary = folder / self.binary_name
        # readonly: a build never changes the committed go.mod and go.sum.
        build = ["go", "build", "-mod=readonly", "-trimpath", "-o", str(binary)]
        return [*build, "github.com/jaegertracing/jaeger/cmd/jaeger"], self.folder, binary


class Collector(Backend):
    """An OpenTelemetry Collector, made by its own builder of the parts that builder.yaml lists."""

    name = "collector"
    title = "the Collector"
    binary_name = "otel-tf-collector"
    sources = ("builder.yaml",)
    takes = "about 3 minutes"

    def oldest_go(self) -> str:
        return "1.26"  # the go line of its parts at this release

    def command(self, folder: Path) -> tuple[list[str], Path, Path]:
        parts = self.folder / "builder.yaml"
        release = re.search(r"/receiver/otlpreceiver (v\S+)", parts.read_text())
        if release is None:
            raise SystemExit(f"{parts}: no otlpreceiver")
        builder = f"go.opentelemetry.io/collector/cmd/builder@{release[1]}"
        # builder.yaml names the folder `collector`, below where it runs.
        return ["go", "run", builder, "--config", str(parts)], folder, folder / "collector" / self.binary_name


BACKENDS = {backend.name: backend for backend in (Jaeger(), Collector())}


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def missing_go(backend: Backend) -> str | None:
    """Returns why Go cannot build it, or None if it can."""
    wanted = backend.oldest_go()
    needs = f"({backend.title} is built from source by Go >= {wanted})"
    go = shutil.which("go")
    if go is None:
        return f"Go is not installed {needs}"
    answer = subprocess.run([go, "version"], capture_output=True, text=True, check=False)
    found = re.search(r"\bgo(\d+\.\d+)", answer.stdout)
    if found is None:
        return f"`go version` says {(answer.stdout + answer.stderr).strip()!r}"
    if numbers(found[1]) < numbers(wanted):
        return f"Go {found[1]} is too old {needs}"
    return None


@contextlib.contextmanager
def only_one(path: Path, backend: Backend) -> Iterator[None]:
    """Holds the lock file at `path`; the kernel releases it however this process ends."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Another process is building {backend.title}; waiting for it.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(backend: Backend, command: list[str], folder: Path, log: Path) -> int:
    """Runs the build and says every half minute that it goes on."""
    environment = {"HOME": str(Path.home()), **os.environ, "GOFLAGS": "-buildvcs=false"}
    started = time.monotonic()
    with log.open("w") as stream:
        build = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,  # what `go run` starts is to end with it
        )
        try:
            while True:
                try:
                    return build.wait(timeout=SAY_EVERY_S)
                except subprocess.TimeoutExpired:
                    say(f"… still building {backend.title}, {time.monotonic() - started:.0f} s so far")
        finally:
            if build.poll() is None:
                os.killpg(build.pid, signal.SIGKILL)
                build.wait()


def main() -> int:
    # So that the folder half built in, and the compiler, go when this process is told to.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_FAILED))
    name = sys.argv[1] if len(sys.argv) > 1 else "jaeger"
    if name not in BACKENDS:
        say(f"{name}: no such server; there are {' and '.join(BACKENDS)}")
        return EXIT_USAGE
    backend = BACKENDS[name]
    binary = Path(backend.given) if backend.given else backend.target()
    if not backend.given and not binary.exists():
        reason = missing_go(backend)
        if reason is not None:
            say(f"No {backend.title.removeprefix('the ')} to test against: {reason}.")
            return EXIT_NO_GO
        binary.parent.mkdir(parents=True, exist_ok=True)
        with only_one(binary.parent / "lock", backend):
            if not binary.exists() and not build(backend, binary):
                return EXIT_FAILED
    sys.stdout.write(f"{binary}\n")
    return 0


def build(backend: Backend, binary: Path) -> bool:
    """Builds beside `binary` and renames, so that a half-written one is never found."""
    title = f"{backend.title[:1].upper()}{backend.title[1:]}"
    say(f"Building {backend.title} from source, once: {backend.takes} where Go has built none of it yet.")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="build-", dir=binary.parent) as folder:
        log = Path(folder) / "log"
        command, where, built = backend.command(Path(folder))
        if run(backend, command, where, log) != 0:
            say(f"{title} could not be built; the end of what go said:")
            say("\n".join(f"  {line}" for line in log.read_text(errors="replace").splitlines()[-15:]))
            return False
        built.replace(binary)
    say(f"{title} is built ({time.monotonic() - started:.0f} s): {binary}")
    return True


if __name__ == "__main__":
    raise SystemExit(main())
