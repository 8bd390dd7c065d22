"""What a worker exchanges with its share group in one entry: acknowledgements for records. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from deltaq.config.group import GroupSettings
from deltaq.share_groups.state import (
    Acknowledgement,
    RecordLock,
    SharePartition,
    TakenRange,
    acknowledged,
    taken,
    without_locks,
    without_removed,
)


class PartitionId(NamedTuple):
    """A partition of one life of a topic."""

    topic: str
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True)
class LogRange:
    """What a topic has of a partition: the offsets from `log_start` to below `log_end`. A group
    that has never read it begins at `first`, and not yet without one.
    """

    log_start: int
    log_end: int
    first: int | None = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a worker asks of its group.

    It acknowledges records that it has taken, and wants up to `records_max` records of the
    partitions in `log_ranges`, of which earlier ones come first. With `gives_back`, all that it
    still holds of any partition is given back.
    """

    owner: str
    acknowledgements: Mapping[PartitionId, Sequence[Acknowledgement]] = field(default_factory=dict)
    log_ranges: Mapping[PartitionId, LogRange] = field(default_factory=dict)
    records_max: int = 0
    gives_back: bool = False

    @property
    def partitions(self) -> list[PartitionId]:
        """The partitions that it names, in the order in which the entry has them."""
        return sorted({*self.acknowledgements, *self.log_ranges})


@dataclass(frozen=True, slots=True)
class Exchanged:
    """The result: partitions after it, those that it changes; the acknowledged offsets that
    count; and what the worker has taken. `full` are partitions of which
    `share.partition.max.record.locks` kept the worker from taking records.
    """

    changed: Mapping[PartitionId, SharePartition]
    applied: Mapping[PartitionId, Sequence[range]]
    taken: Mapping[PartitionId, Sequence[TakenRange]]
    full: frozenset[PartitionId]


def exchanged(
    partitions: Mapping[PartitionId, SharePartition],
    exchange: Exchange,
    settings: GroupSettings,
    over: Collection[RecordLock],
    version: int,
    now_ms: int,
) -> Exchanged:
    """What the entry `version` does, at the time `now_ms`. `partitions` are those that the log
    has of the partitions in the exchange; of all if the worker gives back. The locks in `over` have
    ended.
    """
    owner, limit = exchange.owner, settings.share_delivery_count_limit
    lock = RecordLock(owner, version)
    after = dict(partitions)
    applied: dict[PartitionId, Sequence[range]] = {}
    found: dict[PartitionId, Sequence[TakenRange]] = {}
    full: set[PartitionId] = set()
    for key, acknowledgements in exchange.acknowledgements.items():
        if key in after:
            after[key], applied[key] = acknowledged(after[key], lock, acknowledgements, limit)
    if exchange.gives_back:
        for key, state in after.items():
            after[key] = without_locks(state, lambda held: held.owner == owner, limit)
    left = exchange.records_max
    for key, log_range in exchange.log_ranges.items():
        if key not in after and log_range.first is None:
            continue
        state = after.get(key) or SharePartition(log_range.first or 0)
        state = without_removed(without_locks(state, over.__contains__, limit), log_range.log_start)
        state, ranges = taken(
            state,
            lock,
            log_range.log_end,
            left,
            settings.share_partition_max_record_locks,
            now_ms,
        )
        after[key] = state
        if ranges:
            found[key] = ranges
            left -= sum(each.end - each.first for each in ranges)
        if state.end < log_range.log_end and left > 0:
            full.add(key)
    changed = {key: state for key, state in after.items() if partitions.get(key) != state}
    return Exchanged(changed, applied, found, frozenset(full))
