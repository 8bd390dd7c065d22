"""The states of an assignment: what the group assigns is what is read, at whatever place a signal
handler raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from deltaq import TopicPartition
from deltaq.config import ConsumerConfig, parse_client_config
from deltaq.consumer.calls import CallGuard
from deltaq.consumer.reader import Reader
from deltaq.consumer.reconciliation import Reconciler
from deltaq.consumer.subscription_topics import SubscriptionTopics
from deltaq.groups.membership import Membership
from deltaq.groups.rebalance import strategies
from deltaq.groups.session import GroupView
from deltaq.groups.state import NO_MEMBER, Key
from tests.doubles.interrupts import interrupted

EAGER, COOPERATIVE = "range", "cooperative-sticky"


def parts(*numbers: int) -> frozenset[Key]:
    return frozenset(("t", number) for number in numbers)


def view(
    generation: int,
    assigned: Iterable[int],
    owned: Iterable[int] | None = None,
    member: str = "m",
    subscription: int = 0,
    more: frozenset[Key] = frozenset(),
) -> GroupView:
    """The group as the member sees it; `more` are partitions of other topics that it is assigned
    and owns.
    """
    mine = parts(*assigned)
    theirs = mine if owned is None else parts(*owned)
    return GroupView(member, None, generation, mine | more, theirs | more, subscription)


class HeldPartitions:
    """The partitions that are read."""

    def __init__(self) -> None:
        self.keys: set[Key] = set()

    def set(self, wanted: list[TopicPartition]) -> None:
        self.keys = {(tp.topic, tp.partition) for tp in wanted}

    def add(self, wanted: list[TopicPartition]) -> None:
        self.keys |= {(tp.topic, tp.partition) for tp in wanted}

    def remove(self, unwanted: list[TopicPartition]) -> None:
        self.keys -= {(tp.topic, tp.partition) for tp in unwanted}

    def holds(self, topic: str, partition: int) -> bool:
        return (topic, partition) in self.keys

    def follow(self, named: object, matched: object) -> None:
        pass


class CountingCommitter:
    """Counts what would be written to the group's log."""

    def __init__(self) -> None:
        self.handed_over: list[str] = []
        self.forgotten = 0
        self.stored = SimpleNamespace(forget=self._forget)

    def hand_over(self, operation: str, plan: object, *, commit_stored: bool) -> None:
        self.handed_over.append(operation)

    def commit_stored(self) -> None:
        pass

    def finish_queued(self) -> None:
        pass

    def _forget(self) -> None:
        self.forgotten += 1


class Followed:
    """A reconciler, and the parts of a consumer that it changes."""

    def __init__(
        self, strategy: str, **callbacks: Callable[[Any, list[TopicPartition]], object]
    ) -> None:
        self.held, self.committer = HeldPartitions(), CountingCommitter()
        self.membership = SimpleNamespace(
            held=frozenset(), keeps_place=False, begin_to_leave=lambda: None
        )
        reader = SimpleNamespace(
            held=self.held, committer=self.committer, fetcher=SimpleNamespace(partition_counts=dict)
        )
        config = parse_client_config(
            ConsumerConfig, {"bootstrap.servers": "memory://x", "group.id": "g"}, {}
        )
        self.reconciler: Reconciler[Any] = Reconciler(
            SubscriptionTopics(["t"]),
            callbacks,
            CallGuard().call_out,
            cast(Membership, self.membership),
            strategies([strategy]),
            cast(Reader, reader),
            config,
        )

    def poll(self, now: GroupView | None) -> None:
        """What a poll does that sees the group so."""
        self.reconciler.finish()
        if self.reconciler.is_lost(now):
            self.reconciler.lose(None)
        self.reconciler.give_up(None)
        if now is not None and now is not self.reconciler.view and not self.reconciler.has_ended:
            self.reconciler.follow(None, now)

    def read(self) -> frozenset[Key]:
        """The partitions that are read. They are also those that the membership does not
        release.
        """
        assert self.membership.held == self.held.keys
        return frozenset(self.held.keys)


CHANGES: dict[str, tuple[str, GroupView | None, frozenset[Key]]] = {
    "first partitions": (EAGER, view(1, [0, 1]), parts(0, 1)),
    "another generation": (EAGER, view(2, [1, 2]), parts(1, 2)),
    "others own one still": (EAGER, view(2, [1, 2], [0, 1]), parts()),
    "a loss": (EAGER, None, parts()),
    "another session": (EAGER, view(3, [0], member="n"), parts(0)),
    "more partitions": (COOPERATIVE, view(2, [0, 1, 2]), parts(0, 1, 2)),
    "fewer partitions": (COOPERATIVE, view(2, [0], [0, 1]), parts(0)),
    "others": (COOPERATIVE, view(2, [1, 2], [0, 1, 2]), parts(1, 2)),
    "a loss of all": (COOPERATIVE, None, parts()),
}


@pytest.mark.fault("P14")
@pytest.mark.parametrize("change", CHANGES)
def test_the_poll_after_an_interrupted_one_reads_what_the_group_assigns(change: str) -> None:
    strategy, now, expected = CHANGES[change]
    for point in count():
        followed = Followed(strategy)
        if change != "first partitions":
            followed.poll(view(1, [0, 1]))
        outcome = interrupted(
            lambda: followed.poll(now),  # noqa: B023
            point,
            modules=("deltaq.consumer.reconciliation",),
        )
        followed.poll(now)
        assert followed.read() == expected, outcome.place
        if not outcome.reached:
            assert point > 5
            return


@pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])
def test_offsets_are_committed_for_the_newest_session_that_had_partitions(strategy: str) -> None:
    followed = Followed(strategy)
    assert followed.reconciler.identity is NO_MEMBER
    followed.poll(view(1, [0]))
    followed.poll(None)
    assert followed.reconciler.identity == view(1, [0]).identity
    followed.poll(view(3, [0], member="n"))
    assert followed.reconciler.identity == view(3, [0], member="n").identity


@pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])
def test_a_subscription_ended_in_on_revoke_hands_nothing_over_afterwards(strategy: str) -> None:
    """The callback may have made another subscription, on whose behalf it would be handed over."""

    def end(consumer: object, partitions: list[TopicPartition]) -> None:
        followed.reconciler.end(None)

    followed = Followed(strategy, revoke=end)
    followed.poll(view(1, [0, 1]))
    followed.reconciler.end(None)
    assert followed.reconciler.has_ended
    assert followed.committer.handed_over == []
    assert followed.committer.forgotten == 1


@pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])
def test_a_poll_in_on_revoke_follows_no_change_of_the_group(strategy: str) -> None:
    calls: list[str] = []

    def poll(consumer: object, partitions: list[TopicPartition]) -> None:
        calls.append("revoke")
        followed.poll(view(2, [0, 1, 2]))

    followed = Followed(
        strategy, revoke=poll, assign=lambda consumer, partitions: calls.append("assign")
    )
    followed.poll(view(1, [0, 1]))
    followed.reconciler.end(None)
    assert calls == ["assign", "revoke"]
    assert followed.read() == parts()


# --- another subscription ---

U: frozenset[Key] = frozenset({("u", 0)})


def recorded(
    calls: list[tuple[str, list[Key]]],
) -> dict[str, Callable[[Any, list[TopicPartition]], None]]:
    def recorder(event: str) -> Callable[[Any, list[TopicPartition]], None]:
        return lambda _, partitions: calls.append(
            (event, [(tp.topic, tp.partition) for tp in partitions])
        )

    return {event: recorder(event) for event in ("assign", "revoke", "lost")}


def test_what_another_subscription_leaves_out_is_revoked_before_the_group_knows_of_it() -> None:
    calls: list[tuple[str, list[Key]]] = []
    followed = Followed(COOPERATIVE)
    before = view(1, [0], more=U)
    followed.poll(before)
    followed.reconciler.change(SubscriptionTopics(["^u$", "v"], 1), recorded(calls))
    for _ in range(2):
        followed.poll(before)
        assert (followed.read(), calls) == (U, [("revoke", [("t", 0)])])
    followed.poll(view(2, [], more=U, subscription=1))
    assert (followed.read(), calls[1:]) == (U, [("assign", [])])


@pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])
def test_nothing_is_assigned_before_the_group_knows_the_subscription(strategy: str) -> None:
    """The group may be about to take it from this member."""
    followed = Followed(strategy)
    followed.reconciler.change(SubscriptionTopics(["t", "u"], 1), {})
    followed.poll(view(1, [0]))
    assert followed.read() == parts()
    followed.poll(view(1, [0], subscription=1))
    assert followed.read() == parts(0)
    followed.reconciler.change(SubscriptionTopics(["t"], 2), {})
    followed.poll(view(2, [0, 1], subscription=1))
    assert followed.read() == (parts() if strategy == EAGER else parts(0))
    followed.poll(view(2, [0, 1], subscription=2))
    assert followed.read() == parts(0, 1)


def test_partitions_that_go_to_others_are_released_while_the_group_does_not_know_the_subscription() -> (  # noqa: E501
    None
):
    followed = Followed(COOPERATIVE)
    followed.poll(view(1, [0, 1]))
    followed.reconciler.change(SubscriptionTopics(["t", "u"], 1), {})
    followed.poll(view(2, [0], [0, 1]))
    assert (followed.read(), followed.committer.handed_over) == (parts(0), ["RELEASE"])


def test_the_same_topics_are_revoked_and_assigned_once_under_an_eager_assignor() -> None:
    calls: list[tuple[str, list[Key]]] = []
    followed = Followed(EAGER)
    followed.poll(view(1, [0]))
    followed.reconciler.change(SubscriptionTopics(["t"], 1), recorded(calls))
    for now in (
        view(1, [0]),
        view(1, [0]),
        view(1, [0], subscription=1),
        view(1, [0], subscription=1),
    ):
        followed.poll(now)
    assert (followed.read(), calls) == (parts(0), [("revoke", [("t", 0)]), ("assign", [("t", 0)])])


def test_the_group_does_not_learn_of_a_subscription_while_on_revoke_runs() -> None:
    """Another member would own the partitions, and the callback could not commit."""
    found: list[bool] = []
    followed = Followed(EAGER)
    followed.poll(view(1, [0]))
    revoke = {
        "revoke": lambda consumer, partitions: found.append(followed.reconciler.give_up(None))
    }
    followed.reconciler.change(SubscriptionTopics(["u"], 1), revoke)
    found.append(followed.reconciler.give_up(None))
    assert found == [False, True]


@pytest.mark.fault("P14")
@pytest.mark.parametrize("strategy", [EAGER, COOPERATIVE])
def test_the_poll_after_an_interrupted_one_gives_up_what_the_subscription_leaves_out(
    strategy: str,
) -> None:
    before, after = view(1, [0], more=U), view(2, [], more=U, subscription=1)
    for point in count():
        followed = Followed(strategy)
        followed.poll(before)
        followed.reconciler.change(SubscriptionTopics(["u"], 1), {})
        outcome = interrupted(
            lambda: followed.poll(before),  # noqa: B023
            point,
            modules=("deltaq.consumer.reconciliation",),
        )
        followed.poll(before)
        assert followed.read() == (frozenset() if strategy == EAGER else U), outcome.place
        followed.poll(after)
        assert followed.read() == U, outcome.place
        if not outcome.reached:
            assert point > 5
            return
