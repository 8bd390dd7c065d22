"""A group across processes: members share the partitions, killed and stopped ones are replaced,
nothing is lost, and a zombie commits nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest

from deltaq import (
    AdminClient,
    Consumer,
    Fenced,
    GroupInUse,
    KafkaError,
    Producer,
    Topic,
    TopicPartition,
)
from deltaq.groups.log import GroupLog
from deltaq.groups.session import POLL_S
from deltaq.store import open_store
from tests.doubles.group_member import GroupMemberProcess
from tests.doubles.groups import leave
from tests.doubles.reading import drain, eventually

PARTITIONS = 3
SHORT = {"session.timeout.ms": 800, "heartbeat.interval.ms": 100}
"""For members that are killed or stopped. A slow machine may end such a session while the member
lives.
"""

LONG = {"session.timeout.ms": 30_000, "heartbeat.interval.ms": 100}


@pytest.fixture
def topic(root: str) -> str:
    """A root with topic `t`, which has 20 records in each of its 3 partitions."""
    Topic("t", partitions=PARTITIONS, conf={"bootstrap.servers": root}).create()
    fill(root, 60)
    return root


def fill(root: str, count: int, partitions: int = PARTITIONS) -> None:
    with Producer({"bootstrap.servers": root, "linger.ms": 20}) as producer:
        for number in range(count):
            producer.produce("t", f"{number}", partition=number % partitions)


@pytest.fixture
def start(root: str) -> Iterator[Callable[..., GroupMemberProcess]]:
    """Starts members, which end with the test."""
    with ExitStack() as stack:
        yield lambda name="child", **settings: stack.enter_context(
            GroupMemberProcess(root, name, **settings)
        )


def a_member(root: str, **settings: object) -> Consumer:
    conf = {
        "bootstrap.servers": root,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    return Consumer(conf | LONG | settings)


def committed(root: str, partitions: int = PARTITIONS) -> list[int]:
    with a_member(root) as consumer:
        found = consumer.committed(
            [TopicPartition("t", partition) for partition in range(partitions)]
        )
    return [max(0, tp.offset) for tp in found]


def take(consumer: Consumer, count: int) -> dict[int, list[int]]:
    """The offsets of the next `count` records by partition."""
    found: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    for message in drain(consumer, count):
        assert message.error() is None
        found[message.partition()].append(message.offset())
    return found


def shares(members: Sequence[GroupMemberProcess]) -> list[int]:
    """The numbers of partitions of all members, or nothing while two of them have the same one, or
    one has none.
    """
    owned = [partition for member in members for partition in member.owned]
    return (
        sorted(len(member.owned) for member in members)
        if len(set(owned)) == len(owned) == 10
        else []
    )


# --- sharing ---


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_three_processes_share_ten_partitions_and_two_have_half_each_after_the_third_leaves(
    root, start, strategy
):
    Topic("t", partitions=10, conf={"bootstrap.servers": root}).create()
    conf = LONG | {"partition.assignment.strategy": strategy}
    members = [start(f"m{number}", **conf) for number in range(3)]
    eventually(lambda: shares(members) == [3, 3, 4], "shares of 4, 3 and 3 partitions")
    fill(root, 100, 10)
    eventually(lambda: committed(root, 10) == [10] * 10, "the commit of all records")
    members[0].close()
    eventually(lambda: shares(members[1:]) == [5, 5], "shares of 5 and 5 partitions")
    fill(root, 100, 10)
    eventually(lambda: committed(root, 10) == [20] * 10, "the commit of all records")
    eventually(
        lambda: sum(len(member.of_kind("read")) for member in members) >= 200,
        "the reports of all records",
    )
    read = [place for member in members for place in member.of_kind("read")]
    assert sorted(read) == [(partition, offset) for partition in range(10) for offset in range(20)]


ROUNDS = 4
"""Kills of which at least one must be noticed within the bound: on a busy machine any step may take
a second.
"""


@pytest.mark.fault("C3", "R1")
@pytest.mark.parametrize("victim", [0, 1], ids=["leader", "follower"])
def test_the_partitions_of_a_killed_member_move_within_its_session_timeout(root, start, victim):
    Topic("t", partitions=10, conf={"bootstrap.servers": root}).create()
    conf = {"session.timeout.ms": 1500, "heartbeat.interval.ms": 150}
    # Session time-out, heartbeat interval, and the second that the promise allows for the
    # rebalance.
    bound_s = 1.5 + 0.15 + 1.0
    if root.startswith("s3:"):
        bound_s += POLL_S  # until the other survivor reads the entry
    members = [start("m0", **conf)]
    members[0].wait_for("owns")
    members += [start(f"m{number}", **conf) for number in (1, 2)]
    took_s = []
    for number in range(ROUNDS):
        eventually(lambda: shares(members) == [3, 3, 4], "shares of 4, 3 and 3 partitions")
        killed_at = members.pop(victim).kill()
        eventually(lambda: shares(members) == [5, 5], "shares of 5 and 5 partitions")
        moved_at = max(
            event.at for member in members for event in member.events if event.kind == "owns"
        )
        took_s.append(moved_at - killed_at)
        if took_s[-1] <= bound_s:
            return
        members.append(start(f"n{number}", **conf))
    pytest.fail(
        f"partitions of killed members were without an owner for {took_s} s, each more than "
        f"{bound_s} s"
    )


# --- members that die or stand still ---


@pytest.mark.fault("R4")
def test_what_a_killed_member_has_not_committed_is_delivered_again(topic, start):
    child = start(**SHORT, **{"test.hold": 6})
    child.wait_for("holds")
    first = committed(topic)
    assert sum(first) == 5
    with a_member(topic) as consumer:
        consumer.subscribe(["t"])
        while consumer.memberid() is None:
            assert consumer.poll(0.01) is None
        # The child, which does not poll, has not released any partition.
        assert consumer.poll(0.2) is None
        child.kill()
        found = take(consumer, 55)
        assert found == {
            partition: list(range(first[partition], 20)) for partition in range(PARTITIONS)
        }
        consumer.commit(asynchronous=False)
    assert committed(topic) == [20, 20, 20]


@pytest.mark.fault("C3")
def test_a_killed_member_keeps_commits_of_assigned_partitions_away_for_its_session_only(
    topic, start
):
    child = start(**SHORT)
    child.wait_for("committed")
    with a_member(topic) as outsider:
        offsets = [TopicPartition("t", 0, 17)]
        with pytest.raises(Fenced) as caught:
            outsider.commit(offsets=offsets, asynchronous=False)
        assert caught.value.args[0] == KafkaError.UNKNOWN_MEMBER_ID
        assert "'child' on host" in caught.value.error.str()
        child.kill()
        eventually(lambda: commits(outsider, offsets), "a commit past the killed member")
    assert committed(topic)[0] == 17


def commits(consumer: Consumer, offsets: list[TopicPartition]) -> bool:
    """Whether a commit counts now."""
    try:
        consumer.commit(offsets=offsets, asynchronous=False)
    except Fenced:
        return False
    return True


@pytest.mark.fault("C3")
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_stopped_member_is_fenced_when_it_comes_back_and_gets_partitions_again(
    topic, start, strategy
):
    by_strategy = {"partition.assignment.strategy": strategy}
    child = start(**SHORT, **by_strategy, **{"test.hold": 6})
    child.wait_for("holds")
    first = committed(topic)
    child.signal(signal.SIGSTOP)
    with a_member(topic, **by_strategy) as consumer:
        consumer.subscribe(["t"])
        found = take(consumer, 55)
        assert found == {
            partition: list(range(first[partition], 20)) for partition in range(PARTITIONS)
        }
        consumer.commit(asynchronous=False)
        reports = len(child.of_kind("committed"))
        child.signal(signal.SIGCONT)
        child.proceed()
        child.wait_for("lost")
        assert child.of_kind("lost") == [([0, 1, 2],)]
        assert child.of_kind("refused") == [("Fenced",)]
        assert len(child.of_kind("committed")) == reports
        assert committed(topic) == [20, 20, 20]
        eventually(
            lambda: consumer.poll(0.01) is None and len(child.owned) in (1, 2),
            "partitions for the child",
        )
        own = child.owned
        fill(topic, 3)
        mine = take(consumer, 3 - len(own))
        assert mine == {
            partition: [] if partition in own else [20] for partition in range(PARTITIONS)
        }
        child.wait_for("committed", reports + len(own))
        assert set(child.of_kind("read")[-len(own) :]) == {(partition, 20) for partition in own}


def test_a_restarted_member_resumes_at_the_last_close(topic):
    read: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    for count in (1, 7, 20, 32):
        with a_member(topic) as consumer:
            consumer.subscribe(["t"])
            for partition, offsets in take(consumer, count).items():
                read[partition] += offsets
            consumer.commit(asynchronous=False)
    assert read == {partition: list(range(20)) for partition in range(PARTITIONS)}


@pytest.mark.fault("C3", "R3")
def test_a_zombie_member_cannot_commit_and_joins_again(topic):
    lost: list[list[int]] = []
    with a_member(topic) as zombie:
        zombie.subscribe(
            ["t"], on_lost=lambda _, partitions: lost.append([tp.partition for tp in partitions])
        )
        take(zombie, 10)
        before = zombie.memberid()
        leave(GroupLog(open_store(topic), "g"), before or "")
        with pytest.raises(Fenced):
            zombie.commit(asynchronous=False)
        eventually(lambda: zombie.memberid() not in (None, before), "another session")
        with pytest.raises(Fenced):
            zombie.commit(asynchronous=False)
        assert committed(topic) == [0, 0, 0]
        assert take(zombie, 60) == {partition: list(range(20)) for partition in range(PARTITIONS)}
        assert lost == [[0, 1, 2]]
        zombie.commit(asynchronous=False)
        assert committed(topic) == [20, 20, 20]


# --- a group that is deleted ---


@pytest.mark.fault("R7")
def test_a_group_is_not_deleted_while_a_member_polls(topic, start):
    child = start(**LONG)
    child.wait_for("committed", 60)
    with AdminClient({"bootstrap.servers": topic}) as admin, pytest.raises(GroupInUse) as caught:
        admin.delete_consumer_groups(["g"])["g"].result(20)
    assert caught.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    assert committed(topic) == [20, 20, 20]
    fill(topic, 3)
    child.wait_for("committed", 63)
    assert child.of_kind("lost") == []


@pytest.mark.fault("C3", "R7")
def test_a_stopped_member_of_a_deleted_group_is_fenced_and_reads_from_the_beginning(topic, start):
    child = start(**SHORT, **{"test.hold": 6})
    child.wait_for("holds")
    child.signal(signal.SIGSTOP)
    with AdminClient({"bootstrap.servers": topic}) as admin:
        eventually(lambda: is_deleted(admin), "the deletion of the group")
    child.signal(signal.SIGCONT)
    child.proceed()
    child.wait_for("refused")
    child.wait_for("committed", 5 + 60)
    assert child.of_kind("lost") == [([0, 1, 2],)]
    assert sorted(child.of_kind("read")[6:]) == [
        (partition, offset) for partition in range(3) for offset in range(20)
    ]
    assert committed(topic) == [20, 20, 20]


def is_deleted(admin: AdminClient) -> bool:
    """Try to delete the group; False while its member may be alive."""
    try:
        admin.delete_consumer_groups(["g"])["g"].result(20)
    except GroupInUse:
        return False
    return True
