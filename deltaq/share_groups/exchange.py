"""What a worker exchanges with its share group in one entry: acknowledgements for records. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from deltaq.config.group import GroupSettings
from deltaq.names import TransactionKey
from deltaq.share_groups.state import (
    Acknowledgement,
    DeliveryLimit,
    FailedProcessing,
    LastDelivery,
    RecordLock,
    SharePartition,
    TakenRange,
    acknowledged,
    resolved,
    taken,
    without_dead_letters,
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
    still holds of any partition is given back. The dead letters of entries up to the version
    `published` are written. With `last_alone`, a record in its last delivery is taken alone: it may
    be the one that has ended the workers before, and not those that were taken with it.
    """

    owner: str
    acknowledgements: Mapping[PartitionId, Sequence[Acknowledgement]] = field(default_factory=dict)
    log_ranges: Mapping[PartitionId, LogRange] = field(default_factory=dict)
    records_max: int = 0
    gives_back: bool = False
    published: int = -1
    last_alone: bool = False

    @property
    def is_of_all(self) -> bool:
        """Whether it is about all partitions of the group."""
        return self.gives_back or self.published >= 0

    @property
    def partitions(self) -> list[PartitionId]:
        """The partitions that it names, in the order in which the entry has them."""
        return sorted({*self.acknowledgements, *self.log_ranges})


@dataclass(frozen=True, slots=True)
class Exchanged:
    """The result: partitions after it, those that it changes; the acknowledged offsets that
    count; and what the worker has taken. `full` are partitions of which
    `share.partition.max.record.locks` kept the worker from taking records. `ended` is the number of
    records that are to be written to the dead-letter topic by this entry. If these were too many
    before (`is_flooded`), nothing is taken.
    """

    changed: Mapping[PartitionId, SharePartition]
    applied: Mapping[PartitionId, Sequence[range]]
    taken: Mapping[PartitionId, Sequence[TakenRange]]
    full: frozenset[PartitionId]
    ended: int = 0
    is_flooded: bool = False


def exchanged(
    partitions: Mapping[PartitionId, SharePartition],
    exchange: Exchange,
    settings: GroupSettings,
    over: Collection[RecordLock],
    version: int,
    now_ms: int,
    failed_before: int = 0,
) -> Exchanged:
    """What the entry `version` does, at the time `now_ms`, in whose minute `failed_before` records
    have failed. `partitions` are those that the log has of the partitions in the exchange; all if
    it is of all. The locks in `over` have ended.
    """
    owner, lock = exchange.owner, RecordLock(exchange.owner, version)
    limits = _limits({*partitions, *exchange.partitions}, settings, version)
    after = dict(partitions)
    applied: dict[PartitionId, Sequence[range]] = {}
    found: dict[PartitionId, Sequence[TakenRange]] = {}
    full: set[PartitionId] = set()
    for key, acknowledgements in exchange.acknowledgements.items():
        if key in after:
            after[key], applied[key] = acknowledged(after[key], lock, acknowledgements, limits[key])
    if exchange.gives_back:
        for key, state in after.items():
            after[key] = without_locks(state, lambda held: held.owner == owner, limits[key])
    if exchange.published >= 0:
        for key, state in after.items():
            after[key] = without_dead_letters(state, exchange.published)
    is_flooded = (
        failed_before + _ended(after, version) >= settings.errors_deadletterqueue_max_per_minute
    )
    left = 0 if is_flooded else exchange.records_max
    for key, log_range in exchange.log_ranges.items():
        if key not in after and log_range.first is None:
            continue
        state = after.get(key) or SharePartition(log_range.first or 0)
        state = without_locks(state, over.__contains__, limits[key])
        state = without_removed(state, log_range.log_start)
        state, ranges = taken(
            state,
            lock,
            log_range.log_end,
            left,
            settings.share_partition_max_record_locks,
            now_ms,
            LastDelivery(limits[key].deliveries, may_be_taken=not found)
            if exchange.last_alone
            else None,
        )
        after[key] = state
        if ranges:
            found[key] = ranges
            is_last = exchange.last_alone and ranges[0].deliveries >= limits[key].deliveries
            left = 0 if is_last else left - sum(each.end - each.first for each in ranges)
        if state.end < log_range.log_end and left > 0:
            full.add(key)
    changed = {key: state for key, state in after.items() if partitions.get(key) != state}
    ended = _ended(changed, version)
    return Exchanged(changed, applied, found, frozenset(full), ended, is_flooded)


def resolved_partitions(
    partitions: Mapping[PartitionId, SharePartition],
    transaction: TransactionKey,
    settings: GroupSettings,
    version: int,
    *,
    is_committed: bool,
    failed: FailedProcessing | None = None,
) -> Exchanged:
    """What the entry `version` does that ends a transaction: its acknowledgements of all
    `partitions` of the group count, or are dropped. `failed` is that of `resolved`.
    """
    limits = _limits(partitions, settings, version)
    after = {
        key: resolved(state, transaction, limits[key], is_committed=is_committed, failed=failed)
        for key, state in partitions.items()
    }
    changed = {key: state for key, state in after.items() if partitions[key] != state}
    return Exchanged(changed, {}, {}, frozenset(), _ended(changed, version))


def _ended(partitions: Mapping[PartitionId, SharePartition], version: int) -> int:
    """The number of records that the entry `version` has to be written to the dead-letter topic."""
    return sum(
        span.end - span.first
        for state in partitions.values()
        for span, failure in state.failures()
        if failure.since == version
    )


def _limits(
    keys: Collection[PartitionId], settings: GroupSettings, version: int
) -> dict[PartitionId, DeliveryLimit]:
    """The limit of each partition. Dead letters have no dead letters."""
    topic = settings.errors_deadletterqueue_topic_name
    count = settings.share_delivery_count_limit
    return {
        key: DeliveryLimit(count, version if topic and topic != key.topic else None) for key in keys
    }
