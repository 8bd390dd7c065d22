"""Groups whose members restart, come and go: only what has to move moves, and the others work
on.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from deltaq import Consumer, Producer, Topic, TopicPartition
from tests.doubles.group_entries import GroupEntry, group_entries, moved
from tests.doubles.reading import eventually

MEMBERS = 10
PARTITIONS = 20

CONF = {
    "group.id": "g",
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "session.timeout.ms": 60_000,  # no machine is so slow that a member falls silent for this long
    "max.poll.interval.ms": 300_000,
}


@pytest.fixture
def topic(root: str) -> str:
    """A root with topic `t`."""
    Topic("t", partitions=PARTITIONS, conf={"bootstrap.servers": root}).create()
    return root


def fill(root: str, count: int) -> None:
    with Producer({"bootstrap.servers": root, "linger.ms": 20}) as producer:
        for number in range(count):
            producer.produce("t", f"{number}", partition=number % PARTITIONS)


def a_member(root: str, name: str, **settings: object) -> Consumer:
    consumer = Consumer({"bootstrap.servers": root, "client.id": name, **CONF, **settings})
    consumer.subscribe(["t"])
    return consumer


class Members:
    """Members by name, which one thread polls in turn. A context manager that closes them."""

    def __init__(self, root: str, settings: Mapping[str, object], static: bool = False) -> None:
        self.root = root
        self.members: dict[str, Consumer] = {}
        self._settings = settings
        self._static = static

    def __enter__(self) -> Members:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.members):
            self.close(name)

    def start(self, name: str) -> None:
        instance = {"group.instance.id": name} if self._static else {}
        self.members[name] = a_member(self.root, name, **self._settings, **instance)

    def close(self, name: str) -> None:
        self.members.pop(name).close()

    def poll(self) -> None:
        for consumer in self.members.values():
            assert consumer.poll(0) is None

    def wait(self) -> GroupEntry:
        """Poll until each member has what the group's log assigns to it. Returns the last entry."""
        last: list[GroupEntry] = []

        def is_stable() -> bool:
            self.poll()
            held = {
                (tp.topic, tp.partition): name
                for name, consumer in self.members.items()
                for tp in consumer.assignment()
                if consumer.memberid() is not None
            }
            if len(held) < PARTITIONS:
                return False
            last[:] = group_entries(self.root)[-1:]
            return (
                last[0].is_stable
                and last[0].owners == held
                and set(last[0].clients) == self.members.keys()
            )

        eventually(is_stable, f"{PARTITIONS} partitions for {len(self.members)} members")
        return last[0]


# --- rolling restarts ---


def test_a_rolling_restart_of_static_members_moves_no_partition(topic):
    with Members(topic, {}, static=True) as group:
        for number in range(MEMBERS):
            group.start(f"m{number}")
        before = group.wait()
        assert set(Counter(before.owners.values()).values()) == {2}
        first = len(group_entries(topic))
        for number in range(MEMBERS):
            group.close(f"m{number}")
            group.poll()
            group.start(f"m{number}")
            assert group.wait().owners == before.owners
        entries = group_entries(topic)[first:]
        assert [entry.operation for entry in entries] == ["JOIN"] * MEMBERS
        assert all(
            (entry.owners, entry.generation) == (before.owners, before.generation)
            for entry in entries
        )


def test_a_rolling_restart_of_cooperative_members_moves_what_the_leaver_had_and_no_more(topic):
    with Members(topic, {"partition.assignment.strategy": "cooperative-sticky"}) as group:
        for number in range(MEMBERS):
            group.start(f"m{number}")
        before = group.wait()
        assert set(Counter(before.owners.values()).values()) == {2}
        for number in range(MEMBERS):
            leaver = f"m{number}"
            group.close(leaver)
            after = group.wait()
            assert moved(before.owners, after.owners) == {
                partition for partition, owner in before.owners.items() if owner == leaver
            }
            group.start(leaver)
            before, without = group.wait(), after
            assert len(moved(without.owners, before.owners)) == 2
            assert set(Counter(before.owners.values()).values()) == {2}


# --- members that come and go ---


class MemberThread:
    """A member on a thread of its own, which commits what it has read when partitions are
    revoked.
    """

    def __init__(self, root: str, name: str, strategy: str) -> None:
        self._root = root
        self._conf = {"client.id": name, "partition.assignment.strategy": strategy}
        self._read: dict[int, int] = {}
        self.records: list[tuple[int, int]] = []
        self.stays = 0

    def stay_until(self, is_over: Callable[[], bool]) -> None:
        """Join, read until then, and leave."""
        consumer = Consumer({"bootstrap.servers": self._root, **CONF, **self._conf})
        with consumer:
            consumer.subscribe(["t"], on_revoke=self._revoked)
            while not is_over():
                for message in consumer.consume(5, 0.01):
                    partition, offset = message.partition(), message.offset()
                    assert partition is not None
                    assert offset is not None
                    self._read[partition] = offset + 1
                    self.records.append((partition, offset))

    def come_and_go_until(self, is_over: Callable[[], bool]) -> None:
        """Join, read a few records, and leave, again and again."""
        while not is_over():
            self.stay_until(partial(self._has_read_or, is_over, len(self.records)))
            self.stays += 1

    def _has_read_or(self, is_over: Callable[[], bool], count_before: int) -> bool:
        return len(self.records) > count_before or is_over()

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        read = [
            TopicPartition("t", tp.partition, self._read.pop(tp.partition))
            for tp in partitions
            if tp.partition in self._read
        ]
        if read:
            consumer.commit(offsets=read, asynchronous=False)


@pytest.mark.fault("R7")
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_that_come_and_go_in_a_loop_read_each_record_once(topic, strategy):
    workers = [MemberThread(topic, f"w{number}", strategy) for number in range(3)]
    stop = threading.Event()

    def records() -> list[tuple[int, int]]:
        return [record for worker in workers for record in list(worker.records)]

    def has_read(count: int) -> bool:
        for run in running:
            if run.done():
                run.result()
        return len(records()) >= count

    with ThreadPoolExecutor() as threads:
        running = [threads.submit(workers[0].stay_until, stop.is_set)]
        running += [threads.submit(worker.come_and_go_until, stop.is_set) for worker in workers[1:]]
        batches = 0
        try:
            while workers[1].stays + workers[2].stays < 20:
                batches += 1
                fill(topic, PARTITIONS)
                eventually(partial(has_read, batches * PARTITIONS), "the delivery of new records")
        finally:
            stop.set()
        for run in running:
            run.result()
    assert sorted(records()) == [
        (partition, offset) for partition in range(PARTITIONS) for offset in range(batches)
    ]


@pytest.mark.fault("R7")
def test_a_group_that_all_members_have_left_goes_on_where_they_ended(topic):
    fill(topic, 100)
    workers = [MemberThread(topic, f"w{number}", "range") for number in range(3)]

    def is_over() -> bool:
        return sum(len(worker.records) for worker in workers) >= 50

    with ThreadPoolExecutor() as threads:
        for run in [threads.submit(worker.stay_until, is_over) for worker in workers]:
            run.result()
    last = group_entries(topic)[-1]
    assert (last.operation, last.clients, last.owners) == ("LEAVE", (), {})
    read = {record for worker in workers for record in worker.records}
    late = MemberThread(topic, "late", "range")
    late.stay_until(lambda: len(late.records) + len(read) >= 100)
    assert sorted(late.records) == sorted(
        {(partition, offset) for partition in range(PARTITIONS) for offset in range(5)} - read
    )
