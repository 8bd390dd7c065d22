"""Periodic commits that the leader makes for all members, and own ones where it does not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from deltaq import Consumer, KafkaError, Producer, Topic, TopicPartition
from deltaq.groups.fencing import Claim
from deltaq.groups.log import GroupLog
from deltaq.groups.offset_commits import RETRY_SHARING_S, OffsetCommitter, ToCommit
from deltaq.groups.offsets import CommittedOffset
from deltaq.groups.pending import PENDING_MAX, PendingOffsets
from deltaq.store import MemoryStore
from deltaq.testing import ManualClock
from tests.doubles.groups import FOREVER, join, leave
from tests.doubles.reading import eventually

BEAT_S = 3.0
INTERVAL_S = 5.0


class RemoteStore(MemoryStore):
    """Calls `on_create` before each create of a log entry."""

    is_remote = True
    on_create: Callable[[], object] = staticmethod(lambda: None)

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        if "_delta_log" in key:
            self.on_create()
        super().create(key, data, after)


class Follower:
    """A member of group `g` that owns partition 0 of `t`, and another one that leads it."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self.store, self.clock = RemoteStore("test"), ManualClock()
        self.log = GroupLog(self.store, "g", self.clock)
        join(self.log, "m")
        self.stored = [ToCommit(TopicPartition("t", 0, 1), "id")]
        self.results: list[tuple[KafkaError | None, list[int]]] = []
        self.claim: Claim | None = Claim("m", 1)
        self.committer = OffsetCommitter(
            self.log.sibling(),
            lambda: self.claim,
            lambda _: ("id", 1),
            lambda: list(self.stored),
            lambda error, offsets: self.results.append((error, [tp.offset for tp in offsets])),
            interval_s,
            self.clock,
            BEAT_S,
        )

    def read_to(self, *offsets: int) -> None:
        self.stored = [ToCommit(TopicPartition("t", number, offset), "id") for number, offset in enumerate(offsets)]

    def beat(self) -> PendingOffsets | None:
        """A heartbeat: the membership reads the log, and asks what to show."""
        self.log.head()
        return self.committer.pending()

    def lead(self, shown: PendingOffsets | None) -> None:
        """The leader commits what a heartbeat shows."""
        assert shown is not None
        GroupLog(self.store, "g").commit_pending(Claim("leader", 1), [shown], FOREVER)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and the thread do what is due."""
        self.clock.until_waiting()
        self.clock.advance(seconds)
        self.clock.until_waiting()

    @property
    def entries(self) -> int:
        return GroupLog(self.store, "g").state().version

    @property
    def committed(self) -> int | None:
        (found,) = GroupLog(self.store, "g").committed([("t", "id", 0)])
        return None if found is None else found.offset


@contextmanager
def following(interval_s: float = INTERVAL_S) -> Iterator[Follower]:
    found = Follower(interval_s)
    found.committer.begin()
    try:
        yield found
    finally:
        found.committer.close()


def test_offsets_that_the_leader_commits_are_reported_and_not_committed_again():
    with following() as member:
        for offset in range(1, 8):
            member.read_to(offset)
            before = member.entries
            member.lead(member.beat())
            assert member.entries == before + 1
            member.pass_time(BEAT_S)
            member.beat()
            eventually(lambda: (None, [offset]) in member.results)  # noqa: B023 - called before the next one
        assert (member.committed, member.entries) == (7, before + 1)
        assert len(member.results) == 7, "each commit is reported once"


def test_a_heartbeat_shows_the_newest_offsets_and_what_was_not_committed_yet():
    with following() as member:
        first = member.beat()
        member.read_to(5)
        second = member.beat()
        assert [shown.offsets[0].offset for shown in (first, second) if shown] == [1, 5]
        member.lead(first)
        member.pass_time(BEAT_S)
        member.beat()
        eventually(lambda: member.results == [(None, [1])])
        third = member.beat()
        assert third is not None
        assert third.offsets[0].offset == 5
        member.lead(second)
        assert member.committed == 1, "it was shown before the member had read the entry of the first"
        member.lead(third)
        assert member.committed == 5


def test_nothing_is_shown_long_before_the_periodic_commit_is_due():
    with following(60.0) as member:
        assert member.beat() is None
        member.pass_time(60 - 2 * BEAT_S - 1)
        assert member.beat() is None
        member.pass_time(2)
        assert member.beat() is not None


def test_nothing_is_shown_without_periodic_commits_and_with_more_frequent_ones():
    for interval_s in (float("inf"), BEAT_S / 2):
        assert Follower(interval_s).beat() is None


def test_a_consumer_commits_itself_what_the_leader_does_not_commit():
    with following() as member:
        for _ in range(4):
            assert member.beat() is not None
            member.pass_time(BEAT_S)
            assert member.committed is None
        member.beat()
        member.pass_time(BEAT_S)
        eventually(lambda: member.committed == 1)
        assert member.results == [(None, [1])]
        member.read_to(2)
        assert member.beat() is None, "the leader is not relied upon"
        member.pass_time(RETRY_SHARING_S)
        eventually(lambda: member.committed == 2)
        member.read_to(3)
        eventually(lambda: member.beat() is not None)


def test_a_consumer_that_becomes_the_only_member_commits_itself():
    with following() as member:
        assert member.beat() is not None
        for _ in range(4):
            member.pass_time(INTERVAL_S)
        eventually(lambda: member.committed == 1)


def test_offsets_are_not_shown_while_an_own_commit_is_under_way():
    with following() as member:
        assert member.beat() is not None
        during: list[PendingOffsets | None] = []
        member.store.on_create = lambda: during.append(member.committer.pending())
        member.committer.commit(member.stored)
        assert during == [None]
        member.read_to(2)
        shown = member.beat()
        assert shown is not None
        assert shown.after == member.entries, "the own commit is known"


def test_a_consumer_with_very_many_offsets_commits_itself():
    with following() as member:
        join(member.log, "m", gone=["m"], partitions={"t": PENDING_MAX + 1})
        member.claim = Claim("m", 2)
        member.read_to(*range(1, PENDING_MAX + 2))
        assert member.beat() is None
        member.pass_time(INTERVAL_S)
        eventually(lambda: member.committed == 1)


def test_offsets_of_a_lost_assignment_are_forgotten():
    with following() as member:
        assert member.beat() is not None
        member.stored = []
        member.committer.forget()
        for _ in range(6):
            member.beat()
            member.pass_time(BEAT_S)
        assert (member.results, member.committed) == ([], None)


def test_a_refused_commit_is_reported():
    with following() as member:
        member.beat()
        leave(member.log, "m")
        for _ in range(6):
            member.beat()
            member.pass_time(BEAT_S)
        eventually(lambda: member.results)
        ((error, offsets),) = member.results[:1]
        assert error is not None
        assert (error.name(), offsets) == ("UNKNOWN_MEMBER_ID", [1])


def test_the_leader_commits_its_own_offsets_with_those_of_the_others():
    with following() as leader:
        join(leader.log, "other", partitions={"t": 2})
        leader.claim = Claim("m", 2)
        leader.log.head()
        before = leader.entries
        other = PendingOffsets("other", 2, before, (CommittedOffset("t", "id", 1, 9),))
        leader.committer.commit_pending([other])
        eventually(lambda: leader.entries == before + 1)
        found = GroupLog(leader.store, "g").committed([("t", "id", 0), ("t", "id", 1)])
        assert [offset and offset.offset for offset in found] == [1, 9]
        leader.beat()
        eventually(lambda: leader.results == [(None, [1])])


# --- consumers ---


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_consumers_on_a_remote_store_let_their_leader_commit(strategy):
    store = RemoteStore("test")
    Topic("t", partitions=2, store=store).create()
    conf = {
        "bootstrap.servers": "memory://unused",
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": strategy,
        "heartbeat.interval.ms": 100,
        "auto.commit.interval.ms": 100,
    }
    reported: list[tuple[int, int]] = []

    def on_commit(error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        assert error is None
        reported.extend((tp.partition, tp.offset) for tp in partitions)

    def committed() -> list[int]:
        return [tp.offset for tp in second.committed([TopicPartition("t", 0), TopicPartition("t", 1)])]

    with (
        Consumer(conf, store=store, on_commit=on_commit) as first,
        Consumer(conf, store=store, on_commit=on_commit) as second,
        Producer({"bootstrap.servers": "memory://unused"}, store=store) as producer,
    ):

        def polled() -> bool:
            return not [error for consumer in (first, second) if (error := consumer.poll(0.01)) and error.error()]

        first.subscribe(["t"])
        eventually(lambda: polled() and len(first.assignment()) == 2)
        second.subscribe(["t"])
        eventually(lambda: polled() and len(first.assignment()) == len(second.assignment()) == 1)
        for number in range(1, 4):
            for partition in (0, 1):
                producer.produce("t", b"x", partition=partition)
            producer.flush()
            eventually(lambda: polled() and committed() == [number, number])  # noqa: B023 - called before the next
        eventually(lambda: polled() and {(0, 3), (1, 3)} <= set(reported))
        leader, owned = first.memberid(), second.assignment()[0].partition
        entries = [store.get(entry.key) for entry in store.list("groups/g/_delta_log/") if ".json" in entry.key]
        combined = [entry for entry in entries if b'"pending":"true"' in entry]
        assert all(f'"member":"{leader}"'.encode() in entry for entry in combined)
        assert any(re.search(rb'"appId":"t/\w+/%d"' % owned, entry) for entry in combined)
