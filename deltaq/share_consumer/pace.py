"""How many messages a loop takes at once. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_SHARE = 3
"""A loop takes what it is done with in this part of the time of a lock."""


@dataclass(eq=False)
class LoopPace:
    """The number of messages that a loop takes at once: as many as its body is done with in a third
    of their lock, and at most `most`.

    It begins with one and doubles. So a message that ends the process has no others with it at
    first, and a slow body has few that wait for it.
    """

    most: int
    records: int = 1

    def passed(self) -> None:
        """What was taken needed no body."""
        self.records = min(2 * self.records, self.most)

    def took(self, records: int, seconds: float, lock_s: float) -> None:
        """The bodies of so many messages took this time."""
        in_time = self.most
        if seconds > 0:
            in_time = int(records * lock_s / _SHARE / seconds)
        self.records = max(1, min(2 * self.records, in_time, self.most))
