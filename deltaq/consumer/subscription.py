"""A subscription of a consumer, from `subscribe` to `unsubscribe`, and the partitions assigned through it."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeAlias, TypeVar

from deltaq.clock import Clock
from deltaq.config import ConsumerConfig
from deltaq.consumer.reader import Reader
from deltaq.errors import Fenced, InvalidConfig, KafkaError, Unavailable
from deltaq.groups.log import GroupLog, GroupMaintenance
from deltaq.groups.membership import Membership, Session
from deltaq.groups.state import Member
from deltaq.message import Message, TopicPartition, event
from deltaq.metadata import topic_names
from deltaq.names import check_topic
from deltaq.store import Store

_log = logging.getLogger("deltaq.consumer")

_MATCH_AGAIN_S = 1.0
"""Seconds until the next try to list matching topics if the store is unavailable."""

NO_MEMBER = ""
"""A member id with which every commit is refused: no member has an empty id."""


C = TypeVar("C")
RebalanceCallback: TypeAlias = Callable[[C, list[TopicPartition]], object]


def no_callback(consumer: object, partitions: list[TopicPartition]) -> None:
    """The default of a rebalance callback: does nothing. Passing None is a TypeError, as in Kafka."""


def rebalance_callbacks(**given: RebalanceCallback[C]) -> dict[str, RebalanceCallback[C]]:
    """The callbacks that the application gave, by name. Raises TypeError for one that cannot be called."""
    for kind, callback in given.items():
        if not callable(callback):
            raise TypeError(f"on_{kind} must be callable, not {type(callback).__name__}")
    return {kind: callback for kind, callback in given.items() if callback is not no_callback}


def open_membership(
    topics: Iterable[str],
    config: ConsumerConfig,
    store: Store,
    clock: Clock,
    maintenance: GroupMaintenance | None,
    reader: Reader,
) -> Membership:
    """A membership for a consumer that wants these topics and patterns. It joins after `Membership.begin`."""
    member = Member(tuple(topics), config.client_id, socket.gethostname(), config.session_timeout_ms)
    intervals_s = config.heartbeat_interval_ms / 1000, config.max_poll_interval_ms / 1000
    # A separate GroupLog: an offset commit that waits for the store must not delay heartbeats.
    log = GroupLog(store, config.group_id, clock, config.client_id, maintenance)
    return Membership(store, log, member, *intervals_s, clock, reader.fetcher.queue.wake)


def is_cooperative(config: ConsumerConfig) -> bool:
    """Whether partitions are assigned and revoked one by one instead of all at once."""
    return config.partition_assignment_strategy == ("cooperative-sticky",)


class Wanted:
    """The topics of a subscription: those `named`, and those that its regular expressions have `matched`."""

    def __init__(self, names: Iterable[str]) -> None:
        """Raises InvalidConfig for an invalid topic name and for an invalid regular expression."""
        listed = list(names)
        self.named = frozenset(check_topic(name) for name in listed if not name.startswith("^"))
        self.patterns = tuple(_pattern(name) for name in listed if name.startswith("^"))
        self.matched: frozenset[str] = frozenset()

    @property
    def topics(self) -> frozenset[str]:
        """All topics, named and matched."""
        return self.named | self.matched

    def match(self, existing: Iterable[str]) -> None:
        """Match the regular expressions against the names of existing topics."""
        self.matched = frozenset(name for name in existing if any(p.search(name) for p in self.patterns))

    def is_only_matched(self, topic: str) -> bool:
        """Whether only a regular expression matches the topic: its deletion is then no error."""
        return topic in self.matched and topic not in self.named


class Subscription(Generic[C]):
    """One subscription. For the application's thread. The consumer `C` is passed to each call, so that the
    subscription does not keep it alive.

    `callbacks` holds the application's callbacks by name: "assign", "revoke", "lost". `call_out` runs them.
    """

    def __init__(
        self,
        wanted: Wanted,
        callbacks: Mapping[str, RebalanceCallback[C]],
        membership: Membership,
        reader: Reader,
        config: ConsumerConfig,
        store: Store,
        clock: Clock,
        call_out: Callable[[Callable[[], object]], None],
    ) -> None:
        self.wanted = wanted
        self.membership = membership
        self._callbacks = callbacks
        self._fetcher = reader.fetcher
        self._held = reader.held
        self._committer = reader.committer
        self._events = reader.events
        self._auto_commit = config.enable_auto_commit
        self._refresh_ms = config.topic_metadata_refresh_interval_ms
        self._is_cooperative = is_cooperative(config)
        self._group = config.group_id
        self._store = store
        self._clock = clock
        self._call_out = call_out
        self._match_at = float("-inf")
        self._unmatched_reported = False
        self._session: Session | None = None  # the session that the partitions were assigned in; None without any
        self._partitions: list[TopicPartition] = []
        self._changes_seen = -1
        self._is_revoking = False
        self._default_action: Callable[[], None] | None = None  # the default action, if no callback has done it itself
        self._has_ended = False

    # --- membership ---

    @property
    def session(self) -> Session | None:
        """The consumer's current session in the group; None while it is not a member."""
        return self.membership.session

    def committing_member(self) -> str:
        """The member id to commit with: that of the session in which the partitions were assigned, even if the
        consumer has joined again since."""
        session = self._session or self.session
        return NO_MEMBER if session is None else session.member_id

    def check_not_lost(self, group: str) -> None:
        """Raise Fenced if the session in which the partitions were assigned has ended: its offsets must not be
        committed, because another member may have read on from there."""
        if self._session is not None and self.session != self._session:
            reason = f"this consumer is no longer the member of group {group!r} that got the partitions"
            raise Fenced(reason, code=KafkaError._ASSIGNMENT_LOST, fatal=False)

    # --- work between two polls ---

    def is_quiet(self) -> bool:
        """Whether `serve` would do nothing. Counts as a poll; takes no lock."""
        session = self._session
        return (
            session is not None
            and self.membership.polled_in_time()
            and self.session is session
            and self._fetcher.changes == self._changes_seen
            and not self._default_action
            and not (self.wanted.patterns and self._clock.monotonic() >= self._match_at)
        )

    def serve(self, consumer: C) -> Message | None:
        """Do the work that belongs to the application's thread: callbacks and changes of the assignment.

        Returns an event for the application, or None. Raises what a callback raises, GroupInUse, Fenced, and an
        Unavailable that is not retriable.
        """
        self.membership.begin()
        if self.membership.polled():
            return event(KafkaError(KafkaError._MAX_POLL_EXCEEDED))
        self._finish_call()
        session = self.session
        if session is not self._session and self._session is not None:
            self._revoke(consumer, "lost")
        if self._has_ended:  # the callback has ended the subscription
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
        """The application's callback has changed the assignment itself, so the default action is not done."""
        self._default_action = None

    def end(self, consumer: C) -> None:
        """Revoke the partitions and leave the group. Then raises what a callback has raised."""
        try:
            self._revoke(consumer, "revoke")
        finally:
            self._has_ended = True
            self.membership.close()

    def _raise_why(self) -> None:
        """Raise or report the reason why the consumer is not a member, or lost its session, if it is new."""
        error = self.membership.take_error()
        if isinstance(error, Unavailable) and error.error.retriable():
            self._events.store_unavailable(error)
        elif error is not None:
            raise error

    def _match(self) -> Message | None:
        """List the topics that the regular expressions match. Returns an event, once, if there is none.

        Runs every `topic.metadata.refresh.interval.ms`, or only once if that is -1.
        """
        try:
            names = topic_names(self._store)
        except Unavailable as error:
            if not error.error.retriable():
                raise
            self._match_at = self._clock.monotonic() + _MATCH_AGAIN_S
            self._events.store_unavailable(error)
            return None
        self.wanted.match(names)
        self._follow()
        self._match_at = self._clock.monotonic() + (self._refresh_ms / 1000 if self._refresh_ms >= 0 else float("inf"))
        if self.wanted.matched or self._unmatched_reported:
            return None
        self._unmatched_reported = True
        return event(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), self.wanted.patterns[0].pattern)

    def _follow_growth(self, consumer: C, session: Session) -> None:
        """Assign all partitions of all topics, and run the rebalance callbacks when they have changed."""
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
                self._default_action = lambda: self._give_up(gone)
                self._partitions = [tp for tp in held if tp not in set(gone)]
                self._call(consumer, "revoke", gone)
            new = [tp for tp in wanted if tp not in set(held)]
        else:
            self._revoke(consumer, "revoke")
            new = wanted
        if self._has_ended:  # a callback has ended the subscription
            return
        shown = ", ".join(f"{topic!r}: {counts[topic]}" for topic in sorted(counts))
        _log.info("partitions assigned group=%r member=%r partitions={%s}", self._group, session.member_id, shown)
        # In this order: an interrupt must not leave partitions that count as assigned but are not read.
        self._default_action = lambda: self._hold(new)
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
        """Revoke all partitions. Commits stored offsets first, unless the partitions are lost already.

        Does nothing when called again from the callback, which may end the subscription or close the consumer.
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
            self._commit_stored()  # offsets that the callback has stored
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
        """Run a rebalance callback, then the default action unless the callback has done it itself.

        If the callback is interrupted before that, the next call does the default action.
        """
        callback = self._callbacks.get(name)
        try:
            if callback is not None:
                copies = [TopicPartition(tp.topic, tp.partition) for tp in partitions]
                self._call_out(lambda: callback(consumer, copies))
        finally:
            self._finish_call()

    def _finish_call(self) -> None:
        if self._default_action is not None and not self._has_ended:
            self._default_action()
        self._default_action = None


def _pattern(name: str) -> re.Pattern[str]:
    try:
        return re.compile(name)
    except re.error as error:
        raise InvalidConfig(f"{name!r} is not a regular expression: {error}", key="topics") from error
