"""Reconciles the partitions of a subscription with what the group assigns, through the rebalance
callbacks.

The state of the assignment is one value:

    Unassigned ---> Assigning <---> Stable <---> Releasing
        ^               |              |             |
        |               +--------------+-------------+
        |                              v
        +---------- Revoked <------ Revoking               from each: ---> Ended

In `Assigning`, `Releasing` and `Revoking` a callback runs, which may itself change the assignment
or end the subscription. `Reconciler.finish` does what is left to do after a callback. If a signal
handler interrupts that, the state stays, and the next poll finishes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, TypeAlias, TypeVar

from deltaq.config import ConsumerConfig
from deltaq.consumer.reader import Reader
from deltaq.consumer.subscription_topics import SubscriptionTopics
from deltaq.errors import KafkaException
from deltaq.groups.membership import Membership
from deltaq.groups.offset_commits import HandOver
from deltaq.groups.rebalance import Strategies, left, released
from deltaq.groups.session import GroupView
from deltaq.groups.state import NO_MEMBER, GroupHead, Key, MemberIdentity, by_topic, matching
from deltaq.message import TopicPartition

_log = logging.getLogger("deltaq.consumer")

C = TypeVar("C")
RebalanceCallback: TypeAlias = Callable[[C, list[TopicPartition]], object]


def no_callback(consumer: object, partitions: list[TopicPartition]) -> None:
    """The default of a rebalance callback: does nothing. Passing None is a TypeError, as in
    Kafka.
    """


def rebalance_callbacks(**given: RebalanceCallback[C]) -> dict[str, RebalanceCallback[C]]:
    """The callbacks that the application gave, by name. Raises TypeError for one that cannot be
    called.
    """
    for kind, callback in given.items():
        if not callable(callback):
            raise TypeError(f"on_{kind} must be callable, not {type(callback).__name__}")
    return {kind: callback for kind, callback in given.items() if callback is not no_callback}


# --- the states ---


@dataclass(frozen=True, slots=True)
class Assigned:
    """The partitions of this member, maybe none. It gives them up only after it has released them
    in the group's log.

    `view` is the group as the assignment follows it. `is_announced` is whether `on_assign` was
    called: not while none of the topics exists.
    """

    view: GroupView
    partitions: frozenset[Key]
    is_announced: bool

    @property
    def identity(self) -> MemberIdentity:
        """On whose behalf the records are read."""
        return self.view.identity


@dataclass(frozen=True, slots=True)
class Stable(Assigned):
    """All partitions are read."""


@dataclass(frozen=True, slots=True)
class Assigning(Assigned):
    """The `new` ones of the partitions are not read yet: `on_assign` runs for them."""

    new: frozenset[Key]


@dataclass(frozen=True, slots=True)
class Releasing(Assigned):
    """`on_revoke` runs for those of the partitions that are `gone`, under a cooperative assignor:
    the group assigns them to others, or another subscription leaves their topics out. The others
    stay.
    """

    gone: frozenset[Key]


@dataclass(frozen=True, slots=True)
class Revoking(Assigned):
    """`on_revoke` or `on_lost` runs for all partitions. The assignment follows no change of the
    group.
    """


@dataclass(frozen=True, slots=True)
class Unassigned:
    """The consumer is not a member, or others have not released its partitions yet.

    `identity` is that of the assignment before. `released` is the last view for which this member
    has released what it owns of the partitions of others.
    """

    identity: MemberIdentity = NO_MEMBER
    released: GroupView | None = None
    partitions: ClassVar[frozenset[Key]] = frozenset()


@dataclass(frozen=True, slots=True)
class Revoked:
    """The partitions are released or lost, and are still to be dropped. `identity` is that of the
    assignment.
    """

    identity: MemberIdentity


@dataclass(frozen=True, slots=True)
class Ended:
    """The subscription has ended. `identity` is that of its last assignment."""

    identity: MemberIdentity


State: TypeAlias = "Unassigned | Stable | Assigning | Releasing | Revoking | Revoked | Ended"


class Reconciler(Generic[C]):
    """The assignment of one subscription. For the application's thread; others may read `identity`.

    The consumer `C` is passed to each call, so that this object does not keep it alive. `callbacks`
    holds the application's callbacks by name: "assign", "revoke", "lost". `call_out` runs them.
    """

    def __init__(
        self,
        wanted: SubscriptionTopics,
        callbacks: Mapping[str, RebalanceCallback[C]],
        call_out: Callable[[Callable[[], object]], None],
        membership: Membership,
        strategies: Strategies,
        reader: Reader,
        config: ConsumerConfig,
    ) -> None:
        self._wanted = wanted
        self._callbacks = callbacks
        self._call_out = call_out
        self._membership = membership
        self._strategies = strategies
        self._reader = reader
        self._auto_commit = config.enable_auto_commit
        self._group = config.group_id
        self._state: State = Unassigned()

    @property
    def identity(self) -> MemberIdentity:
        """On whose behalf records were read last; NO_MEMBER if no partitions were assigned yet."""
        return self._state.identity

    @property
    def view(self) -> GroupView | None:
        """The group as the assignment follows it; None without an assignment."""
        state = self._state
        return state.view if isinstance(state, Assigned) else None

    def is_stable_in(self, view: GroupView | None) -> bool:
        """Whether the assignment follows this view, and no callback runs or was interrupted."""
        state = self._state
        return isinstance(state, Stable) and state.view is view

    @property
    def has_ended(self) -> bool:
        """Whether the subscription has ended, maybe in a callback."""
        return isinstance(self._state, Ended)

    def is_lost(self, view: GroupView | None) -> bool:
        """Whether the session in which the partitions were assigned has ended. `view` is the
        current one.
        """
        state = self._state
        return isinstance(state, Assigned) and (
            view is None or view.member_id != state.view.member_id
        )

    # --- transitions ---

    def change(
        self, wanted: SubscriptionTopics, callbacks: Mapping[str, RebalanceCallback[C]]
    ) -> None:
        """Go over to another subscription. No partition is added before the group knows of it."""
        self._wanted, self._callbacks = wanted, callbacks

    def give_up(self, consumer: C) -> bool:
        """Revoke the partitions that a changed subscription leaves out, or all under an eager
        assignor.

        Returns whether the group may learn of the subscription: not while a callback runs, because
        another member would own what is still held here.
        """
        state = self._state
        # The group must not learn of the new subscription before what that leaves out is released.
        if isinstance(state, Stable) and not self._is_current(state.view):
            if not self._strategies.is_cooperative:
                self._revoke_all(consumer, self._commit_stored)
            elif gone := state.partitions - self._fitting(state.partitions):
                self._revoke(consumer, state, gone)
        return isinstance(self._state, Unassigned | Stable)

    def follow(self, consumer: C, view: GroupView) -> None:
        """Follow what the group's log says of this member, and run the rebalance callbacks."""
        if self._strategies.is_cooperative:
            self._follow_incrementally(consumer, view)
        else:
            self._follow_eagerly(consumer, view)

    def lose(self, consumer: C) -> None:
        """The partitions are lost: the group has given them to others, or may have."""
        name = "lost" if "lost" in self._callbacks else "revoke"
        self._end_assignment(lambda revoking: self._call(consumer, name, revoking.partitions))

    def end(self, consumer: C) -> None:
        """Revoke the partitions and leave the group. Then raises what a callback has raised."""
        try:
            self._revoke_all(consumer, self._leave)
        finally:
            self._state = Ended(self._state.identity)

    def was_assigned(self) -> None:
        """The application has assigned partitions itself, so the new ones are not assigned to it
        again. What the group takes away is released nevertheless: otherwise it would never have
        another owner.
        """
        state = self._state
        if isinstance(state, Assigning):
            self._enter(Stable(state.view, state.partitions, state.is_announced))

    def finish(self) -> None:
        """Do what is left to do after a callback."""
        state = self._state
        if isinstance(state, Assigning):
            self._read(state.new)
            self._enter(Stable(state.view, state.partitions, state.is_announced))
        elif isinstance(state, Releasing):
            try:
                self._release(state.gone)
            finally:
                self._drop(state.gone)
                self._enter(Stable(state.view, state.partitions - state.gone, state.is_announced))
        elif isinstance(state, Revoked):
            self._reader.held.set([])
            self._reader.committer.stored.forget()
            self._enter(Unassigned(state.identity))

    def _follow_eagerly(self, consumer: C, view: GroupView) -> None:
        """In each new generation revoke all partitions, and assign the new ones once this member
        owns all of them.
        """
        state, unassigned = self._state, view.owned - view.assigned
        if isinstance(state, Stable) and state.view.generation == view.generation:
            self._enter(replace(state, view=view))  # only what others own has changed
        # A new generation. As in Kafka all is revoked, also what is assigned again below.
        elif isinstance(state, Stable):
            self._revoke_all(
                consumer, lambda: self._release(unassigned) if unassigned else self._commit_stored()
            )
        # This can happen when a further generation comes while this member waits for its
        # partitions: others wait for those that it owns and has lost.
        elif isinstance(state, Unassigned) and state.released is not view and unassigned:
            self._release(unassigned)
        state = self._state
        if isinstance(state, Unassigned) and self._is_current(view) and view.assigned <= view.owned:
            self._assign(consumer, state, view, view.assigned)
        # Others have not released all of them yet. The next view tells.
        elif isinstance(state, Unassigned):
            self._enter(Unassigned(state.identity, released=view))

    def _follow_incrementally(self, consumer: C, view: GroupView) -> None:
        """Revoke what is no longer assigned, then assign what is new. What stays is not
        interrupted.
        """
        state, is_current = self._state, self._is_current(view)
        # A callback runs, or the group does not know the present subscription yet.
        if not isinstance(state, Stable) and not (isinstance(state, Unassigned) and is_current):
            return
        gone = state.partitions - view.assigned
        # This can happen when this member got partitions in a view that it has not followed, and
        # lost them in this one.
        if unheld := view.owned - view.assigned - gone:
            self._release(unheld)
        if isinstance(state, Stable) and gone:
            self._revoke(consumer, state, gone)
            state, is_current = self._state, self._is_current(view)
        if not isinstance(state, Unassigned | Stable):
            return  # the callback has ended the subscription
        new = (view.assigned & view.owned) - state.partitions
        # Also without new partitions: Kafka's client calls `on_assign` in each generation.
        if is_current and (
            new or isinstance(state, Unassigned) or state.view.generation != view.generation
        ):
            self._assign(consumer, state, view, new)
        elif isinstance(state, Stable):
            self._enter(replace(state, view=view))

    def _is_current(self, view: GroupView) -> bool:
        """Whether the group knows the present subscription. If not, the view may have partitions
        that the group is about to take from this member, because an earlier subscription leaves
        them out.
        """
        return view.subscription >= self._wanted.subscription

    def _fitting(self, keys: frozenset[Key]) -> frozenset[Key]:
        """Those of the partitions whose topics the subscription names or matches."""
        topics = matching(self._wanted.names, {topic for topic, _ in keys})
        return frozenset(key for key in keys if key[0] in topics)

    def _revoke(self, consumer: C, state: Stable, gone: frozenset[Key]) -> None:
        """Revoke some of the partitions."""
        self._commit_before_callback("revoke")
        self._enter(Releasing(state.view, state.partitions, state.is_announced, gone))
        self._call(consumer, "revoke", gone)

    def _assign(
        self, consumer: C, before: Unassigned | Stable, view: GroupView, new: frozenset[Key]
    ) -> None:
        """Add partitions. While none of the topics exists, `on_assign` is not called: the next poll
        finishes this.
        """
        is_announced = (
            bool(new)
            or isinstance(before, Stable)
            or any(
                size and size.partitions
                for size in self._reader.fetcher.partition_counts().values()
            )
        )
        self._enter(Assigning(view, before.partitions | new, is_announced, new))
        if is_announced:
            shown = self._group, view.member_id, by_topic(new)
            _log.info("partitions assigned group=%r member=%r partitions=%s", *shown)
            self._call(consumer, "assign", new)

    def _revoke_all(self, consumer: C, hand_over: Callable[[], None]) -> None:
        """Revoke all partitions, and hand them over with the stored offsets in the same entry."""

        def revoke(revoking: Revoking) -> None:
            self._commit_before_callback("revoke")
            try:
                is_eager = not self._strategies.is_cooperative
                # As librdkafka, in pairs.
                if revoking.partitions or (is_eager and revoking.is_announced):
                    self._call(consumer, "revoke", revoking.partitions)
            finally:
                # Else the callback has ended the subscription, and left the group.
                if self._state is revoking:
                    hand_over()

        self._end_assignment(revoke)

    def _end_assignment(self, call: Callable[[Revoking], None]) -> None:
        """Run `call`, which runs the callback, and drop all partitions. Does nothing inside that
        callback, which may end the subscription or close the consumer.
        """
        state = self._state
        if not isinstance(state, Stable | Assigning | Releasing):
            return
        revoking, revoked = (
            Revoking(state.view, state.partitions, state.is_announced),
            Revoked(state.identity),
        )
        self._state = revoking
        try:
            call(revoking)
        finally:
            if self._state is revoking:
                self._state = revoked
                self.finish()
            else:  # the callback has ended the subscription
                self._reader.committer.stored.forget()

    def _enter(self, state: Unassigned | Stable | Assigning | Releasing) -> None:
        self._state = state
        self._membership.held = state.partitions

    # --- what callbacks and transitions do ---

    def _call(self, consumer: C, name: str, keys: frozenset[Key]) -> None:
        """Run a callback of the application, if there is one, and do what is left to do after
        it.
        """
        callback = self._callbacks.get(name)
        try:
            if callback is not None:
                self._call_out(lambda: callback(consumer, _listed(keys)))
        finally:
            self.finish()

    def _read(self, new: frozenset[Key]) -> None:
        """Begin to read partitions, unless the application has assigned them itself."""
        held, partitions = self._reader.held, _listed(new)
        if self._strategies.is_cooperative:
            held.add([tp for tp in partitions if not held.holds(tp.topic, tp.partition)])
        else:
            held.set(partitions)
        held.follow(self._wanted.named, self._wanted.matched)

    def _drop(self, gone: frozenset[Key]) -> None:
        """End reading partitions."""
        held = self._reader.held
        held.remove(_listed(key for key in gone if held.holds(*key)))
        held.follow(self._wanted.named, self._wanted.matched)

    def _commit_before_callback(self, name: str) -> None:
        """Commit what is stored: the callback may end the assignment, and the stored offsets with
        it.
        """
        if name in self._callbacks and self._auto_commit:
            self._reader.committer.commit_stored()

    def _commit_stored(self) -> None:
        if self._auto_commit:
            self._reader.committer.commit_stored()
        self._reader.committer.finish_queued()

    def _release(self, keys: frozenset[Key]) -> None:
        def plan(head: GroupHead, identity: MemberIdentity) -> GroupHead | None:
            mine = keys & head.to_release(identity.member_id)
            return released(head, identity.member_id, mine, self._strategies) if mine else None

        self._hand_over("RELEASE", plan)  # else the membership does it later

    def _leave(self) -> None:
        def plan(head: GroupHead, identity: MemberIdentity) -> GroupHead | None:
            return left(head, {identity.member_id}, self._strategies)

        if self._membership.keeps_place:
            self._commit_stored()
        else:
            self._membership.begin_to_leave()
            self._hand_over("LEAVE", plan)  # else the membership leaves as it closes

    def _hand_over(self, operation: str, plan: HandOver) -> None:
        """Change the membership, with the stored offsets in the same entry."""
        try:
            self._reader.committer.hand_over(operation, plan, commit_stored=self._auto_commit)
        except KafkaException as error:
            _log.warning("partitions not released yet group=%r reason=%s", self._group, error)


def _listed(keys: Iterable[Key]) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for topic, partition in sorted(keys)]
