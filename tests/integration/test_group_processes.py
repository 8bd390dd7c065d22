"""A group across processes: killed and stopped members are replaced, nothing is lost, and a zombie commits nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from queue import Queue
from typing import Any

import pytest

from deltaq import Consumer, Fenced, KafkaError, Producer, Topic, TopicPartition
from deltaq.groups.log import GroupLog
from deltaq.store import open_store
from tests.doubles.groups import leave
from tests.doubles.reading import TIMEOUT_S, eventually

PARTITIONS = 3
SESSION = {"session.timeout.ms": 600, "heartbeat.interval.ms": 60}

# A member that prints what happens to it as JSON lines: ["read", partition, offset], ["committed"], ["error", name].
MEMBER = """
import json, sys, time
from deltaq import Consumer, KafkaException

def say(*what):
    print(json.dumps(what), flush=True)

root, commit_every = sys.argv[1], int(sys.argv[2])
conf = {"bootstrap.servers": root, "group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
consumer = Consumer({**conf, "session.timeout.ms": 600, "heartbeat.interval.ms": 60, "client.id": "child"})
consumer.subscribe(["t"], on_lost=lambda c, parts: say("lost"))
count = 0
while True:
    try:
        message = consumer.poll(0.05)
        if message is None:
            continue
        if message.error():
            say("error", message.error().name())
            continue
        say("read", message.partition(), message.offset())
        time.sleep(0.02)  # the work: so that there is something left when this process is killed
        count += 1
        if count % commit_every == 0:
            consumer.commit(asynchronous=False)
            say("committed", count)
    except KafkaException as error:
        say("error", type(error).__name__)
"""


class Child:
    """The member process, and the lines it has said."""

    def __init__(self, root: str, commit_every: int = 1) -> None:
        command = [sys.executable, "-c", MEMBER, root, str(commit_every)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.lines: Queue[list[Any]] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(json.loads(line))

    def until(self, what: str) -> list[list[Any]]:
        """Everything said up to and including the next line of this kind."""
        said: list[list[Any]] = []
        while not said or said[-1][0] != what:
            said.append(self.lines.get(timeout=TIMEOUT_S))
        return said

    def so_far(self) -> list[list[Any]]:
        """Everything said that was not looked at yet."""
        said: list[list[Any]] = []
        while not self.lines.empty():
            said.append(self.lines.get())
        return said

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def root(root: str) -> str:
    Topic("t", partitions=PARTITIONS, conf={"bootstrap.servers": root}).create()
    fill(root, 60)
    return root


def fill(root: str, count: int) -> None:
    with Producer({"bootstrap.servers": root, "linger.ms": 20}) as producer:
        for number in range(count):
            producer.produce("t", f"{number}", partition=number % PARTITIONS)


@pytest.fixture
def child(root: str) -> Iterator[Child]:
    member = Child(root)
    yield member
    member.end()


def a_member(root: str) -> Consumer:
    conf = {"bootstrap.servers": root, "group.id": "g", "auto.offset.reset": "earliest"}
    return Consumer(conf | SESSION | {"enable.auto.commit": False})


def committed(root: str) -> list[int]:
    with a_member(root) as consumer:
        found = consumer.committed([TopicPartition("t", partition) for partition in range(PARTITIONS)])
    return [max(0, tp.offset) for tp in found]


def take_over(consumer: Consumer, count: int) -> dict[int, list[int]]:
    """The offsets of the next `count` records by partition, once the group is free."""
    found: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    while sum(map(len, found.values())) < count:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert message.error() is None
        found[message.partition() or 0].append(message.offset() or 0)
    return found


def test_members_in_two_processes_share_the_partitions(root, child):
    said, mine = child.until("committed"), []
    with a_member(root) as consumer:
        consumer.subscribe(["t"])

        def is_read_up_to(end: int) -> bool:
            message = consumer.poll(0.05)
            if message is not None:
                mine.append((message.partition() or 0, message.offset() or 0))
                consumer.commit(message=message, asynchronous=False)
            return committed(root) == [end] * PARTITIONS

        eventually(lambda: is_read_up_to(20), "all records")
        assert 0 < len(consumer.assignment()) < PARTITIONS
        held = {tp.partition for tp in consumer.assignment()}
        fill(root, 2 * PARTITIONS)
        eventually(lambda: is_read_up_to(22), "two more of each partition")

    def of_child() -> list[tuple[int, int]]:
        said.extend(child.so_far())
        return [(line[1], line[2]) for line in said if line[0] == "read"]

    every = [(partition, offset) for partition in range(PARTITIONS) for offset in range(22)]
    eventually(lambda: len(mine) + len(of_child()) >= len(every), "what the child has said")
    assert sorted(mine + of_child()) == every, "each partition has moved with its committed offset"
    assert {partition for partition, offset in mine if offset >= 20} == held


def test_a_killed_member_is_replaced_and_uncommitted_records_are_redelivered(root, child):
    for _ in range(5):
        child.until("committed")
    child.signal(signal.SIGKILL)
    child.process.wait()
    start = committed(root)
    assert sum(start) >= 5
    with a_member(root) as consumer:
        consumer.subscribe(["t"])
        found = take_over(consumer, 60 - sum(start))
        assert found == {partition: list(range(start[partition], 20)) for partition in range(PARTITIONS)}
        consumer.commit(asynchronous=False)
    assert committed(root) == [20, 20, 20]


@pytest.mark.fault("C3")
def test_a_killed_member_keeps_commits_of_assigned_partitions_away_for_its_session_only(root, child):
    child.until("committed")
    with a_member(root) as outsider:
        offsets = [TopicPartition("t", 0, 17)]
        with pytest.raises(Fenced) as caught:
            outsider.commit(offsets=offsets, asynchronous=False)
        assert caught.value.args[0] == KafkaError.UNKNOWN_MEMBER_ID
        assert "'child' on host" in caught.value.error.str()
        child.signal(signal.SIGKILL)
        child.process.wait()
        eventually(lambda: commits(outsider, offsets), "a commit past the killed member")
    assert committed(root)[0] == 17


def commits(consumer: Consumer, offsets: list[TopicPartition]) -> bool:
    """Whether a commit counts now."""
    try:
        consumer.commit(offsets=offsets, asynchronous=False)
    except Fenced:
        return False
    return True


@pytest.mark.fault("C3")
def test_a_stopped_member_that_comes_back_is_fenced_and_joins_again_later(root, child):
    child.until("committed")
    child.signal(signal.SIGSTOP)
    start = committed(root)
    consumer = a_member(root)
    consumer.subscribe(["t"])
    found = take_over(consumer, 60 - sum(start))
    assert found == {partition: list(range(start[partition], 20)) for partition in range(PARTITIONS)}
    consumer.commit(asynchronous=False)
    child.signal(signal.SIGCONT)
    # It may deliver the record that it has fetched, as in Kafka; but its commits are fenced.
    said = child.until("lost")
    assert sum(line[0] == "read" for line in said) <= 2
    assert committed(root) == [20, 20, 20]
    consumer.close()
    fill(root, 3)
    said = child.until("committed")
    assert ["read", 0, 20] in said or ["read", 1, 20] in said or ["read", 2, 20] in said


def test_a_restarted_member_resumes_at_the_last_close(root):
    read: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
    for count in (1, 7, 20, 32):
        with a_member(root) as consumer:
            consumer.subscribe(["t"])
            for partition, offsets in take_over(consumer, count).items():
                read[partition] += offsets
            consumer.commit(asynchronous=False)
    assert read == {partition: list(range(20)) for partition in range(PARTITIONS)}


@pytest.mark.fault("C3")
def test_a_zombie_member_cannot_commit(root):
    zombie, successor = a_member(root), a_member(root)
    zombie.subscribe(["t"])
    take_over(zombie, 10)
    before = zombie.memberid()
    leave(GroupLog(open_store(root), "g"), before or "")
    with pytest.raises(Fenced):
        zombie.commit(asynchronous=False)
    eventually(lambda: zombie.memberid() not in (None, before), "another session")
    with pytest.raises(Fenced):
        zombie.commit(asynchronous=False)
    assert committed(root) == [0, 0, 0]
    zombie.close()
    successor.subscribe(["t"])
    take_over(successor, 60)
    successor.commit(asynchronous=False)
    assert committed(root) == [20, 20, 20]
    successor.close()
