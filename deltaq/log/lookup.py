"""Looking topics up for questions that are asked now and then: offsets, ids, times."""

from __future__ import annotations

from deltaq.clock import Clock
from deltaq.log.delta_log import LogCleaned
from deltaq.log.scan import FileGone
from deltaq.log.time_lookup import offset_for_time
from deltaq.log.topic_log import TopicLog
from deltaq.log.topic_state import TopicHead
from deltaq.store import Store

__all__ = ["TopicLookup"]


class TopicLookup:
    """Answers about topics as they are now. Thread-safe. A topic is loaded once and then followed from question to question."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = clock.lock()
        self._logs: dict[str, TopicLog] = {}

    def head(self, topic: str) -> TopicHead:
        """The topic's head. Raises UnknownTopic, Unavailable, Corrupt, Incompatible."""
        with self._lock:
            return self._current(topic).live_head

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """The first offset of a partition whose timestamp is at or after a time; None if there is none. Raises like `head`."""
        with self._lock:
            while True:
                log = self._current(topic)
                try:
                    return offset_for_time(self._store, log, partition, timestamp_ms)
                except FileGone:
                    del self._logs[topic]  # compacted meanwhile: the newest snapshot has the records

    def _current(self, topic: str) -> TopicLog:
        log = self._logs.get(topic)
        if log is None:
            log = TopicLog(self._store, topic, self._clock, indexed=True)
            log.load()
            self._logs[topic] = log
            return log
        try:
            while log.read_next() is not None:
                pass
        except LogCleaned:
            log.load()
        return log
