"""Servers written in Go, built once into `.tools/` from a pinned version of their module.

`python -m tests.servers.go_programs` builds all of them. It needs nothing but Python's standard
library, so that it can run beside the making of `.venv`. Exit status: 0 built, 69 (EX_UNAVAILABLE)
no Go or no network, 1 anything else.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "MINIO",
    "NO_NETWORK",
    "PROGRAMS",
    "TOOLS",
    "VERSITYGW",
    "BuildFailed",
    "CannotBuild",
    "GoProgram",
    "one_at_a_time",
]

TOOLS = Path(__file__).resolve().parents[2] / ".tools"
UNAVAILABLE = 69

FEW_COLLECTIONS = {"GOGC": "400", "GOMEMLIMIT": "1536MiB"}
"""Settings of each compiler, which would spend a fifth of its time on collecting garbage."""

# What Go says when it reaches neither the module proxy nor the module's own host.
NO_NETWORK = (
    "dial tcp",
    "i/o timeout",
    "module lookup disabled",
    "no such host",
    "proxyconnect",
    "connection refused",
    "connection reset",
    "network is unreachable",
    "TLS handshake timeout",
)


class CannotBuild(Exception):
    """This machine has no Go, or no way to the modules: no fault of the program, and the text says
    what to do.
    """


class BuildFailed(Exception):
    """Go was there and the modules too, but they do not build."""


@dataclass(frozen=True)
class GoProgram:
    """A program and where it comes from: `version` is pinned, so that every machine tests the same
    server.
    """

    name: str
    package: str
    version: str

    @property
    def path(self) -> Path:
        """The executable, once it is built. The version is part of it: another pin is another
        build.
        """
        return TOOLS / f"{self.name}@{self.version}" / self.name

    def build(self) -> Path:
        """Build it unless that is done; its path. Minutes the first time. CannotBuild,
        BuildFailed.
        """
        go = shutil.which("go")
        with one_at_a_time(self.name):
            if self.path.exists():
                return self.path
            if go is None:
                raise CannotBuild(
                    f"{self.name} is built with Go, and there is none here; get it from https://go.dev/dl"
                )
            print(
                f"Building {self.name} {self.version}: minutes the first time ...",
                file=sys.stderr,
                flush=True,
            )
            self.path.parent.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f"{self.name}-", dir=TOOLS) as folder:
                self._install(go, folder)
                Path(folder, self.name).replace(self.path)
        return self.path

    def _install(self, go: str, folder: str) -> None:
        # At the lowest priority: tests may be running beside it. Without C, so that no compiler of
        # it is needed.
        command = ["nice", "-n", "19", go, "install", f"{self.package}@{self.version}"]
        environment = {**os.environ, "GOBIN": folder, "CGO_ENABLED": "0", **FEW_COLLECTIONS}
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return
        said = "\n".join(done.stderr.strip().splitlines()[-10:])
        if any(sign in done.stderr for sign in NO_NETWORK):
            raise CannotBuild(
                f"{self.name} is built from Go modules, and they cannot be reached:\n{said}"
            )
        raise BuildFailed(f"{self.name} does not build:\n{said}")


MINIO = GoProgram("minio", "github.com/minio/minio", "v0.0.0-20260212201848-7aac2a2c5b7c")
VERSITYGW = GoProgram("versitygw", "github.com/versity/versitygw/cmd/versitygw", "v1.8.0")
PROGRAMS = (MINIO, VERSITYGW)


@contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """A lock: a second builder waits for the first, and finds the program built."""
    TOOLS.mkdir(exist_ok=True)
    with (TOOLS / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    """Build all programs; the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the compiler is stopped too
    for program in PROGRAMS:
        try:
            program.build()
        except CannotBuild as error:
            print(f"NOT BUILT: {error}", file=sys.stderr)
            return UNAVAILABLE
        except BuildFailed as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
