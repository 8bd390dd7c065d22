"""A subscription of a consumer, from `subscribe` to `unsubscribe`, and the partitions assigned through it."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeAlias, TypeVar

from deltaq.clock import Clock
from deltaq.config import ConsumerConfig
from deltaq.consumer.reader import Reader
from deltaq.consumer.wanted import Wanted
from deltaq.errors import Fenced, KafkaError, KafkaException, Unavailable, WrongState
from deltaq.groups.fencing import NO_MEMBER, Claim
from deltaq.groups.log import GroupLog
from deltaq.groups.membership import Membership
from deltaq.groups.offset_commits import HandOver
from deltaq.groups.poll_lease import PollLease
from deltaq.groups.rebalance import Strategies, left, released
from deltaq.groups.session import Candidate, GroupView
from deltaq.groups.state import GroupHead, Key, Member, by_topic
from deltaq.message import Message, TopicPartition, event
from deltaq.store import Store
from deltaq.topics.listing import topic_names

_log = logging.getLogger("deltaq.consumer")

_MATCH_AGAIN_S = 1.0
"""Seconds until the next try to list matching topics if the store is unavailable."""

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
    group_log: GroupLog,
    reader: Reader,
    strategies: Strategies,
) -> Membership:
    """A membership for a consumer that wants these topics and patterns. It joins after `Membership.begin`."""
    member = Member(
        tuple(topics),
        config.client_id,
        socket.gethostname(),
        config.session_timeout_ms,
        config.max_poll_interval_ms,
        config.group_instance_id,
        tuple((name, "") for name in strategies.assignors),
    )
    # A client of its own: an offset commit that waits for the store must not delay heartbeats.
    log, interval_s = group_log.sibling(), config.heartbeat_interval_ms / 1000
    sharing = reader.committer if store.is_remote else None  # on local disk an entry of each member costs little
    candidate = Candidate(store, log, member, strategies, interval_s, clock, sharing)
    return Membership(candidate, config.max_poll_interval_ms / 1000, reader.fetcher.queue.wake)


class Subscription(Generic[C]):
    """One subscription. For the application's thread. The consumer `C` is passed to each call, so that the
    subscription does not keep it alive.

    `callbacks` holds the application's callbacks by name: "assign", "revoke", "lost". `call_out` runs them. While
    `lease` lasts, `serve` would do nothing; a poll that goes by it sets its `polled_at`.
    """

    def __init__(
        self,
        wanted: Wanted,
        callbacks: Mapping[str, RebalanceCallback[C]],
        membership: Membership,
        strategies: Strategies,
        reader: Reader,
        config: ConsumerConfig,
        store: Store,
        clock: Clock,
        call_out: Callable[[Callable[[], object]], None],
    ) -> None:
        self.wanted = wanted
        self.membership = membership
        self.lease = membership.lease
        self._strategies = strategies
        self._callbacks = callbacks
        self._fetcher = reader.fetcher
        self._queue = reader.fetcher.queue
        self._held = reader.held
        self._committer = reader.committer
        self._events = reader.events
        self._auto_commit = config.enable_auto_commit
        self._refresh_ms = config.topic_metadata_refresh_interval_ms
        self._group = config.group_id
        self._store = store
        self._uptime = clock.uptime
        self._call_out = call_out
        self._match_at = float("-inf" if wanted.patterns else "inf")  # `Clock.uptime`
        self._unmatched_reported = False
        self._view: GroupView | None = None  # the view that the assignment follows; None without an assignment
        self._released: GroupView | None = None  # the last view whose partitions were released where it says so
        self._claim = NO_MEMBER  # on whose behalf records were read last
        self._partitions: frozenset[Key] = frozenset()
        self._has_called_assign = False  # in this assignment, maybe without partitions
        self._changes_written = -1
        self._is_revoking = False
        self._default_action: Callable[[], None] | None = None  # the default action, if no callback has done it itself
        self._is_giving_up = False  # the default action releases partitions
        self._has_ended = False

    # --- membership ---

    @property
    def view(self) -> GroupView | None:
        """The group as the consumer sees it; None while it is not a member."""
        return self.membership.view

    def claim(self) -> Claim:
        """On whose behalf to commit: the member that got the partitions, even if it has joined again since."""
        view = self.view
        return self._claim if self.has_joined or view is None else view.claim

    @property
    def has_joined(self) -> bool:
        """Whether partitions were assigned to the consumer as a member, so that it may have read records."""
        return self._claim is not NO_MEMBER

    def check_not_replaced(self, group: str) -> None:
        """Raise Fenced (_FATAL) if another consumer has taken the place of this one, which can only be closed: two
        consumers that subscribe again whenever they are replaced would replace each other for ever."""
        if self.membership.is_replaced:
            reason = f"another consumer has joined group {group!r} with the same group.instance.id: close this one"
            raise Fenced(reason, code=KafkaError._FATAL)

    def check_not_lost(self, group: str) -> None:
        """Raise Fenced if the session in which the partitions were assigned has ended: its offsets must not be
        committed, because another member may have read on from there."""
        self.check_not_replaced(group)
        if self._is_lost(self.view):
            reason = f"this consumer is no longer the member of group {group!r} that got the partitions"
            raise Fenced(reason, code=KafkaError._ASSIGNMENT_LOST, fatal=False)

    def _is_lost(self, view: GroupView | None) -> bool:
        return self._view is not None and (view is None or view.member_id != self._view.member_id)

    # --- work between two polls ---

    def serve(self, consumer: C) -> Message | None:
        """Do the work that belongs to the application's thread: callbacks and changes of the assignment.

        Returns an event for the application, or None. Raises what a callback raises, Corrupt, Incompatible, and an
        Unavailable that is not retriable.
        """
        self.lease.end()
        session = self.membership.session
        lease = PollLease(min(session.heartbeat.silent_at, self._match_at), self._uptime())
        self.membership.lease = self._queue.lease = lease
        raised = self._serve(consumer)
        is_following = self._view is not None and session.view is self._view
        if is_following and self._fetcher.changes == self._changes_written and not (raised or self._default_action):
            self.lease = lease
        return raised

    def _serve(self, consumer: C) -> Message | None:
        self.membership.begin()
        if self.membership.polled():
            return event(KafkaError(KafkaError._MAX_POLL_EXCEEDED))
        self._finish_call()
        view = self.view
        if self._is_lost(view):
            self._lose(consumer)
        if self._has_ended:  # the callback has ended the subscription
            return None
        if self._view is None:
            refused = self._why_not_a_member()
            if refused is not None:
                return refused
        if self._uptime() >= self._match_at:
            unmatched = self._match()
            if unmatched is not None:
                return unmatched
        if self._fetcher.changes != self._changes_written or self._view is None:
            self._set_sizes()
        if view is not None and view is not self._view:
            self._follow_group(consumer, view)
        return None

    def check_incremental(self, what: str) -> None:
        """Raise WrongState if the partitions are assigned all at once: `what` is "assign" or "unassign"."""
        if not self._strategies.is_cooperative:
            reason = f"incremental_{what}() needs partition.assignment.strategy cooperative-sticky: call {what}()"
            raise WrongState(reason)

    def was_assigned(self) -> None:
        """The application's callback has changed the assignment itself, so the default action is not done. What the
        group takes away is released nevertheless: otherwise it would never have another owner."""
        if not self._is_giving_up:
            self._default_action = None

    def end(self, consumer: C, *, keeps_place: bool) -> None:
        """Revoke the partitions and leave the group; with `keeps_place`, a member with a `group.instance.id` stays in
        it. Then raises what a callback has raised."""
        self.membership.keeps_place &= keeps_place
        try:
            self._revoke_all(consumer, self._leave)
        finally:
            self._has_ended = True
            self.membership.close()

    def _why_not_a_member(self) -> Message | None:
        """Report or raise the reason why the consumer is not a member, or lost its session, if it is new.

        As in Kafka, a consumer that was removed joins again, which `on_lost` tells the application. An event says that
        the group refuses it: by INCONSISTENT_GROUP_PROTOCOL, or for good by _FATAL.
        """
        error = self.membership.take_error()
        if error is None:
            return None
        reason = error.error
        if isinstance(error, Fenced):
            return event(KafkaError(KafkaError._FATAL, reason.str(), fatal=True)) if reason.fatal() else None
        if reason.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL:
            return event(reason)
        if isinstance(error, Unavailable) and reason.retriable():
            self._events.store_unavailable(error)
            return None
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
            self._match_at = self._uptime() + _MATCH_AGAIN_S
            self._events.store_unavailable(error)
            return None
        self.wanted.match(names)
        self._follow()
        self._match_at = self._uptime() + (self._refresh_ms / 1000 if self._refresh_ms >= 0 else float("inf"))
        if self.wanted.matched or self._unmatched_reported:
            return None
        self._unmatched_reported = True
        return event(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), self.wanted.patterns[0].pattern)

    def _set_sizes(self) -> None:
        """Tell the group the sizes of the topics, once all topics were looked at."""
        changes = self._fetcher.changes
        mine = self.wanted.topics
        sizes = {topic: size for topic, size in self._fetcher.sizes().items() if topic in mine}
        known = {topic: size for topic, size in sizes.items() if size is not None}
        if len(known) == len(mine):
            self.membership.set_sizes(known)
            self._changes_written = changes

    # --- the assignment ---

    def _follow_group(self, consumer: C, view: GroupView) -> None:
        """Follow what the group's log says of this member, and run the rebalance callbacks."""
        if self._strategies.is_cooperative:
            self._follow_incrementally(consumer, view)
        else:
            self._follow_eagerly(consumer, view)

    def _follow_eagerly(self, consumer: C, view: GroupView) -> None:
        """In each new generation revoke all partitions, and assign the new ones once this member owns all of them."""
        if self._view is None and view is not self._released:
            self._release(view.owned - view.assigned)
        if self._view is not None and view.generation != self._view.generation:
            self._revoke_all(consumer, lambda: self._release(view.owned - view.assigned))
        self._released = view
        if self._view is not None:  # only what others own has changed
            self._view = view
        elif view.assigned <= view.owned and not self._has_ended:
            self._assign(consumer, view, view.assigned)

    def _follow_incrementally(self, consumer: C, view: GroupView) -> None:
        """Revoke what is no longer assigned, then assign what is new. What stays is not interrupted."""
        gone = self._partitions - view.assigned
        if unheld := view.owned - view.assigned - gone:
            self._release(unheld)
        if gone:
            self._commit_before_callback("revoke")
            self._default_action, self._is_giving_up = lambda: self._give_up(gone), True
            self._call(consumer, "revoke", gone)
        if self._has_ended:  # the callback has ended the subscription
            return
        before = self._view
        new = (view.assigned & view.owned) - self._partitions
        if new or before is None or view.generation != before.generation:
            self._assign(consumer, view, new)
        else:
            self._view = view

    def _assign(self, consumer: C, view: GroupView, new: frozenset[Key]) -> None:
        is_first = self._view is None
        # In this order: an interrupt must not leave partitions that count as assigned but are not read.
        self._default_action, self._is_giving_up = lambda: self._hold(new), False
        self._view, self._claim = view, view.claim
        self._partitions = self.membership.held = self._partitions | new
        if new or not is_first or any(size and size.partitions for size in self._fetcher.sizes().values()):
            shown = self._group, view.member_id, by_topic(new)
            _log.info("partitions assigned group=%r member=%r partitions=%s", *shown)
            self._has_called_assign = True
            self._call(consumer, "assign", new)

    def _hold(self, new: frozenset[Key]) -> None:
        partitions = _listed(new)
        if self._strategies.is_cooperative:
            self._held.add([tp for tp in partitions if not self._held.holds(tp.topic, tp.partition)])
        else:
            self._held.set(partitions)
        self._follow()

    def _give_up(self, gone: frozenset[Key]) -> None:
        self._partitions -= gone
        try:
            self._release(gone)
        finally:
            self.membership.held = self._partitions
            self._held.remove(_listed(key for key in gone if self._held.holds(*key)))
            self._follow()

    def _follow(self) -> None:
        self._held.follow(self.wanted.named, self.wanted.matched)

    def _lose(self, consumer: C) -> None:
        """The partitions are lost: the group has given them to others, or may have."""
        self._end_assignment(
            lambda: self._call(consumer, "lost" if "lost" in self._callbacks else "revoke", self._drop())
        )

    def _revoke_all(self, consumer: C, hand_over: Callable[[], None]) -> None:
        """Revoke all partitions, and hand them over with the stored offsets in the same entry.

        Does nothing when called again from the callback, which may end the subscription or close the consumer.
        """

        def revoke() -> None:
            self._commit_before_callback("revoke")
            try:
                partitions, is_eager = self._drop(), not self._strategies.is_cooperative
                if partitions or (is_eager and self._has_called_assign):  # as librdkafka, in pairs
                    self._call(consumer, "revoke", partitions)
            finally:
                hand_over()

        self._end_assignment(revoke)

    def _drop(self) -> frozenset[Key]:
        dropped, self._partitions = self._partitions, frozenset()
        return dropped

    def _end_assignment(self, end: Callable[[], None]) -> None:
        if self._view is None or self._is_revoking:
            return
        try:
            self._is_revoking = True
            end()
        finally:
            self._is_revoking = self._has_called_assign = False
            self.membership.held = self._partitions
            self._held.set([])
            self._view = None
            self._committer.forget()

    def _commit_before_callback(self, name: str) -> None:
        """Commit what is stored: the callback may end the assignment, and the stored offsets with it."""
        if name in self._callbacks and self._auto_commit:
            self._committer.commit_stored()

    def _release(self, keys: frozenset[Key]) -> None:
        def plan(head: GroupHead, claim: Claim) -> GroupHead | None:
            mine = keys & head.to_release(claim.member_id)
            return released(head, claim.member_id, mine, self._strategies) if mine else None

        if not keys:
            if self._view is not None:
                self._commit_stored()
        else:
            self._hand_over("RELEASE", plan)  # else the membership does it later

    def _leave(self) -> None:
        def plan(head: GroupHead, claim: Claim) -> GroupHead | None:
            return left(head, {claim.member_id}, self._strategies)

        if self.membership.keeps_place:
            self._commit_stored()
        else:
            self.membership.begin_to_leave()
            self._hand_over("LEAVE", plan)  # else the membership leaves as it closes

    def _hand_over(self, operation: str, plan: HandOver) -> None:
        """Change the membership, with the stored offsets in the same entry."""
        try:
            self._committer.hand_over(operation, plan, commit_stored=self._auto_commit)
        except KafkaException as error:
            _log.warning("partitions not released yet group=%r reason=%s", self._group, error)

    def _commit_stored(self) -> None:
        if self._auto_commit:
            self._committer.commit_stored()
        self._committer.finish_queued()

    def _call(self, consumer: C, name: str, keys: frozenset[Key]) -> None:
        """Run a rebalance callback, then the default action unless the callback has done it itself.

        If the callback is interrupted before that, the next call does the default action.
        """
        callback = self._callbacks.get(name)
        try:
            if callback is not None:
                self._call_out(lambda: callback(consumer, _listed(keys)))
        finally:
            self._finish_call()

    def _finish_call(self) -> None:
        if self._default_action is not None and not self._has_ended:
            self._default_action()
        self._default_action = None


def _listed(keys: Iterable[Key]) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for topic, partition in sorted(keys)]
