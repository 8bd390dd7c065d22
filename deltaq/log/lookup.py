"""Looking topics up for questions that are asked now and then: offsets, ids, times."""

from __future__ import annotations

from deltaq.clock import Clock
from deltaq.errors import KafkaError, UnknownTopic
from deltaq.log.scan import LayoutCache
from deltaq.log.time_lookup import offset_for_time
from deltaq.log.topic_log import TopicLog
from deltaq.log.topic_state import TopicHead
from deltaq.store import Store

__all__ = ["TopicLookup"]

KNOWN_S = 1.0
"""So long after a question, whoever goes on from where the topic was then has little to read."""


class TopicLookup:
    """Answers about topics as they are now. Thread-safe. A topic is loaded once, then followed from question to
    question."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = clock.lock()
        self._logs: dict[str, TopicLog] = {}
        self._looked_at: dict[str, float] = {}
        self.layouts = LayoutCache(store, clock)

    def head(self, topic: str, partition: int | None = None) -> TopicHead:
        """The head of a topic that has this partition. Raises UnknownTopic, Unavailable, Corrupt, Incompatible."""
        with self._lock:
            head = self._current(topic).head
        if head is None:
            raise UnknownTopic(topic, code=KafkaError._UNKNOWN_PARTITION)
        if partition is not None and not 0 <= partition < head.partitions:
            raise UnknownTopic(topic, partition=partition, code=KafkaError._UNKNOWN_PARTITION)
        return head

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The first offset of a partition whose timestamp is at or after a time; None if there is none.

        Raises what `head` raises.
        """
        with self._lock:
            return offset_for_time(self._store, self._current(topic), partition, timestamp_ms, self.layouts)

    def lend(self, log: TopicLog) -> bool:
        """Bring `log`, of any topic, to where that was when somebody has just asked about it; False if nobody has.

        It keeps an index, and has yet to catch up: a topic that a program asks about, and then reads, is loaded once.
        """
        with self._lock:
            known = self._logs.get(log.topic)
            looked_at = self._looked_at.get(log.topic, float("-inf"))
            if known is None or self._clock.monotonic() - looked_at > KNOWN_S:
                return False
            log.adopt(known)
            return True

    def _current(self, topic: str) -> TopicLog:
        log = self._logs.get(topic)
        if log is None:
            log = self._logs[topic] = TopicLog(self._store, topic, self._clock, indexed=True)
        self._looked_at.pop(topic, None)
        log.catch_up()
        self._looked_at[topic] = self._clock.monotonic()
        return log
