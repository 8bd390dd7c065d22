"""Copying the committed offsets of a group to another group, in the same root or in another one.

In another root a topic of the same name is another table. It may be a copy of the records that
lacks some of them, so an offset is copied only if it stands before the same record there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from deltaq.admin.group_calls import GroupCalls
from deltaq.admin.groups import ConsumerGroupTopicPartitions
from deltaq.errors import KafkaError, KafkaException, OffsetOutOfRange, UnknownTopic
from deltaq.groups.offsets import CommittedOffset
from deltaq.groups.state import check_there
from deltaq.message import TopicPartition
from deltaq.topics.comparison import same_rows
from deltaq.topics.log import TopicLog
from deltaq.topics.ranges import read_ranges

_SHOWN_MAX = 3
"""Failed partitions that an error names."""


def offsets_to_copy(source: GroupCalls, group: str) -> list[CommittedOffset]:
    """The committed offsets of a group. Raises KafkaException (GROUP_ID_NOT_FOUND), and what
    `GroupLog.state` raises.
    """
    state, head = source.read(group)
    check_there(state, head, group)
    return source.committed(state)[0]


def copy_offsets(
    source: GroupCalls,
    offsets: Sequence[CommittedOffset],
    target: GroupCalls,
    group: str,
    deadline: float,
) -> ConsumerGroupTopicPartitions:
    """Commit offsets of another group to the group `group` of `target` in one entry, or none.

    Raises KafkaException (the code of the first partition that cannot be copied), Fenced if the
    target has members, and what `GroupLog.commit` raises.
    """
    if source.store.url != target.store.url:
        offsets = _mapped(source, target, offsets)
    if offsets:
        target.log(group).commit(None, offsets, deadline, wait=True)
    copied = [
        TopicPartition(entry.topic, entry.partition, entry.offset, entry.metadata)
        for entry in offsets
    ]
    return ConsumerGroupTopicPartitions(group, copied)


def _mapped(
    source: GroupCalls, target: GroupCalls, offsets: Sequence[CommittedOffset]
) -> list[CommittedOffset]:
    """The offsets for the topics of another root. Raises KafkaException unless each stands before
    the same record.
    """
    mapped, failed = [], []
    for topic in sorted({entry.topic for entry in offsets}):
        original, copy = _loaded(source, topic), _loaded(target, topic)
        for entry in (entry for entry in offsets if entry.topic == topic):
            error = _difference(source, original, target, copy, entry)
            if error is not None:
                failed.append((entry, error))
            elif copy.head is not None:
                mapped.append(replace(entry, topic_id=copy.head.topic_id))
    if failed:
        shown = [
            f"{entry.topic}[{entry.partition}]: {error.error.str()}"
            for entry, error in failed[:_SHOWN_MAX]
        ]
        more = [f"and {len(failed) - _SHOWN_MAX} more"] if len(failed) > _SHOWN_MAX else []
        reason = f"no offset was copied to {target.store.url}: " + "; ".join([*shown, *more])
        raise KafkaException(KafkaError(failed[0][1].error.code(), reason))
    return mapped


def _loaded(calls: GroupCalls, topic: str) -> TopicLog:
    log = TopicLog(calls.store, topic, calls.clock, indexed=True)
    log.load()
    return log


def _difference(
    source: GroupCalls,
    original: TopicLog,
    target: GroupCalls,
    copy: TopicLog,
    entry: CommittedOffset,
) -> KafkaException | None:
    """Why an offset does not stand before the same record in the copy of its topic; None if it
    does.
    """
    topic, partition, offset = entry.topic, entry.partition, entry.offset
    head = copy.head
    if head is None:
        return UnknownTopic(topic)
    if partition >= head.partitions:
        return UnknownTopic(topic, partition=partition)
    earliest, latest = head.start_offsets[partition], head.next_offsets[partition]
    if not earliest <= offset <= latest:
        return OffsetOutOfRange(
            topic=topic, partition=partition, requested=offset, earliest=earliest, latest=latest
        )
    # The record that is read next; where one of the topics does not have it (yet), the one before
    # it.
    for beside in (offset, offset - 1):
        ours = _record(source, original, partition, beside)
        theirs = _record(target, copy, partition, beside)
        if ours is not None and theirs is not None:
            return (
                None
                if same_rows(ours, theirs)
                else _diverged(f"the record at offset {beside} is another one")
            )
    if offset == 0:
        return None
    return _diverged(
        f"there is no record to compare: the topics do not both have one at offset {offset - 1} or "
        f"{offset}"
    )


def _diverged(reason: str) -> KafkaException:
    return KafkaException(KafkaError(KafkaError._LOG_TRUNCATION, reason))


def _record(calls: GroupCalls, log: TopicLog, partition: int, offset: int) -> pa.RecordBatch | None:
    """The row of a record; None if there is no record at the offset."""
    head = log.live_head
    if not head.start_offsets[partition] <= offset < head.next_offsets[partition]:
        return None
    for part in read_ranges(calls.store, log, {partition: (offset, offset + 1)}):
        if part.rows.num_rows:
            return part.rows
    return None
