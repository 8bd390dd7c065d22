"""Which offset of a partition is asked for, and the answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["IsolationLevel", "ListOffsetsResultInfo", "OffsetSpec"]

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3


class IsolationLevel(Enum):
    """Kafka's isolation levels. They make no difference here: nothing undecided is ever in a topic."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1

    def __lt__(self, other: object) -> bool:
        return int(self.value) < int(other.value) if isinstance(other, IsolationLevel) else NotImplemented


@dataclass(frozen=True, order=True, slots=True)
class OffsetSpec:
    """Which offset to look for: use the class methods. `index` is a time in ms since 1970 UTC if not negative."""

    index: int

    def __post_init__(self) -> None:
        if self.index < MAX_TIMESTAMP:
            raise ValueError(f"{self.index} is no offset specification: use earliest(), latest() or for_timestamp()")

    @classmethod
    def earliest(cls) -> OffsetSpec:
        """The first offset that can be read."""
        return cls(EARLIEST)

    @classmethod
    def latest(cls) -> OffsetSpec:
        """The offset that the next record will get."""
        return cls(LATEST)

    @classmethod
    def max_timestamp(cls) -> OffsetSpec:
        """The offset of the record with the highest timestamp."""
        return cls(MAX_TIMESTAMP)

    @classmethod
    def for_timestamp(cls, timestamp: int) -> OffsetSpec:
        """The first offset whose record has this timestamp (ms) or a later one."""
        if timestamp < 0:
            raise ValueError(f"a timestamp is milliseconds since 1970, not {timestamp}")
        return cls(timestamp)


@dataclass(frozen=True, slots=True)
class ListOffsetsResultInfo:
    """The offset found, and its record's timestamp in ms; both -1 if there is none.

    The timestamp is -1, too, for the earliest and the latest offset. A log without leaders has no `leader_epoch`.
    """

    offset: int
    timestamp: int
    leader_epoch: None = None
