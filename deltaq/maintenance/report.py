"""What a round of maintenance reports: a line for each action, and the number of actions by
kind.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeAlias

from deltaq.errors import printable

_log = logging.getLogger("deltaq.maintenance")

FAILURES = "failures"
"""The name under which failures are counted."""

Notify: TypeAlias = Callable[[str], None]
"""Receives a line about each action."""


class Report:
    """The report of one topic or group, or of the schema registry; `kind` is `topic`, `group` or
    `registry`.
    """

    def __init__(self, kind: str, name: str, notify: Notify | None) -> None:
        self.counts: Counter[str] = Counter()
        self._kind, self._name = kind, name
        self._prefix = name if kind == "topic" else f"{kind} {printable(name)}"
        self._notify = notify or (lambda _: None)

    def begin(self) -> None:
        """Begin a round: count from zero."""
        self.counts = Counter()

    def plan(self, actions: Iterable[str]) -> Counter[str]:
        """Report and count the actions that a round would take."""
        self.begin()
        for words in actions:
            self.line(words)
            self.counts["actions planned"] += 1
        return self.counts

    def line(self, words: str) -> None:
        """Report an action."""
        self._notify(f"{self._prefix}: {words}")

    def failed(self, reason: str) -> None:
        """Report, log and count a failure after which the round goes on."""
        self.counts[FAILURES] += 1
        self.line(reason)
        _log.warning("maintenance of %s %r: %s", self._kind, self._name, reason)
