"""How far the members of a group have read: the next owner of a partition must not start beyond that."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from deltaq.testing.history import Operation, Partition

__all__ = ["GroupReach"]


@dataclass(slots=True)
class _Reach:
    """The next offset of one member, after its last poll that ended, and after the one that is under way."""

    done: float = -1.0
    promised: float = -1.0


class GroupReach:
    """The next offset that each group has read up to, by partition.

    A client may commit what it is about to hand out. So a poll counts from its beginning, with what it will return; of
    one that never ends nobody knows, and the group may be anywhere.
    """

    def __init__(self) -> None:
        self._reach: dict[tuple[str, Partition], dict[str, _Reach]] = defaultdict(lambda: defaultdict(_Reach))

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
        """What a member was handed of these partitions is unknown."""
        for partition in partitions:
            self.move(group, process, partition, math.inf)

    def move(self, group: str, process: str, partition: Partition, position: float) -> None:
        """A process started there, or moved the group there on purpose."""
        reach = self._reach[group, partition][process]
        reach.done = max(reach.done, position)
        reach.promised = max(reach.promised, position)

    def of(self, group: str, process: str, partition: Partition) -> float:
        """How far the group has read, for a process that starts: infinity if it has read nothing, or nobody knows."""
        members = self._reach.get((group, partition), {})
        reached = [reach.done if name == process else reach.promised for name, reach in members.items()]
        return max((position for position in reached if position >= 0), default=math.inf)
