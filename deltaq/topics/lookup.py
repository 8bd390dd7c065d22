"""Occasional queries about topics: offsets, ids, times."""

from __future__ import annotations

from collections.abc import Sequence

from deltaq.clock import Clock
from deltaq.errors import KafkaError, UnknownTopic
from deltaq.message import OFFSET_BEGINNING, OFFSET_END
from deltaq.store import Store
from deltaq.topics.follower import TopicReader, topic_reader
from deltaq.topics.layout_cache import LayoutCache
from deltaq.topics.state import TopicHead
from deltaq.topics.time_lookup import offsets_for_times, times_from


class TopicLookup:
    """Answers queries about topics as they are now. Thread-safe. A topic's log is loaded once;
    later queries read only new entries.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._kept: dict[str, TopicReader] = {}  # keeps what was read for later queries
        self.layouts = LayoutCache(store, clock)

    def head(self, topic: str, partition: int | None = None) -> TopicHead:
        """The head of a topic that has this partition. Raises UnknownTopic, Unavailable, Corrupt,
        Incompatible.
        """
        reader = self._reader(topic)
        reader.catch_up()
        return _checked(reader.head, topic, partition)

    def offsets_for_times(
        self, topic: str, asked: Sequence[tuple[int, int]]
    ) -> list[int | UnknownTopic]:
        """For each (partition, timestamp in ms) the first offset whose timestamp is at or after
        that, OFFSET_END if there is none. UnknownTopic is returned, not raised, for a partition
        that does not exist. OFFSET_BEGINNING and OFFSET_END, in place of a timestamp, ask for the
        partition's first and next offset.

        Raises Unavailable, Corrupt, Incompatible.
        """
        reader = self._reader(topic)
        reader.catch_up(to_end=any(position == OFFSET_END for _, position in asked))
        answers = self._answers(reader, asked)
        # Later entries cannot change an offset that was found. They can add what was not found.
        if reader.is_end_open and any(
            answer == OFFSET_END or isinstance(answer, UnknownTopic) for answer in answers
        ):
            reader.check_end()
            answers = self._answers(reader, asked)
        return answers

    def times_from(self, topic: str, asked: Sequence[tuple[int, int]]) -> list[int | None]:
        """For each (partition, offset) the timestamp in ms of the first record at the offset or
        after it; None if there is none. Raises UnknownTopic, Unavailable, Corrupt, Incompatible.
        """
        reader = self._reader(topic)
        reader.catch_up()
        _checked(reader.head, topic, None)
        return times_from(self._store, reader, asked, self._clock)

    def _reader(self, topic: str) -> TopicReader:
        """A reader for one query, since queries of several threads may run at once."""
        reader = topic_reader(self._store, topic, self._clock)
        self._kept.setdefault(topic, reader)
        return reader

    def _answers(
        self, reader: TopicReader, asked: Sequence[tuple[int, int]]
    ) -> list[int | UnknownTopic]:
        """The answers of `offsets_for_times` from the log as read so far."""
        topic = reader.topic
        known = [_without_times(reader.head, topic, *question) for question in asked]
        times = [question for question, answer in zip(asked, known, strict=True) if answer is None]
        try:
            found = iter(
                offsets_for_times(self._store, reader, times, self.layouts, self._clock)
                if times
                else ()
            )
        except UnknownTopic:  # deleted meanwhile
            gone = UnknownTopic(topic, code=KafkaError._UNKNOWN_PARTITION)
            return [gone if answer is None else answer for answer in known]
        return [answer if answer is not None else _or_end(next(found)) for answer in known]


def _checked(head: TopicHead | None, topic: str, partition: int | None) -> TopicHead:
    """The head of a topic that has this partition. Raises UnknownTopic."""
    if head is None:
        raise UnknownTopic(topic, code=KafkaError._UNKNOWN_PARTITION)
    if partition is not None and not 0 <= partition < head.partitions:
        raise UnknownTopic(topic, partition=partition, code=KafkaError._UNKNOWN_PARTITION)
    return head


def _without_times(
    head: TopicHead | None, topic: str, partition: int, position: int
) -> int | UnknownTopic | None:
    """The answer of the head alone; None if the query is for a timestamp."""
    try:
        head = _checked(head, topic, partition)
    except UnknownTopic as unknown:
        return unknown
    ends = {OFFSET_BEGINNING: head.start_offsets, OFFSET_END: head.next_offsets}
    return ends[position][partition] if position in ends else None


def _or_end(offset: int | None) -> int:
    return OFFSET_END if offset is None else offset
