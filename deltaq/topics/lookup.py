"""Looking topics up for questions that are asked now and then: offsets, ids, times."""

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
"""So long after a question, whoever goes on from where the topic was then has little to read."""


@dataclass(slots=True)
class _Known:
    """A topic that was asked about; `lock` is held by who asks. `at_rest_since`: when the last question was answered;
    None while one is, and after one that failed."""

    log: TopicLog
    lock: Lock
    at_rest_since: float | None = None


class TopicLookup:
    """Answers about topics as they are now. Thread-safe. A topic is loaded once, then followed from question to
    question."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._guard = clock.lock()  # of what is known; never held while the store is asked
        self._known: dict[str, _Known] = {}
        self.layouts = LayoutCache(store, clock)

    def head(self, topic: str, partition: int | None = None) -> TopicHead:
        """The head of a topic that has this partition. Raises UnknownTopic, Unavailable, Corrupt, Incompatible."""
        with self._current(topic) as log:
            return _checked(log.head, topic, partition)

    def offsets_for_times(self, topic: str, asked: Sequence[tuple[int, int]]) -> list[int | UnknownTopic]:
        """For each (partition, timestamp in ms) the first offset whose timestamp is at or after that, OFFSET_END if
        there is none; UnknownTopic, not raised, where there is no such partition. In place of a time, OFFSET_BEGINNING
        and OFFSET_END ask for the partition's first and next offset.

        Raises Unavailable, Corrupt, Incompatible.
        """
        asks_for_end = any(position == OFFSET_END for _, position in asked)
        with self._current(topic, to_end=asks_for_end) as log:
            answers = self._answers(log, topic, asked)
            # What was found among old records stays so, whatever follows; that there is no such record may not.
            if log.is_end_open and any(answer == OFFSET_END or isinstance(answer, UnknownTopic) for answer in answers):
                log.check_end()
                answers = self._answers(log, topic, asked)
        return answers

    def _answers(self, log: TopicLog, topic: str, asked: Sequence[tuple[int, int]]) -> list[int | UnknownTopic]:
        """What the log, as far as it is known, answers to `offsets_for_times`."""
        known = [_without_times(log.head, topic, *question) for question in asked]
        times = [question for question, answer in zip(asked, known, strict=True) if answer is None]
        try:
            found = iter(offsets_for_times(self._store, log, times, self.layouts, self._clock) if times else ())
        except UnknownTopic:  # it was deleted meanwhile
            gone = UnknownTopic(topic, code=KafkaError._UNKNOWN_PARTITION)
            return [gone if answer is None else answer for answer in known]
        return [answer if answer is not None else _or_end(next(found)) for answer in known]

    def lend(self, log: TopicLog) -> bool:
        """Bring `log` to where its topic was when somebody has just asked about it; False if nobody has.

        It keeps an index, and has yet to catch up: a topic that a program asks about, and then reads, is loaded once.
        Never waits for the store.
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
        """The topic's log at its end, for one question; unless `to_end`, at what may be a gap in it."""
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
                # The topic of another name must be told each time; an interrupt leaves the log half read.
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
    """What the head alone answers; None for the time of a record."""
    try:
        head = _checked(head, topic, partition)
    except UnknownTopic as unknown:
        return unknown
    ends = {OFFSET_BEGINNING: head.start_offsets, OFFSET_END: head.next_offsets}
    return ends[position][partition] if position in ends else None


def _or_end(offset: int | None) -> int:
    return OFFSET_END if offset is None else offset
