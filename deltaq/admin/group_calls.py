"""What the admin client does with consumer groups: reads their logs, and changes them as no member
may.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from deltaq import names
from deltaq.admin.groups import (
    ConsumerGroupDescription,
    ConsumerGroupLag,
    ConsumerGroupListing,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    GroupMetadata,
    ListConsumerGroupsResult,
    PartitionLag,
    description,
    group_metadata,
    listing,
    pending_offsets,
    state_of,
)
from deltaq.clock import Clock
from deltaq.delta.store_errors import reading
from deltaq.delta.table_state import TableState
from deltaq.errors import (
    Corrupt,
    Fenced,
    InvalidConfig,
    KafkaError,
    KafkaException,
    UnknownTopic,
)
from deltaq.groups.log import GroupLog
from deltaq.groups.offsets import CommittedOffset, committed_offsets, metadata_fault
from deltaq.groups.state import GroupHead, group_head, is_share_group
from deltaq.message import TopicPartition
from deltaq.metadata import BROKER_ID, BrokerMetadata, node_of
from deltaq.share_groups.log import ShareGroup, ShareLog
from deltaq.store import Store
from deltaq.store.parallel import in_parallel
from deltaq.topics.log import TopicLog
from deltaq.topics.lookup import TopicLookup
from deltaq.topics.state import TopicHead


@dataclass(frozen=True, slots=True)
class GroupCalls:
    """Calls about the groups of one root. Each reads logs anew, since a client makes few such
    calls. Thread-safe.
    """

    store: Store
    clock: Clock
    client_id: str
    _share_logs: dict[str, ShareLog] = field(default_factory=dict)

    def log(self, group: str) -> GroupLog:
        """A client of a group's log. Raises InvalidConfig (INVALID_GROUP_ID)."""
        return GroupLog(self.store, group, self.clock, self.client_id)

    def share_log(self, group: str) -> ShareLog:
        """The client of the log of a share group, which knows how long it has seen each lock.
        Raises InvalidConfig (INVALID_GROUP_ID).
        """
        found = ShareLog(self.store, group, self.clock, self.client_id)
        return self._share_logs.setdefault(group, found)

    def read(self, group: str) -> tuple[TableState, GroupHead]:
        """A group's table, and its head. Raises InvalidConfig, Unavailable, Corrupt,
        Incompatible.
        """
        state = self.log(group).state()
        return state, group_head(state, names.group_folder(group))

    def find(self, group: str) -> tuple[TableState, GroupHead] | None:
        """As `read`; None for a share group."""
        state = self.log(group).state()
        if is_share_group(state):
            return None
        return state, group_head(state, names.group_folder(group))

    def find_share_group(self, group: str) -> ShareGroup | None:
        """A share group; None for a consumer group and for one that does not exist. Raises as
        `read`.
        """
        found = ShareGroup(self.log(group).state(), names.group_folder(group))
        if not found.exists:
            return None
        found.check(group)
        return found

    def topic_heads(self, topics: Iterable[str]) -> dict[str, TopicHead]:
        """The heads of those of the topics that exist. Raises Unavailable, Corrupt,
        Incompatible.
        """
        found = in_parallel(self.clock, self.topic_head, sorted(set(topics)))
        return {topic: head for topic, head in found if head is not None}

    def topic_head(self, topic: str) -> tuple[str, TopicHead | None]:
        """A topic with its head; None if it does not exist. Raises Unavailable, Corrupt,
        Incompatible.
        """
        try:
            log = TopicLog(self.store, topic, self.clock)
        except InvalidConfig:  # no topic can have an invalid name
            return topic, None
        log.load()
        return topic, log.head

    def times_from(
        self, asked: Mapping[str, Sequence[tuple[int, int]]]
    ) -> dict[tuple[str, int], int | None]:
        """By topic and partition the timestamps in ms of the first records at these offsets or
        after them; None where that cannot be read. Raises Unavailable, Incompatible.
        """
        lookup = TopicLookup(self.store, self.clock)
        found: dict[tuple[str, int], int | None] = {}
        for topic, offsets in asked.items():
            try:
                times_ms = lookup.times_from(topic, offsets)
            except (Corrupt, UnknownTopic):  # a damaged file must not hide what is decided
                continue
            for (partition, _), time_ms in zip(offsets, times_ms, strict=True):
                found[topic, partition] = time_ms
        return found

    # --- groups ---

    def list_groups(
        self,
        states: Collection[ConsumerGroupState] | None,
        types: Collection[ConsumerGroupType] | None,
    ) -> ListConsumerGroupsResult:
        """All consumer groups in one of these states and of one of these types; None stands for
        all.
        """

        def read(group: str) -> ConsumerGroupListing | KafkaException | None:
            try:
                found = self.find(group)
                return None if found is None else listing(group, *found)
            except KafkaException as error:
                return error

        found = in_parallel(self.clock, read, self.names())
        groups = [entry for entry in found if isinstance(entry, ConsumerGroupListing)]
        return ListConsumerGroupsResult(
            [
                entry
                for entry in groups
                if entry.state is not ConsumerGroupState.DEAD
                if (not states or entry.state in states) and (not types or entry.type in types)
            ],
            [entry for entry in found if isinstance(entry, KafkaException)],
        )

    def list_groups_old(self, group: str | None) -> list[GroupMetadata]:
        """All consumer groups that exist, or only `group`, with their members."""
        broker = BrokerMetadata(BROKER_ID, self.store.url, 0)

        def read(name: str) -> GroupMetadata | None:
            try:
                found = self.find(name)
                return None if found is None else group_metadata(name, *found, broker)
            except KafkaException as error:
                return GroupMetadata(broker, name, error.error, "", "", "", [])

        wanted = self.names() if group is None else [group]
        found = in_parallel(self.clock, read, wanted)
        return [entry for entry in found if entry is not None and entry.state != "Dead"]

    def names(self) -> list[str]:
        """The names of all groups, and of those that were deleted. Raises Unavailable."""
        folders = reading(lambda: self.store.list_folders(names.GROUPS_FOLDER))
        return [folder for folder in folders if names.is_name(folder)]

    def describe(self, group: str) -> ConsumerGroupDescription:
        """A group and its members."""
        return description(group, *self.read(group), node_of(self.store))

    def delete(self, group: str, deadline: float) -> None:
        """Delete a group. Raises what `GroupLog.delete` raises."""
        self.log(group).delete(deadline)

    # --- offsets ---

    def committed(self, state: TableState) -> tuple[list[CommittedOffset], dict[str, TopicHead]]:
        """The committed offsets of the topics that exist, and the heads of these topics."""
        offsets = committed_offsets(state)
        heads = self.topic_heads(offset.topic for offset in offsets)
        ids = {topic: head.topic_id for topic, head in heads.items()}
        return [offset for offset in offsets if ids.get(offset.topic) == offset.topic_id], heads

    def list_offsets(
        self, group: str, asked: Sequence[TopicPartition] | None
    ) -> ConsumerGroupTopicPartitions:
        """The committed offsets of these partitions, OFFSET_INVALID where there is none; of all
        that have one for None.
        """
        state, _ = self.read(group)
        found = {(offset.topic, offset.partition): offset for offset in self.committed(state)[0]}
        keys = list(found) if asked is None else [(tp.topic, tp.partition) for tp in asked]
        return ConsumerGroupTopicPartitions(group, [_result(key, found.get(key)) for key in keys])

    def alter_offsets(
        self, group: str, wanted: Sequence[TopicPartition], deadline: float
    ) -> ConsumerGroupTopicPartitions:
        """Commit these offsets on behalf of a group without living members; creates the group.

        A partition has its `error` set if it does not exist, if its metadata is too long, or if the
        group has members.
        """
        log = self.log(group)
        results = [TopicPartition(tp.topic, tp.partition, tp.offset, tp.metadata) for tp in wanted]
        if offsets := self._located(results):
            try:
                log.commit(None, offsets, deadline, wait=True)
            except Fenced as refused:
                reason = (
                    f"group {group!r} has members, and only they commit its offsets: close its "
                    "consumers first"
                )
                _refuse(results, KafkaError(refused.error.code(), reason))
        return ConsumerGroupTopicPartitions(group, results)

    def delete_offsets(
        self, group: str, wanted: Sequence[TopicPartition], deadline: float
    ) -> ConsumerGroupTopicPartitions:
        """Delete the committed offsets of these partitions.

        A partition has its `error` set if it does not exist, or if a living member subscribes to
        its topic. Raises KafkaException (GROUP_ID_NOT_FOUND).
        """
        results = [TopicPartition(tp.topic, tp.partition) for tp in wanted]
        kept = self.log(group).delete_offsets(self._located(results), deadline)
        reason = f"a member of group {group!r} subscribes to the topic, so the offset stays"
        error = KafkaError(KafkaError.GROUP_SUBSCRIBED_TO_TOPIC, reason)
        _refuse([tp for tp in results if tp.topic in kept], error)
        return ConsumerGroupTopicPartitions(group, results)

    def _located(self, wanted: Sequence[TopicPartition]) -> list[CommittedOffset]:
        """The offsets of these partitions, with the ids of their topics. Sets the `error` of a
        partition that does not exist, or whose metadata is too long. Raises KafkaException
        (_INVALID_ARG) for one that is named twice.
        """
        if len({(tp.topic, tp.partition) for tp in wanted}) < len(wanted):
            raise KafkaException(
                KafkaError(KafkaError._INVALID_ARG, "Duplicate partitions not allowed")
            )
        heads = self.topic_heads(tp.topic for tp in wanted)
        located = []
        for tp in wanted:
            head = heads.get(tp.topic)
            fault = metadata_fault(tp)
            if fault is not None:
                tp.error = fault.error
            elif head is None or tp.partition >= head.partitions:
                tp.error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
            else:
                located.append(
                    CommittedOffset(tp.topic, head.topic_id, tp.partition, tp.offset, tp.metadata)
                )
        return located

    # --- lag ---

    def lag(self, group: str) -> ConsumerGroupLag:
        """How far a group is behind in each partition that it has committed or subscribes to."""
        # Before the topics: a committed offset is not above the end that is read later.
        return self.lag_at(group, *self.read(group))

    def lag_at(self, group: str, state: TableState, head: GroupHead) -> ConsumerGroupLag:
        """The lag of a group whose table and head were read before."""
        offsets, heads = self.committed(state)
        heads |= self.topic_heads(head.partitions.keys() - heads.keys())
        committed = {(offset.topic, offset.partition): offset.offset for offset in offsets}
        # A partition without an offset beside others that have one is as unknown as one of a
        # subscription.
        keys = committed.keys() | {
            (topic, partition)
            for topic in head.partitions.keys() | {topic for topic, _ in committed}
            if topic in heads
            for partition in range(heads[topic].partitions)
        }
        lags = [_lag(head, heads[key[0]], key, committed.get(key)) for key in sorted(keys)]
        return ConsumerGroupLag(group, state_of(state, head), lags, pending_offsets(group, state))


def _lag(
    group: GroupHead, topic: TopicHead, key: tuple[str, int], committed: int | None
) -> PartitionLag:
    start, end = topic.start_offsets[key[1]], topic.next_offsets[key[1]]
    owner = group.owners.get(key)
    member = None if owner is None else group.members.get(owner.member_id)
    return PartitionLag(
        *key,
        committed,
        start,
        end,
        _distance(start, end, committed),
        None if owner is None else owner.member_id,
        None if member is None else member.client_id,
        None if member is None else member.host,
    )


def _distance(start: int, end: int, committed: int | None) -> int | None:
    """The lag of a partition; None if it depends on the `auto.offset.reset` of the next
    consumer.
    """
    if committed is None:
        return 0 if start == end else None
    return max(0, end - committed)


def _result(key: tuple[str, int], offset: CommittedOffset | None) -> TopicPartition:
    if offset is None:
        return TopicPartition(*key)
    return TopicPartition(*key, offset.offset, offset.metadata)


def _refuse(partitions: Iterable[TopicPartition], error: KafkaError) -> None:
    for tp in partitions:
        if tp.error is None:
            tp.error = error
