"""The tail of one topic's log: new entries, and how many to ask for at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deltaq.clock import Clock
from deltaq.consumer.offset_reset import LogEnd
from deltaq.delta.actions import Metadata
from deltaq.store import Store
from deltaq.store.parallel import REQUESTS_MAX
from deltaq.topics.follower import Polled, TopicReader
from deltaq.topics.log import TopicLog
from deltaq.topics.metadata import NewTopicPlan, TopicDefinition, create_topic, definition_of
from deltaq.topics.state import TopicHead

ENTRIES_AT_ONCE = 256
"""Most log entries to read before records are fetched, so that a long log does not delay records
already found.
"""

KEEPING_UP_READS = 2
"""Log reads in a row that may return all the entries they ask for while the consumer still counts
as keeping up. Asking for entries that do not exist yet can block on some stores and delays records
already found.
"""

FAR_BEHIND_READS = 6
"""Log reads in a row that return all the (increasingly many) entries they ask for, after which the
consumer counts as far behind.
"""

CREATE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class LiveTopic:
    """An existing topic, as the fetch thread read it last."""

    head: TopicHead
    definition: TopicDefinition
    created_ms: int


class TopicTail:
    """Follows the log of one topic for one consumer. For the fetch thread, except `ask_anew`.

    `live` is the topic in version `published`; None if it does not exist or has not been read yet.
    `log` is its log as read so far, by this consumer or another reader in the process. `rested_s`:
    how long before the last `advance` the log was read.
    """

    def __init__(self, log: TopicReader, store: Store, clock: Clock) -> None:
        self.log = log
        self.live: LiveTopic | None = None
        self.published: int | None = None
        self.rested_s = 0.0
        self._store = store
        self._clock = clock
        self._is_open = False
        self._table: Metadata | None = None  # of `live`
        # The number of the newest poll that had begun when the current wait began.
        self._asked_at = log.polls
        self._entries_ahead = 1  # number of entries to request in parallel
        # Number of log reads in a row that returned all the entries they asked for.
        self._full_reads = 0

    @property
    def end(self) -> LogEnd:
        """What is known of the end of the log."""
        log = self.log
        is_open, end_poll = log.is_end_open, log.end_poll
        return LogEnd(end_poll, log.polls, is_open, end_poll > self._asked_at and not is_open)

    def ask_anew(self) -> None:
        """From now on, what was read before does not count as the end of the log. The caller holds
        a lock.
        """
        self._asked_at = self.log.polls

    def advance(self, needs_end: Callable[[], bool]) -> bool:
        """Take over new log entries, and check a quiet log for gaps. Returns whether there is
        something to publish.

        Unless `needs_end()`, records may be fetched before the end of the log is known. Raises what
        `TopicLog.load` raises.
        """
        self.rested_s = 0.0
        if not self._is_open:
            self.log.open()
            self._is_open = True
        self._read_entries(needs_end)
        if self.log.version == self.published:
            self.log.check_quiet()
        return self.log.version != self.published

    def create(self, plan: NewTopicPlan) -> None:
        """Create the topic, unless it exists. Raises what `create_topic` raises."""
        # Not the log that others follow: they must not wait for this commit.
        log = TopicLog(self._store, self.log.topic, self._clock)
        create_topic(log, plan, self._clock.monotonic() + CREATE_TIMEOUT_S, exist_ok=True)
        self.log.catch_up()

    def publish(self) -> None:
        """Set `live` to the topic as read so far."""
        head = self.log.head
        if head is None:
            self.live = self._table = None
        else:
            table = self.log.metadata
            self.live = LiveTopic(head, self._definition(head, table), table.created_time)
            self._table = table
        self.published = self.log.version

    def _definition(self, head: TopicHead, table: Metadata) -> TopicDefinition:
        """The topic's definition. It is parsed only after a change: most entries only append
        records.
        """
        # Another position of the process may have read the same table into another object.
        if (live := self.live) is not None and (table is self._table or table == self._table):
            known = live.definition
            if known.topic_id == head.topic_id and known.partitions == head.partitions:
                return known
        return definition_of(self.log)

    def _read_entries(self, needs_end: Callable[[], bool]) -> None:
        """Take over new log entries.

        Requests to a remote store are slow, so entries are requested in parallel: first as many as
        the last call found, then one, because more may not exist yet, then twice as many each time
        while there are more.

        One log read is enough if records can be fetched without knowing the end of the log. A
        consumer that is far behind reads on first, because the files that it would fetch may have
        been merged since. So does one that finds the topic deleted, because it may have been
        created again.
        """
        found, at_once = 0, self._entries_ahead
        is_remote = self._store.is_remote
        may_fetch = not needs_end()
        one_read = may_fetch and self._full_reads < FAR_BEHIND_READS
        while True:
            before = self.log.version
            polled = self.log.poll(self._asked_at, at_once)
            found += min(at_once, self.log.version - before)
            if polled is Polled.END:
                self._full_reads = 0
                self.rested_s = self._clock.monotonic() - self.log.read_at
            elif polled is Polled.FULL:
                self._full_reads += 1
            is_enough = one_read and self.log.head is not None
            if polled is Polled.END or is_enough or found >= ENTRIES_AT_ONCE:
                break
            if is_remote and polled is Polled.FULL:
                at_once = 1 if self._full_reads == 1 else min(2 * at_once, REQUESTS_MAX)
        if is_remote:
            is_behind = may_fetch and self._full_reads > KEEPING_UP_READS
            self._entries_ahead = min(2 * at_once if is_behind else max(1, found), REQUESTS_MAX)
