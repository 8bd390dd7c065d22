"""Occasional queries about topics: offsets, ids, times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from deltaq.clock import Clock, Lock
from deltaq.errors import InvalidConfig, KafkaError, KafkaException, UnknownTopic
from deltaq.message import OFFSET_BEGINNING, OFFSET_END
from deltaq.store import Store
from deltaq.topics.log import TopicLog
from deltaq.topics.scan import LayoutCache
from deltaq.topics.state import TopicHead
from deltaq.topics.time_lookup import offsets_for_times

__all__ = ["TopicLookup"]

KNOWN_S = 1.0
"""Seconds after a query for which its position in the log is recent enough to be lent to a reader."""


@dataclass(slots=True)
class _Known:
    """A topic that was queried. A query holds `lock`. `at_rest_since`: when the last query was answered; None during a
    query, and after one that failed."""

    log: TopicLog
    lock: Lock
    at_rest_since: float | None = None


class TopicLookup:
    """Answers queries about topics as they are now. Thread-safe. A topic's log is loaded once; later queries read only
    new entries."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._guard = clock.lock()  # guards `_known`; never held during a store request
        self._known: dict[str, _Known] = {}
        self.layouts = LayoutCache(store, clock)

    def head(self, topic: str, partition: int | None = None) -> TopicHead:
        """The head of a topic that has this partition. Raises UnknownTopic, Unavailable, Corrupt, Incompatible."""
        with self._current(topic) as log:
            return _checked(log.head, topic, partition)

    def offsets_for_times(self, topic: str, asked: Sequence[tuple[int, int]]) -> list[int | UnknownTopic]:
        """For each (partition, timestamp in ms) the first offset whose timestamp is at or after that, OFFSET_END if
        there is none. UnknownTopic is returned, not raised, for a partition that does not exist. OFFSET_BEGINNING and
        OFFSET_END, in place of a timestamp, ask for the partition's first and next offset.

        Raises Unavailable, Corrupt, Incompatible.
        """
        asks_for_end = any(position == OFFSET_END for _, position in asked)
        with self._current(topic, to_end=asks_for_end) as log:
            answers = self._answers(log, topic, asked)
            # Later entries cannot change an offset that was found. They can add what was not found.
            if log.is_end_open and any(answer == OFFSET_END or isinstance(answer, UnknownTopic) for answer in answers):
                log.check_end()
                answers = self._answers(log, topic, asked)
        return answers

    def _answers(self, log: TopicLog, topic: str, asked: Sequence[tuple[int, int]]) -> list[int | UnknownTopic]:
        """The answers of `offsets_for_times` from the log as read so far."""
        known = [_without_times(log.head, topic, *question) for question in asked]
        times = [question for question, answer in zip(asked, known, strict=True) if answer is None]
        try:
            found = iter(offsets_for_times(self._store, log, times, self.layouts, self._clock) if times else ())
        except UnknownTopic:  # deleted meanwhile
            gone = UnknownTopic(topic, code=KafkaError._UNKNOWN_PARTITION)
            return [gone if answer is None else answer for answer in known]
        return [answer if answer is not None else _or_end(next(found)) for answer in known]

    def lend(self, log: TopicLog) -> bool:
        """Move `log`, which keeps an index, to the position of a recent query; False if none was in the last KNOWN_S.

        A program that queries a topic and then reads it thus loads its log once. The caller must still catch up. Never
        waits for the store.
        """
        with self._guard:
            known = self._known.get(log.topic)
            if known is None or known.at_rest_since is None:
                return False
            if self._clock.monotonic() - known.at_rest_since > KNOWN_S:
                return False
            log.adopt(known.log)
            return True

    @contextmanager
    def _current(self, topic: str, *, to_end: bool = True) -> Iterator[TopicLog]:
        """The topic's log at its end, for one query; unless `to_end`, possibly at a gap."""
        with self._guard:
            known = self._known.get(topic)
            if known is None:
                log = TopicLog(self._store, topic, self._clock, indexed=True)
                known = self._known[topic] = _Known(log, self._clock.lock())
        with known.lock:
            with self._guard:
                known.at_rest_since = None
            try:
                known.log.catch_up(to_end=to_end)
                yield known.log
            except BaseException as error:
                # A conflict of names must be reported each time; an interrupt leaves the log half read.
                if isinstance(error, InvalidConfig) or not isinstance(error, KafkaException):
                    with self._guard:
                        self._known.pop(topic, None)
                raise
            with self._guard:
                known.at_rest_since = self._clock.monotonic()


def _checked(head: TopicHead | None, topic: str, partition: int | None) -> TopicHead:
    """The head of a topic that has this partition. Raises UnknownTopic."""
    if head is None:
        raise UnknownTopic(topic, code=KafkaError._UNKNOWN_PARTITION)
    if partition is not None and not 0 <= partition < head.partitions:
        raise UnknownTopic(topic, partition=partition, code=KafkaError._UNKNOWN_PARTITION)
    return head


def _without_times(head: TopicHead | None, topic: str, partition: int, position: int) -> int | UnknownTopic | None:
    """The answer of the head alone; None if the query is for a timestamp."""
    try:
        head = _checked(head, topic, partition)
    except UnknownTopic as unknown:
        return unknown
    ends = {OFFSET_BEGINNING: head.start_offsets, OFFSET_END: head.next_offsets}
    return ends[position][partition] if position in ends else None


def _or_end(offset: int | None) -> int:
    return OFFSET_END if offset is None else offset
