"""How far the members of a group have read; the next owner of a partition must not start beyond
that.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tests.checker.history import Operation, Partition

__all__ = ["GroupReach"]


@dataclass(slots=True)
class _Reach:
    """The next offset of one member: after its last completed poll (`done`), and after the running
    one (`promised`).
    """

    done: float = -1.0
    promised: float = -1.0


class GroupReach:
    """The next offset that each group has read up to, by partition.

    A client may commit records before its poll returns them. So a poll counts from its beginning,
    with the records that it will return. After a poll that never ends, the group's position is
    unknown.
    """

    def __init__(self) -> None:
        self._reach: dict[tuple[str, Partition], dict[str, _Reach]] = defaultdict(
            lambda: defaultdict(_Reach)
        )

    def begin(self, group: str, poll: Operation) -> None:
        """A poll of a member begins."""
        for topic, number, offset, _ in poll.records:
            if number is not None and offset is not None:
                reach = self._reach[group, (topic, number)][poll.process]
                reach.promised = max(reach.promised, offset + 1)

    def end(self, group: str, poll: Operation) -> None:
        """A poll of a member has ended."""
        for topic, number, _, _ in poll.records:
            if number is not None:
                reach = self._reach[group, (topic, number)][poll.process]
                reach.done = reach.promised

    def lose(self, group: str, process: str, partitions: Iterable[Partition]) -> None:
        """The records that a member received of these partitions are unknown."""
        for partition in partitions:
            self.move(group, process, partition, math.inf)

    def move(self, group: str, process: str, partition: Partition, position: float) -> None:
        """A process started at `position`, or moved the group there on purpose."""
        reach = self._reach[group, partition][process]
        reach.done = max(reach.done, position)
        reach.promised = max(reach.promised, position)

    def of(self, group: str, process: str, partition: Partition) -> float:
        """How far the group has read, for a process that starts; infinity if it has read nothing or
        it is unknown.
        """
        members = self._reach.get((group, partition), {})
        reached = [
            reach.done if name == process else reach.promised for name, reach in members.items()
        ]
        return max((position for position in reached if position >= 0), default=math.inf)
