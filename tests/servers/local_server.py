"""A server as a process of its own, on a free port of the loopback interface."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Protocol

from tests.servers import guard

__all__ = ["HOST", "READY_S", "LocalServer", "Program", "ServerFailed", "free_port"]

HOST = "127.0.0.1"
PORTS = range(20_000, 32_000)
"""Below the ports that systems give to clients. A client that calls a dead server's port from that
very port would connect to itself, and keep the server from coming back.
"""

READY_S = 60.0
"""How long a server may take until it answers."""

STOP_S = 15.0


class ServerFailed(Exception):
    """The server does not run. The text has the end of its log."""


class Program(Protocol):
    """What a server runs: in a pinned version, made once into `.tools/`."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def path(self) -> Path:
        """Where it is, once it is made."""

    def build(self) -> Path:
        """Make it unless that is done; its path. Raises CannotBuild, BuildFailed."""


class LocalServer(ABC):
    """One server: `start`, then at will `kill` and `restart`, at last `stop`.

    `restart` takes the same port and data. It is gone, with its temporary files, when `stop` was
    called or when this process ended, in whatever way. Also a context manager.
    """

    program: ClassVar[Program]

    def __init__(self) -> None:
        self.port = 0
        self.data = Path()
        self._scratch = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    # --- what a kind of server is ---

    @abstractmethod
    def _command(self, executable: Path) -> list[str]:
        """What starts it at `HOST` and `self.port` with what it keeps in `self.data`."""

    @abstractmethod
    def _environment(self) -> dict[str, str]:
        """Its configuration, with the keys: arguments are visible to every user of the machine."""

    @abstractmethod
    def _answers(self) -> bool:
        """Wait until it serves; False if it ended or time is over."""

    @property
    @abstractmethod
    def environment(self) -> dict[str, str]:
        """The variables by which others find it."""

    # --- its life ---

    def start(self, port: int | None = None, data: Path | None = None) -> None:
        """Build it if need be, and start it. A folder given for its data stays when it stops.

        Raises CannotBuild, BuildFailed, ServerFailed.
        """
        executable = self.program.build()
        self._scratch = Path(tempfile.mkdtemp(prefix=f"deltaq-{self.program.name}-"))
        command = [sys.executable, guard.__file__, str(self._scratch)]
        # In a session of its own: Ctrl-C must not reach it before us.
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self.data = data if data is not None else self._scratch / "data"
        self.data.mkdir(exist_ok=True)
        self.port = port if port is not None else free_port()
        try:
            self._run(executable)
        except BaseException:
            self.stop()
            raise

    def kill(self) -> None:
        """End it as a power cut would end its process (SIGKILL)."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start it again where it was; it runs and answers when this returns. ServerFailed."""
        self._end(signal.SIGTERM)
        self._run(self.program.path, READY_S)

    def stop(self) -> None:
        """End it and remove its files. Idempotent."""
        self._end(signal.SIGTERM)
        if self._guard is not None:
            self._guard.communicate()  # the end of its input: it removes the files
            self._guard = None

    @property
    def pid(self) -> int:
        """The process's id. ServerFailed if there is none."""
        if self._process is None:
            raise ServerFailed(f"{self.program.name} is not running")
        return self._process.pid

    def has_ended(self) -> bool:
        """Whether its process has ended, or was never there."""
        return self._process is None or self._process.poll() is not None

    def __enter__(self) -> Any:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- one process of it ---

    def _run(self, executable: Path, port_timeout_s: float = 0.0) -> None:
        """Start it and wait for its answer. `port_timeout_s`: how long to retry while its port is
        in use.
        """
        give_up_at = time.monotonic() + port_timeout_s
        while True:
            self._spawn(executable)
            if self._answers():
                return
            said = self._log().read_text(errors="replace")
            self._end(signal.SIGKILL)
            if "address already in use" not in said.lower() or time.monotonic() > give_up_at:
                text = (
                    f"{self.program.name} does not answer at {HOST}:{self.port}; its log "
                    f"ends:\n{said[-2000:]}"
                )
                raise ServerFailed(text)

    def _spawn(self, executable: Path) -> None:
        # Nothing of our own environment or home can change what it does, and it leaves nothing
        # there.
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(self._scratch),
            **self._environment(),
        }
        with self._log().open("wb") as log:
            self._process = subprocess.Popen(
                self._command(executable),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._tell_guard(self._process.pid)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        self._tell_guard(0)

    def _tell_guard(self, pid: int) -> None:
        assert self._guard is not None
        assert self._guard.stdin is not None
        self._guard.stdin.write(b"%d\n" % pid)
        self._guard.stdin.flush()

    def _log(self) -> Path:
        return self._scratch / "server.log"


def free_port() -> int:
    """A port without a listener. Raises ServerFailed."""
    for port in random.sample(PORTS, 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise ServerFailed(f"no port from {PORTS.start} to {PORTS.stop} is free")
