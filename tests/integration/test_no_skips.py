"""Races in which a record could be skipped, or accepted and forgotten."""

from __future__ import annotations

import threading
import time

import pytest

from deltaq import OFFSET_INVALID, Consumer, KafkaError, Producer, Topic, TopicPartition
from deltaq.groups.offset_commits import OffsetCommitter
from deltaq.store import MemoryStore
from tests.doubles.reading import eventually, taken

PARTITION = [TopicPartition("t", 0)]


@pytest.fixture(params=["memory_root", pytest.param("s3_server_root", marks=pytest.mark.s3_server)])
def root(request: pytest.FixtureRequest) -> str:
    path: str = request.getfixturevalue(request.param)
    return path


def fill(root: str, tag: bytes, count: int) -> None:
    with Producer({"bootstrap.servers": root}) as producer:
        for number in range(count):
            producer.produce("t", b"%s-%d" % (tag, number), partition=0)


def values(consumer: Consumer, count: int) -> list[bytes]:
    """The next `count` records; events in between are passed over."""
    found: list[bytes] = []
    deadline = time.monotonic() + 20
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message.value())
    return found


@pytest.mark.fault("R8")
@pytest.mark.parametrize(
    "noticed", [True, False], ids=["the change was noticed", "the change was not noticed yet"]
)
def test_pausing_while_a_topic_is_recreated_skips_no_record_of_the_new_one(noticed, root):
    fill(root, b"old", 100)
    topic = Topic("t", conf={"bootstrap.servers": root})
    with Consumer(
        {"bootstrap.servers": root, "group.id": "g", "auto.offset.reset": "earliest"}
    ) as consumer:
        consumer.assign(PARTITION)
        values(consumer, 50)
        topic.delete()
        topic.create()
        fill(root, b"new", 100)
        new_id = topic.describe().topic_id
        deadline = time.monotonic() + 20
        while noticed and time.monotonic() < deadline:
            seen = None if consumer._reader is None else consumer._reader.fetcher.seen("t")
            if seen is not None and seen.head.topic_id == new_id:
                break
        consumer.pause(PARTITION)
        consumer.resume(PARTITION)
        new: list[bytes] = []
        while len(new) < 100 and time.monotonic() < deadline:
            new += [value for value in values(consumer, 1) if value.startswith(b"new")]
        assert new == [b"new-%d" % number for number in range(100)]


@pytest.mark.fault("R6")
def test_records_that_consume_has_not_returned_are_not_committed(root):
    fill(root, b"x", 10)
    settings = {
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 3_600_000,
    }
    with Consumer({"bootstrap.servers": root, **settings}) as consumer:
        consumer.assign(PARTITION)
        returned: list[int] = []
        thread = threading.Thread(target=lambda: returned.append(len(consumer.consume(1000, 2.0))))
        thread.start()
        eventually(lambda: taken(consumer) == 10)
        assert consumer._reader is not None
        consumer._reader.committer.commit_stored()
        assert returned == [], "it is still waiting for more"
        assert consumer.committed(PARTITION)[0].offset == OFFSET_INVALID
        thread.join()
        consumer._reader.committer.commit_stored()
        assert (returned, consumer.committed(PARTITION)[0].offset) == ([10], 10)


def defect(committer: OffsetCommitter, request: object) -> list[TopicPartition]:
    raise TypeError("a defect")


def test_a_failed_commit_is_reported_and_later_commits_go_on(root, monkeypatch):
    fill(root, b"x", 5)
    reports: list[KafkaError | None] = []
    settings = {
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "on_commit": lambda error, _: reports.append(error),
    }
    with Consumer({"bootstrap.servers": root, **settings}) as consumer:
        consumer.assign(PARTITION)
        values(consumer, 5)
        with monkeypatch.context() as broken:
            broken.setattr(OffsetCommitter, "_send", defect)
            consumer.commit(offsets=[TopicPartition("t", 0, 3)])
            deadline = time.monotonic() + 20
            while not reports and time.monotonic() < deadline:
                consumer.poll(0.05)
        consumer.commit(offsets=[TopicPartition("t", 0, 4)])
        deadline = time.monotonic() + 20
        while len(reports) < 2 and time.monotonic() < deadline:
            consumer.poll(0.05)
        assert reports[0] == KafkaError._FAIL
        assert reports[1] is None
        assert consumer.committed(PARTITION)[0].offset == 4


def test_a_first_produce_that_races_with_close_is_refused_or_written():
    class Slow(MemoryStore):
        entered, go_on = threading.Event(), threading.Event()

        def get(self, key: str, size_max: int | None = None) -> bytes:
            self.entered.set()
            self.go_on.wait(20)
            return super().get(key, size_max)

    store = Slow("slow")
    producer = Producer({"bootstrap.servers": "memory://slow"}, store=store)
    outcome: list[str] = []

    def produce() -> None:
        try:
            producer.produce("t", b"x")
        except RuntimeError:
            outcome.append("refused")
        else:
            outcome.append("accepted")

    producing = threading.Thread(target=produce)
    producing.start()
    assert store.entered.wait(20)
    closing = threading.Thread(target=producer.close)
    closing.start()
    store.go_on.set()
    producing.join(20)
    closing.join(20)
    deadline = time.monotonic() + 20
    topic = Topic("t", conf={"bootstrap.servers": "memory://slow"}, store=store)
    while outcome == ["accepted"] and not topic.to_arrow().num_rows and time.monotonic() < deadline:
        pass
    assert outcome == ["refused"] or topic.to_arrow().num_rows == 1
    with pytest.raises(RuntimeError):
        producer.produce("t", b"y")
