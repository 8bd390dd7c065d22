"""What a consumer reads: by `assign`, or by a subscription, from `subscribe` to `unsubscribe`, with
what that does between two polls.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Generic, TypeVar

from deltaq.clock import Clock
from deltaq.config import ConsumerConfig
from deltaq.consumer.calls import CallGuard, ConsumerLifecycle
from deltaq.consumer.reader import Reader
from deltaq.consumer.reconciliation import RebalanceCallback, Reconciler
from deltaq.consumer.subscription_topics import MetadataRefresh, SubscriptionTopics
from deltaq.errors import Fenced, KafkaError, Unavailable, WrongState
from deltaq.groups.log import GroupLog
from deltaq.groups.membership import Membership, PollLease
from deltaq.groups.rebalance import Strategies
from deltaq.groups.session import GroupView, MemberSettings, MemberTopics
from deltaq.groups.state import NO_MEMBER, Member, MemberIdentity
from deltaq.message import Message, event
from deltaq.store import Store
from deltaq.weak import weakly

C = TypeVar("C")


class Subscription(Generic[C]):
    """One subscription. For the application's thread. The consumer `C` is passed to each call, so
    that the subscription does not keep it alive.

    The consumer joins its group after `membership.begin`. `is_ending` is whether `end` was called.
    While `lease` lasts, `serve` would do nothing; a poll that goes by it sets its `polled_at`.
    """

    def __init__(
        self,
        wanted: SubscriptionTopics,
        callbacks: Mapping[str, RebalanceCallback[C]],
        call_out: Callable[[Callable[[], object]], None],
        group_log: GroupLog,
        strategies: Strategies,
        reader: Reader,
        config: ConsumerConfig,
        store: Store,
        clock: Clock,
    ) -> None:
        # The callbacks may hold the consumer, and a thread this.
        first_topics = weakly(self._first_topics, None)
        membership = _membership(group_log, strategies, reader, config, store, clock, first_topics)
        self.wanted = wanted
        self.membership = membership
        self.lease = membership.lease
        self.is_ending = False
        self._refresh_of = partial(
            MetadataRefresh,
            membership=membership,
            reader=reader,
            config=config,
            store=store,
            clock=clock,
        )
        self._topics = self._refresh_of(wanted)
        self._reconciler = Reconciler(
            wanted, callbacks, call_out, membership, strategies, reader, config
        )
        self._queue = reader.fetcher.queue
        self._events = reader.events
        self._group = config.group_id
        self._uptime = clock.uptime

    # --- membership ---

    def _first_topics(self) -> MemberTopics | None:
        return self._topics.first_topics()

    @property
    def view(self) -> GroupView | None:
        """The group as the consumer sees it; None while it is not a member."""
        return self.membership.view

    def identity(self) -> MemberIdentity:
        """On whose behalf to commit: the member that got the partitions, even if it has joined
        again since. For any thread.
        """
        view = self.view
        return self._reconciler.identity if self.has_joined or view is None else view.identity

    @property
    def has_joined(self) -> bool:
        """Whether partitions were assigned to the consumer as a member, so that it may have read
        records.
        """
        return self._reconciler.identity is not NO_MEMBER

    def check_not_replaced(self) -> None:
        """Raise Fenced (_FATAL) if another consumer has taken the place of this one, which can only
        be closed: two consumers that subscribe again whenever they are replaced would replace each
        other for ever.
        """
        if self.membership.is_replaced:
            reason = (
                f"another consumer has joined group {self._group!r} with the same "
                "group.instance.id: close this one"
            )
            # As Kafka's client, whose code says it.
            raise Fenced(reason, code=KafkaError._FATAL, fatal=False)

    def check_not_lost(self) -> None:
        """Raise Fenced if the session in which the partitions were assigned has ended: its offsets
        must not be committed, because another member may have read on from there.
        """
        self.check_not_replaced()
        if self._reconciler.is_lost(self.view):
            reason = (
                f"this consumer is no longer the member of group {self._group!r} that got the "
                "partitions"
            )
            raise Fenced(reason, code=KafkaError._ASSIGNMENT_LOST, fatal=False)

    def was_assigned(self) -> None:
        """The application has changed the assignment itself, maybe in a callback."""
        self._reconciler.was_assigned()

    def change(
        self, wanted: SubscriptionTopics, callbacks: Mapping[str, RebalanceCallback[C]]
    ) -> None:
        """Read the topics of another call of `subscribe`, as the same member. The next polls revoke
        and assign what differs. `wanted.subscription` follows that of `self.wanted`.
        """
        self.check_not_replaced()
        wanted.match(self.wanted.topics)  # until the next poll lists all topics
        self._topics = self._refresh_of(wanted)
        self.wanted = wanted
        self._reconciler.change(wanted, callbacks)
        self.lease.end()

    def end(self, consumer: C, *, keeps_place: bool) -> None:
        """Revoke the partitions and leave the group; with `keeps_place`, a member with a
        `group.instance.id` stays in it. Then raises what a callback has raised.
        """
        self.is_ending = True
        self.membership.keeps_place &= keeps_place
        try:
            self._reconciler.end(consumer)
        finally:
            self.membership.close()

    # --- work between two polls ---

    def serve(self, consumer: C) -> Message | None:
        """Do the work that belongs to the application's thread: callbacks and changes of the
        assignment.

        Returns an event for the application, or None. Raises what a callback raises, Corrupt,
        Incompatible, and an Unavailable that is not retriable.
        """
        self.lease.end()
        session = self.membership.session
        lease = PollLease(min(session.heartbeat.silent_at, self._topics.match_at), self._uptime())
        self.membership.lease = self._queue.lease = lease
        raised = self._serve(consumer)
        if (
            raised is None
            and self._topics.are_counts_written
            and self._reconciler.is_stable_in(session.view)
        ):
            self.lease = lease
        return raised

    def _serve(self, consumer: C) -> Message | None:
        self.membership.begin()
        if self.membership.polled():
            return event(KafkaError(KafkaError._MAX_POLL_EXCEEDED))
        reconciler = self._reconciler
        reconciler.finish()
        view = self.view
        # This can happen when the member was silent for its `session.timeout.ms`, or another one
        # with its `group.instance.id` has joined.
        if reconciler.is_lost(view):
            reconciler.lose(consumer)
            # The callback has unsubscribed, or closed the consumer.
            if reconciler.has_ended:
                return None
        topics = self._topics
        if not reconciler.give_up(consumer) or topics is not self._topics:
            return None  # a callback runs, has ended the subscription, or has subscribed anew
        followed = reconciler.view
        if followed is None and (refused := self._why_not_a_member()) is not None:
            return refused
        if (unmatched := self._topics.match()) is not None:
            return unmatched
        if followed is None or not self._topics.are_counts_written:
            self._topics.write_counts()
        if view is not None and view is not followed:
            reconciler.follow(consumer, view)
        return None

    def _why_not_a_member(self) -> Message | None:
        """Report or raise the reason why the consumer is not a member, or lost its session, if it
        is new.

        As in Kafka, a consumer that was removed joins again, which `on_lost` tells the application.
        An event says that the group refuses it: by INCONSISTENT_GROUP_PROTOCOL, or for good by
        _FATAL.
        """
        error = self.membership.take_error()
        if error is None:
            return None
        reason = error.error
        if isinstance(error, Fenced):
            # As in Kafka, the code says that it is fatal, and `fatal()` does not.
            return event(KafkaError(KafkaError._FATAL, reason.str())) if reason.fatal() else None
        if reason.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL:
            return event(reason)
        if isinstance(error, Unavailable) and reason.retriable():
            self._events.store_unavailable(error)
            return None
        raise error


_NOTHING_WANTED = SubscriptionTopics(())


class SubscriptionState(Generic[C]):
    """What a consumer reads: the topics of its `current` subscription, or, without one, what
    `assign` was called with. For the application's thread, except `identity`. The consumer `C` is
    passed to each call.
    """

    def __init__(
        self,
        group_log: GroupLog,
        strategies: Strategies,
        calls: CallGuard,
        life: ConsumerLifecycle,
        config: ConsumerConfig,
        store: Store,
        clock: Clock,
    ) -> None:
        self.current: Subscription[C] | None = None
        self.is_cooperative = strategies.is_cooperative
        self._has_left = False  # the group, and has not been assigned partitions since
        self._calls = calls
        self._life = life
        self._new_subscription: Callable[..., Subscription[C]] = partial(
            Subscription,
            call_out=calls.call_out,
            group_log=group_log,
            strategies=strategies,
            config=config,
            store=store,
            clock=clock,
        )

    @property
    def wanted(self) -> SubscriptionTopics:
        """The topics that are subscribed to."""
        return _NOTHING_WANTED if self.current is None else self.current.wanted

    def identity(self) -> MemberIdentity | None:
        """On whose behalf to commit; None for a consumer that uses `assign`. A former member cannot
        commit. For any thread.
        """
        outside = NO_MEMBER if self._has_left else None
        return outside if self.current is None else self.current.identity()

    def subscribe(
        self,
        consumer: C,
        names: list[str],
        callbacks: Mapping[str, RebalanceCallback[C]],
        running: Callable[[], Reader],
    ) -> None:
        """Read these topics, by name or regular expression, as a member of the group. `running()`
        is the reader, with its threads started. Raises InvalidConfig for a name or expression that
        is not valid, and what callbacks of the subscription that ends raise.
        """
        current = self.current
        # The consumer stays a member: only its topics change.
        if current is not None and not current.is_ending:
            current.change(SubscriptionTopics(names, current.wanted.subscription + 1), callbacks)
            self.follow(running())
            return
        wanted = SubscriptionTopics(names)
        # A callback of the subscription that ends subscribes anew.
        while self.current is not None:
            self.unsubscribe(consumer, running, keeps_place=True)
        self._calls.check_open()  # a callback may have closed the consumer
        reader = running()
        reader.held.set([])  # a subscription replaces a manual assignment
        reader.held.follow(wanted.named)
        subscription = self._new_subscription(wanted, callbacks, reader=reader)
        self._life.add(subscription.membership)
        self.current = subscription
        subscription.membership.begin()

    def unsubscribe(
        self,
        consumer: C,
        running: Callable[[], Reader],
        *,
        keeps_place: bool,
        is_closing: bool = False,
    ) -> None:
        """End the subscription, if there is one. `keeps_place` is that of `Subscription.end`, which
        raises what this raises.
        """
        ended = self.current
        if ended is None:
            return
        if not is_closing:
            ended.check_not_replaced()
        try:
            ended.end(consumer, keeps_place=keeps_place)
        finally:
            self._life.remove(ended.membership)
            if self.current is ended:  # a callback may have made a new subscription
                running().held.set([])
                self.current, self._has_left = None, ended.has_joined
        self.follow(running())

    def follow(self, reader: Reader, more: Iterable[str] = ()) -> None:
        """Follow the logs of topics that are subscribed to, matched, assigned, or (`more`) about to
        be assigned.
        """
        wanted = self.wanted
        reader.held.follow(wanted.named, wanted.matched, more)

    def was_assigned(self) -> None:
        """The application has changed the assignment itself, maybe in a callback."""
        self._has_left = False
        if self.current is not None:
            self.current.was_assigned()

    def check_eager(self) -> None:
        """Raise WrongState if a subscription assigns partitions one by one."""
        if self.current is not None and self.is_cooperative:
            raise WrongState(
                "assign() cannot be used with cooperative-sticky: call incremental_assign()"
            )

    def check_incremental(self, what: str) -> None:
        """Raise WrongState if a subscription assigns partitions all at once: `what` is "assign" or
        "unassign".
        """
        if self.current is not None and not self.is_cooperative:
            reason = (
                f"incremental_{what}() needs partition.assignment.strategy cooperative-sticky: call"
                f" {what}()"
            )
            raise WrongState(reason)


def _membership(
    group_log: GroupLog,
    strategies: Strategies,
    reader: Reader,
    config: ConsumerConfig,
    store: Store,
    clock: Clock,
    first_topics: Callable[[], MemberTopics | None],
) -> Membership:
    member = Member(
        (),  # the topics are given as it joins
        config.client_id,
        socket.gethostname(),
        config.session_timeout_ms,
        config.max_poll_interval_ms,
        config.group_instance_id,
        tuple((name, "") for name in strategies.assignors),
    )
    # A client of its own: an offset commit that waits for the store must not delay heartbeats.
    log, interval_s = group_log.sibling(), config.heartbeat_interval_ms / 1000
    # On local disk an entry of each member costs little.
    delegation = reader.committer if store.is_remote else None
    settings = MemberSettings(store, log, member, strategies, interval_s, clock, delegation)
    return Membership(
        settings, config.max_poll_interval_ms / 1000, reader.fetcher.queue.wake, first_topics
    )
