"""The calls of the admin client about share groups, named like those of Kafka's Java client.
confluent-kafka has none.
"""

from __future__ import annotations

from concurrent.futures import Future

from deltaq.admin.call_order import ALL_GROUPS, changes_group, reads, reads_group
from deltaq.admin.calls import TIMEOUT_S, Calls, check_list, check_partition
from deltaq.admin.group_calls import GroupCalls
from deltaq.admin.groups import ConsumerGroupState, check_groups
from deltaq.admin.share_groups import (
    ListShareGroupsResult,
    ShareGroupDescription,
    ShareGroupListing,
    share_description,
    share_state,
    unfinished,
)
from deltaq.clock import Clock
from deltaq.errors import KafkaError, KafkaException
from deltaq.message import TopicPartition
from deltaq.share_groups.exchange import PartitionId
from deltaq.store.parallel import in_parallel


class ShareGroupCalls:
    """The part of the admin client that is about share groups."""

    _calls: Calls
    _clock: Clock
    _groups: GroupCalls

    def list_share_groups(
        self, *, request_timeout: float = TIMEOUT_S
    ) -> Future[ListShareGroupsResult]:
        """List the share groups. Reads the log of each group. The future raises Unavailable."""

        def read(group: str) -> ShareGroupListing | KafkaException | None:
            try:
                found = self._groups.find_share_group(group)
                return None if found is None else ShareGroupListing(group, share_state(found))
            except KafkaException as error:
                return error

        def list_all() -> ListShareGroupsResult:
            found = in_parallel(self._clock, read, self._groups.names())
            return ListShareGroupsResult(
                [entry for entry in found if isinstance(entry, ShareGroupListing)],
                [entry for entry in found if isinstance(entry, KafkaException)],
            )

        deadline = self._calls.deadline(request_timeout)
        return self._calls.one(list_all, reads(ALL_GROUPS), deadline)

    def describe_share_groups(
        self, group_ids: list[str], *, request_timeout: float = TIMEOUT_S
    ) -> dict[str, Future[ShareGroupDescription]]:
        """Describe share groups: who holds records, how far each partition has come, and how old
        the first record is that is not finished, which reads a data file of each partition. A group
        that does not exist, or is a consumer group, is DEAD. Futures raise InvalidConfig
        (INVALID_GROUP_ID), Corrupt, Incompatible, Unavailable.
        """

        def describe(group: str) -> ShareGroupDescription:
            found = self._groups.find_share_group(group)
            if found is None:
                return ShareGroupDescription(group, ConsumerGroupState.DEAD, [], [])
            # After the group: no offset that it has is above the end of the topic.
            heads = self._groups.topic_heads(key.topic for key in found.partitions())
            times_ms = self._groups.times_from(unfinished(found, heads))
            return share_description(group, found, heads, times_ms, self._clock.time_ms())

        listed, deadline = (
            check_groups(group_ids, "described"),
            self._calls.deadline(request_timeout),
        )
        return self._calls.each(listed, describe, reads_group, deadline)

    def delete_share_groups(
        self, group_ids: list[str], *, request_timeout: float = TIMEOUT_S
    ) -> dict[str, Future[None]]:
        """Delete share groups with all that they have decided; their settings stay. Records that a
        member holds prevent it: the call waits until their locks are over. That is when this client
        has seen them for `share.record.lock.duration.ms`, in this call or since an earlier one.

        A consumer that polls later makes the group anew. Futures raise GroupInUse
        (NON_EMPTY_GROUP), KafkaException (GROUP_ID_NOT_FOUND), OutcomeUnknown, Unavailable.
        """
        deadline = self._calls.deadline(request_timeout)
        return self._calls.each(
            check_groups(group_ids, "deleted"),
            lambda group: self._groups.share_log(group).delete(deadline),
            changes_group,
            deadline,
        )

    def alter_share_group_offsets(
        self, group_id: str, offsets: list[TopicPartition], *, request_timeout: float = TIMEOUT_S
    ) -> Future[list[TopicPartition]]:
        """Have a share group begin anew in these partitions, each at its offset: records from there
        on are delivered, those below are not. The group need not exist. As for
        `delete_share_groups`, records that are held prevent it.

        In the result, a partition has its `error` set if it was not altered:
        UNKNOWN_TOPIC_OR_PART. The future raises GroupInUse, OutcomeUnknown, Unavailable, and
        KafkaException (GROUP_ID_NOT_FOUND) for a consumer group.
        """
        (group,) = check_groups([group_id], "altered")
        check_list(offsets, (TopicPartition,), "TopicPartition")
        for tp in offsets:
            check_partition(tp)
            if tp.offset < 0:
                raise ValueError(f"offset {tp.offset} of {tp.topic}[{tp.partition}] is negative")
        deadline = self._calls.deadline(request_timeout)

        def alter() -> list[TopicPartition]:
            heads = self._groups.topic_heads(tp.topic for tp in offsets)
            results, wanted = [], {}
            for tp in offsets:
                result = TopicPartition(tp.topic, tp.partition, tp.offset)
                head = heads.get(tp.topic)
                if head is None or tp.partition >= head.partitions:
                    result.error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
                else:
                    wanted[PartitionId(tp.topic, head.topic_id, tp.partition)] = tp.offset
                results.append(result)
            if wanted:
                self._groups.share_log(group).reset(wanted, deadline)
            return results

        return self._calls.one(alter, changes_group(group), deadline)
