"""Queries about offsets that ask the store: watermarks, offsets by time, committed offsets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from deltaq.clock import Clock, checked_timeout
from deltaq.consumer.calls import partition_list
from deltaq.errors import InvalidConfig, KafkaError, Unavailable, UnknownTopic
from deltaq.groups.log import GroupLog
from deltaq.message import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, TopicPartition
from deltaq.store.parallel import within
from deltaq.topics.lookup import TopicLookup
from deltaq.topics.state import TopicHead

R = TypeVar("R")


def watermarks(head: TopicHead, partition: int) -> tuple[int, int]:
    """(first offset, next offset) of a partition."""
    return head.start_offsets[partition], head.next_offsets[partition]


def known_watermarks(head: TopicHead | None, partition: int) -> tuple[int, int]:
    """The same of a topic as seen last; OFFSET_INVALID twice if it is not known."""
    if head is None or not 0 <= partition < head.partitions:
        return OFFSET_INVALID, OFFSET_INVALID
    return watermarks(head, partition)


class OffsetQueries:
    """Answers the offset queries of one consumer; their semantics are those of the methods of
    `Consumer`.

    Thread-safe. Raises KafkaException (_TIMED_OUT) if the store does not answer within `timeout`
    seconds.
    """

    def __init__(self, lookup: TopicLookup, group_log: GroupLog, clock: Clock) -> None:
        self.lookup = lookup
        self.group_log = group_log
        self._clock = clock

    def head(self, topic: str) -> TopicHead | None:
        """The current head of a topic; None if the topic does not exist."""
        try:
            return self.lookup.head(topic)
        except UnknownTopic:
            return None

    def stored(self, topic: str, topic_id: str, partitions: Sequence[int]) -> list[int | None]:
        """The committed offset of each partition; None where there is none."""
        found = self.group_log.committed([(topic, topic_id, partition) for partition in partitions])
        return [None if committed is None else committed.offset for committed in found]

    def head_with(self, partition: TopicPartition, timeout: float | None) -> TopicHead:
        """The current head of a topic that has this partition. Raises UnknownTopic."""
        return self._within(timeout, lambda: self.lookup.head(partition.topic, partition.partition))

    def offsets_for_times(self, partitions: object, timeout: float | None) -> list[TopicPartition]:
        """For each partition, the first offset whose timestamp is at or after `.offset`."""
        listed = partition_list(partitions)
        asked: dict[str, list[TopicPartition]] = {}
        for tp in listed:
            if tp.offset < 0 and tp.offset not in (OFFSET_END, OFFSET_BEGINNING):
                raise InvalidConfig(
                    f"{tp.offset} is not a time in milliseconds since 1970", key="partitions"
                )
            asked.setdefault(tp.topic, []).append(tp)
        answers = self._within(
            timeout,
            lambda: {
                topic: iter(
                    self.lookup.offsets_for_times(
                        topic, [(tp.partition, tp.offset) for tp in places]
                    )
                )
                for topic, places in asked.items()
            },
        )
        results, failures = [], []
        for tp in listed:
            answer = next(answers[tp.topic])
            if isinstance(answer, UnknownTopic):
                failures.append(answer)
                results.append(TopicPartition(tp.topic, tp.partition, error=answer.error))
            else:
                results.append(TopicPartition(tp.topic, tp.partition, answer))
        if failures and len(failures) == len(results):
            raise failures[-1]
        return results

    def committed(self, partitions: object, timeout: float | None) -> list[TopicPartition]:
        """The committed offset of each partition; OFFSET_INVALID if there is none."""
        results = [TopicPartition(tp.topic, tp.partition) for tp in partition_list(partitions)]
        return self._within(timeout, lambda: self._fill_committed(results))

    def _fill_committed(self, results: list[TopicPartition]) -> list[TopicPartition]:
        heads = {
            topic: self.head(topic) for topic in dict.fromkeys(result.topic for result in results)
        }
        known: list[tuple[TopicPartition, str]] = []
        for result in results:
            head = heads[result.topic]
            if head is not None and 0 <= result.partition < head.partitions:
                known.append((result, head.topic_id))
            elif head is not None:
                result.error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        found = self.group_log.committed(
            [(result.topic, id_, result.partition) for result, id_ in known]
        )
        for (result, _), committed in zip(known, found, strict=True):
            if committed is not None:
                result.offset, result.metadata = committed.offset, committed.metadata
        return results

    def _within(self, timeout: float | None, ask: Callable[[], R]) -> R:
        try:
            return within(self._clock, checked_timeout(timeout), ask)
        except Unavailable as error:
            raise error.as_timeout() from None  # it may be the error itself
