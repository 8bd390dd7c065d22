"""The topics that a consumer subscribes to, by name and by regular expression."""

from __future__ import annotations

import re
from collections.abc import Iterable

from deltaq.clock import Clock
from deltaq.config import ConsumerConfig
from deltaq.consumer.reader import Reader
from deltaq.errors import InvalidConfig, KafkaError, Unavailable
from deltaq.groups.membership import Membership
from deltaq.groups.session import MemberTopics
from deltaq.message import Message, event
from deltaq.names import check_topic
from deltaq.store import Store
from deltaq.topics.listing import topic_names

_MATCH_AGAIN_S = 1.0
"""Seconds until the next try to list matching topics if the store is unavailable."""


class SubscriptionTopics:
    """The topics of a subscription: those `named`, and those that its regular expressions have
    `matched`. `names` are the names and expressions as they were given, sorted. `subscription`
    counts the calls of `subscribe`.
    """

    def __init__(self, names: Iterable[str], subscription: int = 0) -> None:
        """Raises InvalidConfig for an invalid topic name and for an invalid regular expression."""
        listed = list(names)
        self.subscription = subscription
        self.names = tuple(sorted(listed))
        self.named = frozenset(check_topic(name) for name in listed if not name.startswith("^"))
        self.patterns = tuple(_pattern(name) for name in listed if name.startswith("^"))
        self.matched: frozenset[str] = frozenset()

    @property
    def topics(self) -> frozenset[str]:
        """All topics, named and matched."""
        return self.named | self.matched

    def match(self, existing: Iterable[str]) -> None:
        """Match the regular expressions against the names of existing topics."""
        self.matched = self.matching(existing)

    def matching(self, existing: Iterable[str]) -> frozenset[str]:
        """Those of the existing topics that the regular expressions match."""
        return frozenset(name for name in existing if any(p.search(name) for p in self.patterns))

    def is_only_matched(self, topic: str) -> bool:
        """Whether only a regular expression matches the topic: its deletion is then no error."""
        return topic in self.matched and topic not in self.named


class MetadataRefresh:
    """Keeps the topics of one subscription up to date, and their partition counts in the group. For
    the application's thread.

    `match_at` is when the regular expressions are matched next, a time of `Clock.uptime`.
    """

    def __init__(
        self,
        wanted: SubscriptionTopics,
        membership: Membership,
        reader: Reader,
        config: ConsumerConfig,
        store: Store,
        clock: Clock,
    ) -> None:
        self._wanted = wanted
        self._membership = membership
        self._fetcher = reader.fetcher
        self._held = reader.held
        self._events = reader.events
        refresh_ms = config.topic_metadata_refresh_interval_ms
        self._refresh_s = refresh_ms / 1000 if refresh_ms >= 0 else float("inf")
        self._listing_lock = clock.lock()
        self._has_matched = False  # in a poll
        self._first_listed: tuple[list[str], float] | None = None  # before that
        self._store = store
        self._uptime = clock.uptime
        self.match_at = float("-inf" if wanted.patterns else "inf")
        self._is_unmatched_reported = False
        self._changes_written = -1  # `Fetcher.changes` when the membership got the partition counts

    def match(self) -> Message | None:
        """Match the regular expressions if that is due: every `topic.metadata.refresh.interval.ms`,
        or only once if that is -1. Returns an event, once, if there is no such topic. Raises an
        Unavailable that is not retriable.
        """
        if self._uptime() < self.match_at:
            return None
        try:
            names, listed_at = self._listing()
        except Unavailable as error:
            if not error.error.retriable():
                raise
            self.match_at = self._uptime() + _MATCH_AGAIN_S
            self._events.store_unavailable(error)
            return None
        self._wanted.match(names)
        self._held.follow(self._wanted.named, self._wanted.matched)
        self.match_at = listed_at + self._refresh_s
        if self._wanted.matched or self._is_unmatched_reported:
            return None
        self._is_unmatched_reported = True
        return event(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), self._wanted.patterns[0].pattern)

    def first_topics(self) -> MemberTopics | None:
        """What to join the group with before the first poll; None while the partition counts are
        not known. For the membership's thread. Raises Unavailable.
        """
        topics = self._wanted.named
        if self._wanted.patterns:
            with self._listing_lock:
                if self._has_matched:
                    return None  # the polls set the partition counts
                if self._first_listed is None:
                    self._first_listed = topic_names(self._store), self._uptime()
                topics |= self._wanted.matching(self._first_listed[0])
                self._fetcher.follow_also(topics)
        return self._with_counts(topics)

    def _listing(self) -> tuple[list[str], float]:
        """The names of all topics, and when they were listed. The first poll takes what was listed
        before it, unless that is old.
        """
        with self._listing_lock:
            self._has_matched, listed, self._first_listed = True, self._first_listed, None
        if listed is not None and self._uptime() < listed[1] + self._refresh_s:
            return listed
        return topic_names(self._store), self._uptime()

    @property
    def are_counts_written(self) -> bool:
        """Whether the membership has got the partition counts since the last change."""
        return self._fetcher.changes == self._changes_written

    def write_counts(self) -> None:
        """Let the membership have the topics with their partition counts, once all were looked at.
        The consumer must have given up the partitions of topics that the subscription leaves out.
        """
        changes = self._fetcher.changes
        known = self._with_counts(self._wanted.topics)
        if known is not None:
            self._membership.set_topics(known)
            self._changes_written = changes

    def _with_counts(self, topics: frozenset[str]) -> MemberTopics | None:
        found = self._fetcher.partition_counts()
        partition_counts = {
            topic: size for topic in topics if (size := found.get(topic)) is not None
        }
        known = MemberTopics(self._wanted.subscription, self._wanted.names, partition_counts)
        return known if len(partition_counts) == len(topics) else None


_POSIX_CLASS = re.compile(r"\[:\w+:\]")
"""Such as `[[:digit:]]`, which librdkafka knows. For Python it is a set of characters that no
topic's name has.
"""


def _pattern(name: str) -> re.Pattern[str]:
    if _POSIX_CLASS.search(name):
        reason = (
            f"{name!r} has a POSIX class: it must be a regular expression of Python, such as [0-9] "
            "for [[:digit:]]"
        )
        raise InvalidConfig(reason, key="topics")
    try:
        return re.compile(name)
    except re.error as error:
        raise InvalidConfig(
            f"{name!r} is not a regular expression: {error}", key="topics"
        ) from error
