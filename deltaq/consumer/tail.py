"""The tail of one topic's log: new entries, how many to ask for at a time, and gaps in a log that seems to end."""

from __future__ import annotations

from dataclasses import dataclass

from deltaq.clock import Clock
from deltaq.consumer.offset_reset import LogEnd
from deltaq.delta.reader import LogCleaned
from deltaq.store.parallel import REQUESTS_MAX
from deltaq.topics.log import TopicLog
from deltaq.topics.lookup import TopicLookup
from deltaq.topics.metadata import NewTopicPlan, TopicDefinition, create_topic, definition_of
from deltaq.topics.state import TopicHead

__all__ = ["LiveTopic", "TopicTail"]

ENTRIES_AT_ONCE = 256
"""Most log entries to read before records are fetched, so that a long log does not delay records already found."""

KEEPING_UP_READS = 2
"""Log reads in a row that may return all the entries they ask for while the consumer still counts as keeping up.
Asking for entries that do not exist yet can block on some stores and delays records already found."""

FAR_BEHIND_READS = 6
"""Log reads in a row that return all the (increasingly many) entries they ask for, after which the consumer counts as
far behind."""

GAP_CHECK_S = 1.0, 64.0
"""Seconds for which a topic has to be quiet before its log is listed to find a gap: the first interval and the
longest. Each interval is twice the one before."""

CREATE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class LiveTopic:
    """An existing topic, as the fetch thread read it last."""

    head: TopicHead
    definition: TopicDefinition


class TopicTail:
    """Follows the log of one topic. For the fetch thread.

    `live` is the topic in version `published`; None if it does not exist or has not been read yet.
    """

    def __init__(self, log: TopicLog, lookup: TopicLookup, clock: Clock, *, is_remote: bool) -> None:
        self.log = log
        self.live: LiveTopic | None = None
        self.published: int | None = None
        self._lookup = lookup
        self._clock = clock
        self._is_remote = is_remote
        self._is_loaded = False
        self._entries_ahead = 1  # number of entries to request in parallel
        self._full_reads = 0  # number of log reads in a row that returned all the entries they asked for
        self._end_reads = 0  # number of log reads that reached the end of the log
        self._quiet_since = 0.0
        self._next_check_s = GAP_CHECK_S[0]

    @property
    def end(self) -> LogEnd:
        """What is known of the end of the log."""
        is_open = self.log.is_end_open
        return LogEnd(self._end_reads, is_open, self._end_reads > 0 and self._full_reads == 0 and not is_open)

    def advance(self, *, needs_end: bool) -> bool:
        """Apply new log entries, and check a quiet log for gaps. Returns whether there is something to publish.

        Without `needs_end`, records of a remote store may be fetched before the end of the log is known. Raises what
        `TopicLog.load` raises.
        """
        if not self._is_loaded:
            if self._lookup.lend(self.log):
                self.log.catch_up(to_end=False)  # `check_end` proves the end once a position depends on it
            else:
                self.log.load()
            self._is_loaded = True
        try:
            self._read_entries(needs_end)
        except LogCleaned:
            self.log.load()
        # Compare with the published version: an earlier call may have applied entries and then failed.
        if self.log.version == self.published:
            self._check_quiet()
        if self.log.version == self.published:
            return False
        self._quiet_since, self._next_check_s = self._clock.monotonic(), GAP_CHECK_S[0]
        return True

    def create(self, plan: NewTopicPlan) -> None:
        """Create the topic, unless it exists. Raises what `create_topic` raises."""
        create_topic(self.log, plan, self._clock.monotonic() + CREATE_TIMEOUT_S, exist_ok=True)

    def publish(self) -> None:
        """Set `live` to the topic as read so far."""
        head = self.log.head
        self.live = None if head is None else LiveTopic(head, definition_of(self.log))
        self.published = self.log.version

    def _read_entries(self, needs_end: bool) -> None:
        """Apply new log entries.

        Requests to a remote store are slow, so entries are requested in parallel: first as many as the last call
        found, then one, because more may not exist yet, then twice as many each time while there are more.

        One log read is enough if records can be fetched without knowing the end of the log. A consumer that is far
        behind reads on first, because the files that it would fetch may have been merged since.
        """
        found, at_once = 0, self._entries_ahead
        needs_end = needs_end or not self._is_remote
        one_read = not needs_end and self._full_reads < FAR_BEHIND_READS
        while True:
            there = self.log.read_following(at_once)
            found += there
            is_at_end = there < at_once
            self._full_reads = 0 if is_at_end else self._full_reads + 1
            self._end_reads += is_at_end
            if is_at_end or one_read or found >= ENTRIES_AT_ONCE:
                break
            if self._is_remote:
                at_once = 1 if self._full_reads == 1 else min(2 * at_once, REQUESTS_MAX)
        if self._is_remote:
            is_behind = not needs_end and self._full_reads > KEEPING_UP_READS
            self._entries_ahead = min(2 * at_once if is_behind else max(1, found), REQUESTS_MAX)

    def _check_quiet(self) -> None:
        """List a log that stays quiet at growing intervals: a lost entry looks like the end of the log."""
        if self._clock.monotonic() - self._quiet_since >= self._next_check_s:
            if self.log.version >= 0:
                self.log.check_end()
            self._next_check_s = min(self._next_check_s * 2, GAP_CHECK_S[1])
            self._quiet_since = self._clock.monotonic()
