"""Results of the calls about share groups. Pure, no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from deltaq.admin.groups import ConsumerGroupState
from deltaq.errors import KafkaException
from deltaq.share_groups.exchange import PartitionId
from deltaq.share_groups.log import ShareGroup
from deltaq.share_groups.state import RecordState, SharePartition
from deltaq.topics.state import TopicHead


@dataclass(frozen=True, slots=True)
class ShareGroupListing:
    """A share group in a list. It is STABLE while members hold records, and EMPTY otherwise:
    members that hold none are not known.
    """

    group_id: str
    state: ConsumerGroupState


@dataclass(frozen=True, slots=True)
class ListShareGroupsResult:
    """The share groups that could be read, and why others could not."""

    valid: list[ShareGroupListing] = field(default_factory=list)
    errors: list[KafkaException] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ShareGroupMember:
    """A member that holds records. `records` is their number."""

    member_id: str
    records: int


@dataclass(frozen=True, slots=True)
class SharePartitionDescription:
    """How far a share group has come in a partition.

    Records below `start_offset` are finished, those from `next_offset` on were never taken.
    Between them, `acquired` are held by members, or acknowledged in open transactions, `available`
    wait to be delivered again, of which `delayed` not yet, and `acknowledged` and `archived` are
    finished. `lag` is the number of records that are not finished, offsets without a record
    included; of a group that redrives dead letters, of those that are chosen and not copied back
    yet, as no others wait. `oldest_ms` is the timestamp of the first of them, in milliseconds since
    1970 UTC; None if there is none, or if it cannot be read.
    """

    topic: str
    partition: int
    start_offset: int
    next_offset: int
    end_offset: int
    acquired: int
    available: int
    delayed: int
    acknowledged: int
    archived: int
    lag: int
    oldest_ms: int | None


@dataclass(frozen=True, slots=True)
class ShareGroupDescription:
    """A share group: the members that hold records, and the partitions of topics that exist. A
    group that does not exist is DEAD.
    """

    group_id: str
    state: ConsumerGroupState
    members: list[ShareGroupMember]
    partitions: list[SharePartitionDescription]

    @property
    def lag(self) -> int:
        """The total over all partitions."""
        return sum(partition.lag for partition in self.partitions)

    @property
    def oldest_ms(self) -> int | None:
        """The lowest `oldest_ms` of the partitions; None if that of none is known."""
        known = (part.oldest_ms for part in self.partitions if part.oldest_ms is not None)
        return min(known, default=None)


def share_state(group: ShareGroup) -> ConsumerGroupState:
    """The state of a share group. Raises Corrupt."""
    if not group.exists:
        return ConsumerGroupState.DEAD
    is_held = any(True for state in group.partitions().values() for _ in state.locks())
    return ConsumerGroupState.STABLE if is_held else ConsumerGroupState.EMPTY


def unfinished(
    group: ShareGroup, heads: Mapping[str, TopicHead]
) -> dict[str, list[tuple[int, int]]]:
    """By topic the partitions with records that are not finished, each with the offset of the
    first. Raises Corrupt.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for key, state, end in _of_topics(group, heads):
        chosen = (span.first for span, _ in state.failures())
        first = next(chosen, end) if group.is_of_chosen else state.start
        if first < end:
            found.setdefault(key.topic, []).append((key.partition, first))
    return found


def _of_topics(
    group: ShareGroup, heads: Mapping[str, TopicHead]
) -> Iterator[tuple[PartitionId, SharePartition, int]]:
    """The partitions of topics that exist, each with its end, in order. Raises Corrupt."""
    for key, state in sorted(group.partitions().items()):
        head = heads.get(key.topic)
        if head is not None and head.topic_id == key.topic_id:
            yield key, state, head.next_offsets[key.partition]


def share_description(
    group_id: str,
    group: ShareGroup,
    heads: Mapping[str, TopicHead],
    times_ms: Mapping[tuple[str, int], int | None],
    now_ms: int,
) -> ShareGroupDescription:
    """A share group, with the heads of the topics that exist, and by topic and partition the
    timestamps of the first records that are not finished, at the time `now_ms`. Raises Corrupt.
    """
    members: Counter[str] = Counter()
    partitions = []
    for key, state, end in _of_topics(group, heads):
        for span in state.spans:
            if span.status.lock is not None:
                members[span.status.lock.owner] += span.end - span.first
        place = key.topic, key.partition
        about = _described(*place, state, end, times_ms.get(place), now_ms)
        if group.is_of_chosen:
            chosen = sum(span.end - span.first for span, _ in state.failures())
            about = replace(about, available=0, delayed=0, lag=chosen)
        partitions.append(about)
    listed = [ShareGroupMember(*member) for member in sorted(members.items())]
    return ShareGroupDescription(group_id, share_state(group), listed, partitions)


def _described(
    topic: str, partition: int, state: SharePartition, end: int, oldest_ms: int | None, now_ms: int
) -> SharePartitionDescription:
    found: Counter[RecordState] = Counter()
    delayed = 0
    for span in state.spans:
        found[span.status.state] += span.end - span.first
        if span.status.visible_ms > now_ms:
            delayed += span.end - span.first
    new = max(0, end - state.end)
    return SharePartitionDescription(
        topic,
        partition,
        state.start,
        state.end,
        end,
        found[RecordState.ACQUIRED] + found[RecordState.PENDING],
        found[RecordState.AVAILABLE],
        delayed,
        found[RecordState.ACKNOWLEDGED],
        found[RecordState.ARCHIVED],
        state.undecided + new,
        oldest_ms,
    )
