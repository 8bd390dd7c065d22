"""Periodic commits that the leader makes for all members, and own ones where it does not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from deltaq import Consumer, KafkaError, Producer, Topic, TopicPartition
from deltaq.delta.known_log import KnownState, LogState
from deltaq.delta.table_state import restored_state
from deltaq.groups.heartbeat import LivenessCheck
from deltaq.groups.log import GroupLog
from deltaq.groups.offset_commits import OffsetCommitter
from deltaq.groups.offsets import CommittedOffset, PendingOffsets, ToCommit
from deltaq.groups.rebalance import released
from deltaq.groups.state import MemberIdentity
from deltaq.groups.stored_offsets import RETRY_DELEGATION_S
from deltaq.names import member_key
from deltaq.store import MemoryStore
from deltaq.testing import ManualClock
from tests.doubles.groups import FOREVER, RANGE, commit, join, leave, new_member, partition_counts
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
        self.identity: MemberIdentity | None = MemberIdentity("m", 1)
        self.committer = OffsetCommitter(
            self.log.sibling(),
            lambda: self.identity,
            lambda _: ("id", 1),
            lambda: list(self.stored),
            lambda error, offsets: self.results.append((error, [tp.offset for tp in offsets])),
            interval_s,
            self.clock,
            BEAT_S,
        )

    def read_to(self, *offsets: int) -> None:
        self.stored = [
            ToCommit(TopicPartition("t", number, offset), "id")
            for number, offset in enumerate(offsets)
        ]

    def beat(self) -> PendingOffsets | None:
        """A heartbeat: the membership reads the log, and asks what to show."""
        self.log.head()
        return self.committer.pending("m")

    def lead(self, shown: PendingOffsets | None) -> int | None:
        """The leader commits what a heartbeat shows. Returns what is committed then."""
        assert shown is not None
        GroupLog(self.store, "g").commit_pending(MemberIdentity("leader", 1), [shown], FOREVER)
        return self.committed

    def has_committed(self, offset: int) -> None:
        """The leader commits this offset, and the member reads that."""
        self.read_to(offset)
        assert self.lead(self.beat()) == offset
        assert self.offsets(self.beat()) == []
        assert self.results.pop() == (None, [offset])

    @staticmethod
    def offsets(shown: PendingOffsets | None) -> list[int]:
        return [] if shown is None else [of.offset for of in shown.offsets]

    def beats(self, count: int) -> list[PendingOffsets | None]:
        """So many heartbeats."""
        found = []
        for _ in range(count):
            found.append(self.beat())
            self.pass_time(BEAT_S)
        return found

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


def test_a_heartbeat_shows_no_metadata_that_is_too_long_and_its_member_reports_it():
    """The leader has no caller to report it to."""
    with following() as member:
        for partition, text in enumerate(["x" * 4097, "note"]):
            place = TopicPartition("t", partition, 1, text)
            member.stored[partition:] = [ToCommit(place, "id")]
        assert member.beat() is None
        member.pass_time(INTERVAL_S)
        found = member.log.committed([("t", "id", 0), ("t", "id", 1)])
        assert found == [None, CommittedOffset("t", "id", 1, 1, "note")]
        assert member.results == [(None, [1, 1])]


def test_offsets_that_the_leader_commits_are_reported_once_and_not_committed_again():
    with following() as member:
        for offset in range(1, 8):
            member.read_to(offset)
            before = member.entries
            member.lead(member.beat())
            assert member.entries == before + 1
            member.pass_time(BEAT_S)
            assert member.beat() is None
        member.pass_time(10 * INTERVAL_S)
        assert (member.committed, member.entries) == (7, before + 1)
        assert member.results == [(None, [offset]) for offset in range(1, 8)]


def test_a_heartbeat_shows_the_newest_offsets_and_what_was_not_committed_yet():
    with following() as member:
        first = member.beat()
        member.read_to(5)
        second = member.beat()
        assert (member.offsets(first), member.offsets(second)) == ([1], [5])
        member.lead(first)
        third = member.beat()
        assert member.results == [(None, [1])]
        assert member.offsets(third) == [5]
        assert member.lead(second) == 1, (
            "it was shown before the member had read the entry of the first"
        )
        assert member.lead(third) == 5


def test_nothing_is_shown_long_before_the_periodic_commit_is_due():
    with following(60.0) as member:
        member.clock.until_waiting()
        assert [member.offsets(shown) for shown in member.beats(18)] == [[]] * 18
        assert member.lead(member.beat()) == 1
        member.read_to(2)
        assert [member.offsets(shown) for shown in member.beats(18)] == [[]] * 18, (
            "the next one is due in a minute"
        )
        assert member.offsets(member.beat()) == [2]


def test_an_offset_that_comes_late_in_the_interval_is_shown_by_the_next_heartbeat():
    with following(60.0) as member:
        member.stored = []
        member.clock.until_waiting()
        assert member.beats(21) == [None] * 21
        member.read_to(2)
        assert member.offsets(member.beat()) == [2]


def test_nothing_is_shown_without_periodic_commits_and_with_more_frequent_ones():
    for interval_s in (float("inf"), BEAT_S / 2):
        assert Follower(interval_s).beat() is None


def test_nothing_is_shown_on_behalf_of_another_session():
    """The session has ended, and the consumer has not noticed yet: its offsets are those of the
    former member.
    """
    with following() as member:
        member.log.head()
        assert member.committer.pending("m2") is None


def test_an_offset_of_an_unknown_topic_id_is_not_shown():
    """The application has stored it before the first record was read."""
    with following() as member:
        member.stored = [*member.stored, ToCommit(TopicPartition("t", 1, 5), None)]
        assert member.beat() is None
        member.pass_time(INTERVAL_S)
        eventually(lambda: member.committed == 1)


def test_the_metadata_of_an_offset_is_shown_committed_and_reported():
    with following() as member:
        member.stored = [ToCommit(TopicPartition("t", 0, 3, "note"), "id")]
        member.lead(member.beat())
        found = GroupLog(member.store, "g").committed([("t", "id", 0)])
        assert found == [CommittedOffset("t", "id", 0, 3, "note")]


# --- what the leader does not commit ---


def test_a_consumer_commits_itself_what_the_leader_does_not_commit():
    """The leader has died, or is a client that knows nothing of offsets in heartbeats."""
    with following() as member:
        for _ in range(4):
            assert member.beat() is not None
            assert member.committed is None
            member.pass_time(BEAT_S)
        eventually(lambda: member.committed == 1)
        assert member.results == [(None, [1])]
        member.read_to(2)
        assert member.beat() is None, "the leader is not relied upon"
        member.pass_time(INTERVAL_S)
        eventually(lambda: member.committed == 2)
        member.pass_time(RETRY_DELEGATION_S)
        member.read_to(3)
        assert member.offsets(member.beat()) == [3]


def test_a_consumer_commits_itself_what_the_leader_does_not_though_its_interval_is_long():
    with following(600.0) as member:
        member.pass_time(600 - 2 * BEAT_S)
        assert member.beat() is not None
        member.pass_time(4 * BEAT_S)
        eventually(lambda: member.committed == 1)


def test_a_consumer_that_becomes_the_only_member_commits_itself():
    with following() as member:
        assert member.beat() is not None
        for _ in range(4):
            member.pass_time(INTERVAL_S)
        eventually(lambda: member.committed == 1)


def test_an_own_commit_that_fails_is_not_repeated_at_once():
    with following() as member:
        assert member.beat() is not None
        leave(member.log, "m")
        for _ in range(4):
            member.pass_time(BEAT_S)
        eventually(lambda: member.results)
        member.pass_time(1.0)
        assert len(member.results) == 1
        ((error, offsets),) = member.results
        assert error is not None
        assert (error.name(), offsets) == ("UNKNOWN_MEMBER_ID", [1])


def test_a_consumer_with_very_many_offsets_commits_itself():
    with following() as member:
        join(member.log, "m", gone=["m"], known=partition_counts(1, t=5_000))
        member.identity = MemberIdentity("m", 2)
        member.read_to(*range(1, 5_001))
        assert member.beat() is None
        member.pass_time(INTERVAL_S)
        eventually(lambda: member.committed == 1)


# --- own commits beside those of the leader ---


def test_offsets_are_not_shown_while_an_own_commit_is_under_way():
    with following() as member:
        assert member.beat() is not None
        during: list[PendingOffsets | None] = []
        member.store.on_create = lambda: during.append(member.committer.pending("m"))
        member.committer.commit(member.stored)
        assert during == [None]
        member.read_to(2)
        shown = member.beat()
        assert shown is not None
        assert shown.after == member.entries, "the own commit is known"


def test_offsets_are_not_shown_while_an_asynchronous_commit_waits():
    member = Follower()  # its thread does not run
    assert member.beat() is not None
    member.committer.commit_later(member.stored)
    assert member.beat() is None
    member.committer.finish_queued()
    member.read_to(2)
    assert member.offsets(member.beat()) == [2]
    assert member.results == [(None, [1])], "the asynchronous commit, and nothing twice"


def test_a_synchronous_commit_voids_what_was_shown():
    with following() as member:
        member.read_to(100)
        shown = member.beat()
        member.committer.commit([ToCommit(TopicPartition("t", 0, 120), "id")])
        assert member.lead(shown) == 120
        member.read_to(121)
        member.lead(member.beat())
        member.beat()
        assert (member.committed, member.results) == (121, [(None, [121])]), (
            "a synchronous commit has its own result"
        )


def test_an_own_commit_after_that_of_the_leader_is_the_only_one_reported():
    """The member has not read yet what the leader has committed."""
    with following() as member:
        shown = member.beat()
        member.lead(shown)
        member.read_to(2)
        member.committer.commit_stored()
        assert member.beat() is None
        assert (member.committed, member.results) == (2, [(None, [2])])


def test_final_offsets_in_a_hand_over_void_what_was_shown():
    with following() as member:
        shown = member.beat()
        member.read_to(2)
        member.committer.hand_over("RELEASE", lambda head, identity: None, commit_stored=True)
        assert member.lead(shown) == 2
        assert member.results == [(None, [2])]


def test_a_commit_with_an_unknown_outcome_is_noticed_in_the_log():
    """It came to be, and the leader has nothing to add."""
    with following() as member:
        member.beat()
        commit(GroupLog(member.store, "g"), "m", CommittedOffset("t", "id", 0, 1))
        assert member.beat() is None
        assert member.results == [(None, [1])]


def test_the_offset_that_was_committed_before_is_not_taken_for_the_one_that_is_shown():
    """An entry of another partition follows, and that of the partition is as old as what the member
    had read.
    """
    with following() as member:
        member.has_committed(1)
        member.read_to(2)
        shown = member.beat()
        assert shown is not None
        assert shown.after == member.entries
        GroupLog(member.store, "g").commit(
            MemberIdentity("m", 1), [CommittedOffset("t", "id", 1, 9)], FOREVER
        )
        assert member.offsets(member.beat()) == [2]
        assert member.results == []
        assert member.lead(shown) == 2


# --- a member that goes back ---


def test_a_member_that_goes_back_to_the_committed_offset_shows_it_again():
    """A leader that acts late could commit what was shown in between, and the group would skip
    these records.
    """
    with following() as member:
        member.has_committed(50)
        member.read_to(100)
        further = member.beat()
        member.read_to(50)
        back = member.beat()
        assert member.offsets(back) == [50]
        assert member.lead(back) == 50
        assert member.lead(further) == 50, "the entry of the other one has voided it"
        assert member.beat() is None
        assert member.results == [(None, [50])]


def test_a_late_leader_is_corrected_when_the_member_has_gone_back():
    with following() as member:
        member.has_committed(50)
        member.read_to(100)
        further = member.beat()
        member.read_to(50)
        member.beat()
        assert member.lead(further) == 100, "the member has told nothing else to the log yet"
        back = member.beat()
        assert member.results == [(None, [100])]
        assert member.lead(back) == 50


def test_an_own_commit_of_a_member_that_has_gone_back_voids_what_was_shown():
    """As in `close`, which a leader may outlive with an old heartbeat in hand."""
    with following() as member:
        member.has_committed(50)
        member.read_to(100)
        further = member.beat()
        member.read_to(50)
        member.committer.commit_stored()
        assert member.lead(further) == 50


def test_a_member_that_goes_back_on_purpose_moves_the_committed_offset_back():
    with following() as member:
        member.has_committed(50)
        member.read_to(20)
        assert member.lead(member.beat()) == 20


# --- a change of the assignment ---


def test_offsets_of_a_lost_assignment_are_forgotten():
    with following() as member:
        assert member.beat() is not None
        member.stored = []
        member.committer.stored.forget()
        for _ in range(6):
            member.beat()
            member.pass_time(BEAT_S)
        assert (member.results, member.committed) == ([], None)


def test_offsets_that_another_owner_has_committed_are_not_reported():
    with following() as member:
        member.beat()
        leave(member.log, "m")
        join(member.log, "other")
        commit(member.log, "other", CommittedOffset("t", "id", 0, 9))
        member.beat()
        assert member.results == []


def test_offsets_of_another_owner_are_not_reported_once_the_partition_has_come_back():
    with following() as member:
        member.beat()
        leave(member.log, "m")
        join(member.log, "other")
        commit(member.log, "other", CommittedOffset("t", "id", 0, 9))
        leave(member.log, "other")
        member.identity = MemberIdentity("m", join(member.log, "m").generation)
        member.read_to(10)
        shown = member.beat()
        assert member.results == []
        assert member.lead(shown) == 10
        member.beat()
        assert member.results == [(None, [10])]


def test_offsets_of_a_topic_that_was_created_again_are_shown_beside_the_old_ones():
    with following() as member:
        member.beat()
        member.stored = [ToCommit(TopicPartition("t", 0, 1), "new")]
        shown = member.beat()
        assert shown is not None
        assert shown.offsets == (CommittedOffset("t", "new", 0, 1),)
        member.lead(shown)
        assert member.beat() is None
        assert GroupLog(member.store, "g").committed([("t", "new", 0), ("t", "id", 0)]) == [
            *shown.offsets,
            None,
        ]


# --- what the member knows of the log ---


def test_an_offset_that_a_checkpoint_repeats_is_not_reported_again():
    """The member could not read the entries, because they were cleaned up. The checkpoint does not
    say whether the leader has committed since: an equal offset is shown again, another one is new.
    """
    for committed, reported in ((50, []), (60, [(None, [60])])):
        with following() as member:
            member.has_committed(50)
            member.read_to(70)
            shown = member.beat()
            assert shown is not None
            if committed != 50:
                member.lead(replace(shown, offsets=(CommittedOffset("t", "id", 0, committed),)))
            state = GroupLog(member.store, "g").state()
            restored = restored_state(state.version + 1, state.actions())
            member.log.known.newest = KnownState(LogState(restored, None), 0.0, is_end_open=False)
            assert member.offsets(member.committer.pending("m")) == [70]
            assert member.results == reported


def test_a_member_never_names_an_older_version_than_before():
    """Of two clients of one log, the slower one may share last what it has read."""
    with following() as member:
        known = member.log.known
        older = known.newest
        member.has_committed(50)
        known.newest = older
        member.read_to(60)
        shown = member.beat()
        assert shown is not None
        assert shown.after == member.entries
        assert member.results == []


# --- the leader ---


def test_the_leader_commits_its_own_offsets_with_those_of_the_others():
    with following() as leader:
        join(leader.log, "other", known=partition_counts(1, t=2))
        leader.identity = MemberIdentity("m", 2)
        leader.log.change(
            "RELEASE", leader.identity, lambda head: released(head, "m", [("t", 1)], RANGE), FOREVER
        )
        leader.log.head()
        before = leader.entries
        other = PendingOffsets("other", 2, before, (CommittedOffset("t", "id", 1, 9),))
        leader.committer.commit_pending([other])
        eventually(lambda: leader.entries == before + 1)
        found = GroupLog(leader.store, "g").committed([("t", "id", 0), ("t", "id", 1)])
        assert [offset and offset.offset for offset in found] == [1, 9]
        eventually(lambda: leader.beat() is None)
        assert leader.results == [(None, [1])]


def test_a_leader_without_automatic_commits_commits_for_the_others():
    with following(float("inf")) as leader:
        join(leader.log, "other", known=partition_counts(1, t=2))
        leader.identity = MemberIdentity("m", 2)
        leader.log.change(
            "RELEASE", leader.identity, lambda head: released(head, "m", [("t", 1)], RANGE), FOREVER
        )
        before = leader.entries
        other = PendingOffsets("other", 2, before, (CommittedOffset("t", "id", 1, 9),))
        leader.committer.commit_pending([other])
        eventually(lambda: leader.entries == before + 1)
        assert leader.committed is None


def test_a_leader_that_closes_does_not_wait_for_offsets_of_others():
    with following() as leader:
        other = PendingOffsets("other", 1, 0, (CommittedOffset("t", "id", 1, 9),))
        leader.committer.abandon()
        leader.committer.commit_pending([other])
        leader.committer.close()
        assert leader.entries == 0


@pytest.mark.parametrize("content", [b"%d {", b"%d []", b"%d \xff", b"%d " + b"x" * 200_000])
def test_a_heartbeat_that_cannot_be_parsed_shows_life_and_no_offsets(content):
    store, clock = RemoteStore("test"), ManualClock()
    watch = LivenessCheck(store, "g", clock)
    members = {"other": new_member(session_timeout_ms=6_000)}
    for beat in range(4):
        store.put(member_key("g", "other"), content.replace(b"%d", b"%d" % beat))
        found = watch.check(members)
        assert found.dead == frozenset()
        assert found.alive == (frozenset(members) if beat else frozenset())
        assert watch.pending(members) == []
        clock.advance(5)
    clock.advance(6)
    assert watch.check(members).dead == {"other"}


# --- consumers ---


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("stores", [False, True], ids=["", "with store_offsets"])
def test_consumers_on_a_remote_store_let_their_leader_commit(strategy, stores):
    store = RemoteStore("test")
    Topic("t", partitions=2, store=store).create()
    conf = {
        "bootstrap.servers": "memory://unused",
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": strategy,
        "heartbeat.interval.ms": 100,
        "auto.commit.interval.ms": 100,
        "enable.auto.offset.store": not stores,
    }
    reported: list[tuple[int, int]] = []

    def on_commit(error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        assert error is None
        reported.extend((tp.partition, tp.offset) for tp in partitions)

    def committed() -> list[int]:
        return [
            tp.offset for tp in second.committed([TopicPartition("t", 0), TopicPartition("t", 1)])
        ]

    with (
        Consumer(conf, store=store, on_commit=on_commit) as first,
        Consumer(conf, store=store, on_commit=on_commit) as second,
        Producer({"bootstrap.servers": "memory://unused"}, store=store) as producer,
    ):

        def polled() -> bool:
            for consumer in (first, second):
                if (message := consumer.poll(0.01)) is not None:
                    assert message.error() is None
                    if stores:
                        consumer.store_offsets(message)
            return True

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
        entries = [
            store.get(entry.key)
            for entry in store.list("groups/g/_delta_log/")
            if ".json" in entry.key
        ]
        combined = [entry for entry in entries if b'"pending":"true"' in entry]
        assert all(f'"member":"{leader}"'.encode() in entry for entry in combined)
        assert any(re.search(rb'"appId":"t/\w+/%d"' % owned, entry) for entry in combined)
