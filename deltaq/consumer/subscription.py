"""What a consumer is subscribed to, from `subscribe` to `unsubscribe`, and what it holds of that for its group."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, Protocol, TypeAlias, TypeVar

from deltaq.clock import Clock
from deltaq.config import ConsumerConfig
from deltaq.consumer.assignment import Assignment
from deltaq.consumer.fetcher import Fetcher
from deltaq.errors import Fenced, InvalidConfig, KafkaError, Unavailable
from deltaq.groups.membership import Membership, Session
from deltaq.groups.offset_commits import OffsetCommitter
from deltaq.message import Message, TopicPartition, event
from deltaq.metadata import topic_names
from deltaq.names import check_topic
from deltaq.store import Store

__all__ = ["NO_MEMBER", "CallsOut", "RebalanceCallback", "Subscription", "Wanted", "is_cooperative"]

_log = logging.getLogger("deltaq.consumer")

_MATCH_AGAIN_S = 1.0
"""When to look for matching topics again if the store is away."""

NO_MEMBER = ""
"""As whom nothing can be committed: no member has an empty id."""


class CallsOut(Protocol):
    """Runs what is the application's, which may call the consumer."""

    def _call_out(self, call: Callable[[], object], /) -> None: ...


C = TypeVar("C", bound=CallsOut)
RebalanceCallback: TypeAlias = Callable[[C, list[TopicPartition]], object]


def is_cooperative(config: ConsumerConfig) -> bool:
    """Whether partitions are assigned and revoked one by one instead of all at once."""
    return config.partition_assignment_strategy == ("cooperative-sticky",)


class Wanted:
    """The topics of a subscription: `named`, and those that its regular expressions have `matched` so far."""

    def __init__(self, names: Iterable[str]) -> None:
        """Raises InvalidConfig for a name that no topic can have, and for what is no regular expression."""
        listed = list(names)
        self.named = frozenset(check_topic(name) for name in listed if not name.startswith("^"))
        self.patterns = tuple(_pattern(name) for name in listed if name.startswith("^"))
        self.matched: frozenset[str] = frozenset()

    @property
    def topics(self) -> frozenset[str]:
        """All of them."""
        return self.named | self.matched

    def match(self, existing: Iterable[str]) -> None:
        """Look at the topics that there are."""
        self.matched = frozenset(name for name in existing if any(p.search(name) for p in self.patterns))

    def is_only_matched(self, topic: str) -> bool:
        """Whether nobody asked for the topic by its name: that it is gone is no error then."""
        return topic in self.matched and topic not in self.named


