"""The `deltaq` command run in this process, on a root in memory."""

from __future__ import annotations

import io
import json
import shlex
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from deltaq.cli.program import run
from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.store import forget_memory_store

ROOT = "memory://cli"


@dataclass(frozen=True)
class CommandEnd:
    """A command that has ended: its exit status and what it printed."""

    status: int
    raw: bytes
    errors: str

    @property
    def output(self) -> str:
        return self.raw.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.output)

    def printed(self, expected: str) -> bool:
        """Whether it succeeded, and printed this text, which is indented here."""
        assert (self.output, self.errors, self.status) == (
            textwrap.dedent(expected).lstrip("\n"),
            "",
            0,
        )
        return True

    def refused(self, reason: str, status: int = 1) -> bool:
        """Whether it ended with this status and this line of explanation."""
        assert (self.errors, self.status) == (f"deltaq: {reason}\n", status)
        return True


class Shell:
    """Runs commands on the root `ROOT`. `clock` is theirs."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.clock: Clock = SYSTEM_CLOCK

    def __call__(
        self, command: str, given: bytes = b"", *, terminal: bool = False, encoding: str = "utf-8"
    ) -> CommandEnd:
        """Run a command with `given` as its standard input; with `terminal`, its output seems to be
        one. `encoding` is that of its output.
        """
        out, errors = io.BytesIO(), io.StringIO()
        with self._patch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
            patch.setattr(
                sys, "stdout", text := io.TextIOWrapper(out, encoding, write_through=True)
            )
            patch.setattr(sys, "stderr", errors)
            patch.setattr(text, "isatty", lambda: terminal, raising=False)
            status = run(shlex.split(command), self.clock)
            text.flush()
        return CommandEnd(status, out.getvalue(), errors.getvalue())


@pytest.fixture
def deltaq(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    """The command, on an empty root."""
    monkeypatch.setenv("DELTAQ_ROOT", ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    yield Shell(monkeypatch)
    forget_memory_store("cli")
