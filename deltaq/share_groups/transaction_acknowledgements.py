"""Acknowledgements that belong to a transaction, and the worker on whose behalf they are sent."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from deltaq.errors import KafkaException
from deltaq.names import TransactionKey
from deltaq.share_groups.exchange import PartitionId
from deltaq.share_groups.state import (
    Acknowledgement,
    PendingTransaction,
    RecordLock,
    SharePartition,
    sent,
)


@dataclass(frozen=True, slots=True)
class ShareGroupMetadata:
    """The member of a share group on whose behalf a transaction acknowledges messages:
    `ShareConsumer.share_group_metadata`.
    """

    group_id: str
    member_id: str


@dataclass(frozen=True, slots=True)
class TransactionOutcome:
    """What became of acknowledgements in a transaction: they count, or `error` is why they do
    not.
    """

    by_partition: Mapping[PartitionId, Sequence[Acknowledgement]]
    error: KafkaException | None


@dataclass(frozen=True, slots=True)
class ShareAcknowledgements:
    """What a share consumer has handed over to a transaction, by partition:
    `ShareConsumer.acknowledgements_for_transaction`. `len` is the number of messages.

    The producer adds the outcome to `outcomes`, from where the consumer's thread takes it.
    """

    by_partition: Mapping[PartitionId, Sequence[Acknowledgement]] = field(default_factory=dict)
    outcomes: deque[TransactionOutcome] = field(default_factory=deque, compare=False, repr=False)

    def report(self, error: KafkaException | None) -> None:
        """Report the outcome of the transaction to the consumer. Thread-safe."""
        self.outcomes.append(TransactionOutcome(self.by_partition, error))

    def __len__(self) -> int:
        return sum(each.end - each.first for of in self.by_partition.values() for each in of)


def sent_partitions(
    partitions: Mapping[PartitionId, SharePartition],
    acknowledgements: ShareAcknowledgements,
    owner: str,
    transaction: PendingTransaction,
) -> dict[PartitionId, SharePartition] | None:
    """The partitions that change when acknowledgements are sent to a transaction. None if the
    worker does not hold all of the messages any more: then none of them is acknowledged.
    """
    changed: dict[PartitionId, SharePartition] = {}
    for key, of_partition in acknowledgements.by_partition.items():
        before = partitions.get(key)
        if before is None:
            return None
        after, applied = sent(before, owner, of_partition, transaction)
        if sum(map(len, applied)) < sum(each.end - each.first for each in of_partition):
            return None
        if after != before:
            changed[key] = after
    return changed


def pending_transactions(partitions: Collection[SharePartition]) -> dict[TransactionKey, int]:
    """The transactions that have acknowledgements, each with the time of the first of them, in
    milliseconds since 1970 UTC.
    """
    found: dict[TransactionKey, int] = {}
    for partition in partitions:
        for _, pending in partition.pending():
            key, time_ms = pending.transaction
            found[key] = min(time_ms, found.get(key, time_ms))
    return found


def overdue_transactions(
    partitions: Collection[SharePartition], over: Collection[RecordLock]
) -> list[TransactionKey]:
    """The transactions that have acknowledged messages whose lock is `over`, in order."""
    return sorted(
        {
            pending.transaction.key
            for partition in partitions
            for span, pending in partition.pending()
            if span.status.lock in over
        }
    )


def acknowledged_by(
    partitions: Collection[SharePartition], transaction: TransactionKey
) -> Mapping[str, int]:
    """The number of messages that a transaction has acknowledged, by type."""
    found: Counter[str] = Counter()
    for partition in partitions:
        for span, pending in partition.pending():
            if pending.transaction.key == transaction:
                found[pending.type.name.lower()] += span.end - span.first
    return found