class Subscription(Generic[C]):
    """One subscription of the consumer `C`, which is handed in, not kept. Used on the application's thread.

    `callbacks` are those of "assign", "revoke" and "lost" that were given. `away(error)` is told of a store that does
    not answer.
    """

    def __init__(
        self,
        wanted: Wanted,
        callbacks: Mapping[str, RebalanceCallback[C]],
        membership: Membership,
        fetcher: Fetcher,
        held: Assignment,
        committer: OffsetCommitter,
        config: ConsumerConfig,
        store: Store,
        clock: Clock,
        away: Callable[[Unavailable], None],
    ) -> None:
        self.wanted = wanted
        self.membership = membership
        self._callbacks = callbacks
        self._fetcher = fetcher
        self._held = held
        self._committer = committer
        self._auto_commit = config.enable_auto_commit
        self._refresh_ms = config.topic_metadata_refresh_interval_ms
        self._is_cooperative = is_cooperative(config)
        self._group = config.group_id
        self._store = store
        self._clock = clock
        self._away = away
        self._match_at = float("-inf")
        self._unmatched_told = False
        self._session: Session | None = None  # under which the partitions are held; None while none are
        self._partitions: list[TopicPartition] = []
        self._changes_seen = -1
        self._is_revoking = False
        self._otherwise: Callable[[], None] | None = None  # what a callback, or an interrupt, has left to be done
        self._has_ended = False

    # --- who this is in the group ---

    @property
    def session(self) -> Session | None:
        """As whom the consumer is a member now; None while it is not."""
        return self.membership.session

    def committing_member(self) -> str:
        """As whom to commit: the member that the partitions were given to, even if the consumer has become another."""
        session = self._session or self.session
        return NO_MEMBER if session is None else session.member_id

    def check_not_lost(self, group: str) -> None:
        """What was read as a member that this consumer is not any more is not its to commit. Raises Fenced."""
        if self._session is not None and self.session != self._session:
            reason = f"this consumer is no longer the member of group {group!r} that the partitions were given to"
            raise Fenced(reason, code=KafkaError._ASSIGNMENT_LOST, fatal=False)

    # --- what happens between two polls ---

    def is_quiet(self) -> bool:
        """Whether `serve` would do nothing. Counts as a poll; takes no lock."""
        session = self._session
        return (
            session is not None
            and self.membership.polled_in_time()
            and self.session is session
            and self._fetcher.changes == self._changes_seen
            and not self._otherwise
            and not (self.wanted.patterns and self._clock.monotonic() >= self._match_at)
        )

    def serve(self, consumer: C) -> Message | None:
        """Run what has to run on the application's thread: callbacks, changes of the assignment. Perhaps an event.

        Raises what a callback raises, GroupInUse, Fenced, and an Unavailable that will not mend itself.
        """
        self.membership.begin()
        if self.membership.polled():
            return event(KafkaError(KafkaError._MAX_POLL_EXCEEDED))
        self._finish_call()
        session = self.session
        if session is not self._session and self._session is not None:
            self._revoke(consumer, "lost")
        if self._has_ended:  # in that callback
            return None
        if self._session is None:
            self._raise_why()
        if session is None:
            return None
        if self.wanted.patterns and self._clock.monotonic() >= self._match_at:
            unmatched = self._match()
            if unmatched is not None:
                return unmatched
        if self._session is None or self._fetcher.changes != self._changes_seen:
            self._follow_growth(consumer, session)
        return None

    def was_assigned(self) -> None:
        """The application has assigned, or unassigned, by itself: nothing is left to do after its callback."""
        self._otherwise = None

    def end(self, consumer: C) -> None:
        """Give the partitions back and leave the group. Raises what a callback raises, when it is done."""
        try:
            self._revoke(consumer, "revoke")
        finally:
            self._has_ended = True
            self.membership.close()

    def _raise_why(self) -> None:
        """Tell why this is not a member, or ceased to be the one that it was, if there is something new to tell."""
        error = self.membership.take_error()
        if isinstance(error, Unavailable) and error.error.retriable():
            self._away(error)
        elif error is not None:
            raise error

    def _match(self) -> Message | None:
        """Look for topics that the regular expressions match, every `topic.metadata.refresh.interval.ms`; if that is
        -1, once. An event if there is none."""
        try:
            names = topic_names(self._store)
        except Unavailable as error:
            if not error.error.retriable():
                raise
            self._match_at = self._clock.monotonic() + _MATCH_AGAIN_S
            self._away(error)
            return None
        self.wanted.match(names)
        self._follow()
        self._match_at = self._clock.monotonic() + (self._refresh_ms / 1000 if self._refresh_ms >= 0 else float("inf"))
        if self.wanted.matched or self._unmatched_told:
            return None
        self._unmatched_told = True
        return event(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), self.wanted.patterns[0].pattern)

    def _follow_growth(self, consumer: C, session: Session) -> None:
        """Hold all partitions of all topics; tell the application when these have become others."""
        changes = self._fetcher.changes
        mine = self.wanted.topics
        counts = {topic: count or 0 for topic, count in self._fetcher.counts().items() if topic in mine}
        wanted = [TopicPartition(topic, partition) for topic in sorted(counts) for partition in range(counts[topic])]
        held = self._partitions
        if wanted == held or (self._session is None and not wanted):
            self._changes_seen = changes
            return
        if self._is_cooperative:
            gone = [tp for tp in held if tp not in set(wanted)]
            if gone:
                self._otherwise = lambda: self._give_up(gone)
                self._partitions = [tp for tp in held if tp not in set(gone)]
                self._call(consumer, "revoke", gone)
            new = [tp for tp in wanted if tp not in set(held)]
        else:
            self._revoke(consumer, "revoke")
            new = wanted
        if self._has_ended:  # in the callback
            return
        shown = ", ".join(f"{topic!r}: {counts[topic]}" for topic in sorted(counts))
        _log.info("partitions assigned group=%r member=%r partitions={%s}", self._group, session.member_id, shown)
        # In this order: an interrupt must not leave it said, and not done, that the partitions are held.
        self._otherwise = lambda: self._hold(new)
        self._session, self._partitions, self._changes_seen = session, wanted, changes
        self._call(consumer, "assign", new)

    def _hold(self, new: list[TopicPartition]) -> None:
        if self._is_cooperative:
            self._held.add([tp for tp in new if not self._held.holds(tp.topic, tp.partition)])
        else:
            self._held.set(new)
        self._follow()

    def _give_up(self, gone: list[TopicPartition]) -> None:
        self._held.remove(gone)
        self._follow()

    def _follow(self) -> None:
        self._held.follow(self.wanted.named, self.wanted.matched)

    def _revoke(self, consumer: C, why: str) -> None:
        """Give all partitions back, having committed what is stored unless they are lost already.

        Once, though the callback may end the subscription or close the consumer.
        """
        if self._session is None or self._is_revoking:
            return
        try:
            self._is_revoking = True
            partitions, self._partitions = self._partitions, []
            if why == "lost":
                self._call(consumer, "lost" if "lost" in self._callbacks else "revoke", partitions)
                return
            self._commit_stored()
            self._call(consumer, "revoke", partitions)
            self._commit_stored()  # what the callback has stored
        finally:
            self._is_revoking = False
            self._held.set([])
            self._session = None
            self._committer.forget()

    def _commit_stored(self) -> None:
        if self._auto_commit:
            self._committer.commit_stored()
        self._committer.finish_queued()

    def _call(self, consumer: C, name: str, partitions: list[TopicPartition]) -> None:
        """Run a rebalance callback. `_otherwise`, unless the callback does it itself, is done after it, or by the next
        call if this one is interrupted."""
        callback = self._callbacks.get(name)
        try:
            if callback is not None:
                copies = [TopicPartition(tp.topic, tp.partition) for tp in partitions]
                consumer._call_out(lambda: callback(consumer, copies))
        finally:
            self._finish_call()

    def _finish_call(self) -> None:
        if self._otherwise is not None and not self._has_ended:
            self._otherwise()
        self._otherwise = None


def _pattern(name: str) -> re.Pattern[str]:
    try:
        return re.compile(name)
    except re.error as error:
        raise InvalidConfig(f"{name!r} is not a regular expression: {error}", key="topics") from error
