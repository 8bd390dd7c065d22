"""Histories in compact notation, on a clock that advances with each reading."""

from __future__ import annotations

from deltaq.clock import SystemClock
from tests.checker import check_history, report
from tests.checker.history import History, Partition

# Where everything happens unless a sentence says otherwise; another partition of the topic; another
# topic.
T: Partition = ("t", 0)
U: Partition = ("t", 1)
X: Partition = ("x", 0)


class TickingClock(SystemClock):
    """A clock that advances by one second with each reading."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1
        return self.now


class Story(History):
    """A history with short methods for common operations."""

    def __init__(self) -> None:
        super().__init__(TickingClock())

    def sends(
        self, process: str, value: object, offset: int | None = None, at: Partition = T
    ) -> None:
        self.send(process, at[0], value).ok(partition=at[1], offset=offset)

    def log(self, *values: object, at: Partition = T) -> None:
        """The values are acknowledged at the offsets 0, 1, 2, ..."""
        for offset, value in enumerate(values):
            self.sends("producer", value, offset, at)

    def polls(
        self,
        process: str,
        *records: tuple[int, object],
        at: Partition = T,
        tail: tuple[Partition, ...] = (),
    ) -> None:
        self.poll(process).ok([(*at, offset, value) for offset, value in records], at_tail=tail)

    def commits(self, process: str, position: int, group: str = "g", at: Partition = T) -> None:
        self.commit(process, group, {at: position}).ok()

    def names(self, **options: object) -> list[str]:
        """The names of all anomalies; each also makes a readable line."""
        found = check_history(self.operations, **options)  # type: ignore[arg-type]
        assert all(anomaly.name in report(found) for anomaly in found)
        return [anomaly.name for anomaly in found]


def group_that_has_read(*values: object, committed: int) -> Story:
    """c1 of group g owns T, and has read and committed the values."""
    story = Story()
    story.log(*values)
    story.assign("c1", [T], group="g")
    story.polls("c1", *enumerate(values))
    story.commits("c1", committed)
    return story
