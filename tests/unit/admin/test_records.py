"""Deleting records through the admin client, against the facts of a real cluster (confluent-kafka
2.16, Kafka 4).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import pytest

from deltaq import OFFSET_END, Consumer, KafkaError, Producer, Topic, TopicPartition, names
from deltaq.admin import AdminClient, DeletedRecords, OffsetSpec
from deltaq.admin.calls import end_threads
from deltaq.admin.records import trim
from deltaq.maintenance.throttle import Throttle
from deltaq.store import MemoryStore, open_store
from deltaq.store.parallel import REQUESTS_MAX
from deltaq.testing import ManualClock
from deltaq.topics.maintenance_log import MaintenanceLog
from deltaq.topics.rewrites import Trimmed
from tests.doubles.written_topic import RowToWrite, WrittenTopic, seen_by_consumers

T0 = 1_700_000_000_000


def fill(root: str, count: int, start: int = 0) -> None:
    with Producer({"bootstrap.servers": root}, linger_ms=0) as producer:
        for number in range(start, start + count):
            producer.produce(
                "t", b"v%d" % number, key=b"%d" % number, partition=0, timestamp=T0 + number
            )
            if number % 3 == 2:
                producer.flush()


@pytest.fixture
def admin(root) -> Iterator[AdminClient]:
    with AdminClient({"bootstrap.servers": root}) as client:
        Topic("t", partitions=2, conf={"bootstrap.servers": root}).create()
        fill(root, 10)
        yield client


def deleted(admin: AdminClient, offset: int, partition: int = 0, topic: str = "t") -> int:
    """The low watermark, or the error's code as a negative number."""
    tp = TopicPartition(topic, partition, offset)
    future = admin.delete_records([tp])[tp]
    error = future.exception(30)
    if error is not None:
        return -1000 - int(error.args[0].code())
    assert isinstance(future.result(), DeletedRecords)
    return future.result().low_watermark


def watermarks(root: str) -> tuple[int, int]:
    with Consumer({"bootstrap.servers": root}, group_id="w") as consumer:
        found = consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=30)
        assert found is not None
        return found


def read_from(root: str, offset: int, reset: str) -> list[tuple[int, str | None]]:
    with Consumer(
        {"bootstrap.servers": root},
        group_id="g",
        auto_offset_reset=reset,
        enable_partition_eof=True,
    ) as c:
        c.assign([TopicPartition("t", 0, offset)])
        found: list[tuple[int, str | None]] = []
        while True:
            message = c.poll(30)
            assert message is not None
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                return found
            found.append((message.offset() or 0, None if error is None else error.name()))
            if error is not None:
                return found


def test_records_before_an_offset_are_gone_and_watermarks_move_as_in_kafka(root, admin):
    assert deleted(admin, 4) == 4
    assert watermarks(root) == (4, 10)
    assert deleted(admin, 2) == 4
    assert deleted(admin, 11) == -1000 - KafkaError.OFFSET_OUT_OF_RANGE
    assert deleted(admin, -7) == -1000 - KafkaError.OFFSET_OUT_OF_RANGE
    assert watermarks(root) == (4, 10)
    with Consumer({"bootstrap.servers": root}, group_id="w") as consumer:
        assert consumer.offsets_for_times([TopicPartition("t", 0, T0)], timeout=30)[0].offset == 4
    assert deleted(admin, OFFSET_END) == 10
    assert watermarks(root) == (10, 10)
    fill(root, 1, start=50)
    assert read_from(root, 10, "earliest") == [(10, None)]


@pytest.mark.fault("M3")
def test_a_consumer_before_the_new_start_gets_an_error_or_is_reset(root, admin):
    deleted(admin, 4)
    assert read_from(root, 1, "earliest") == [(offset, None) for offset in range(4, 10)]
    assert read_from(root, 1, "latest") == []
    assert read_from(root, 1, "error") == [(1, "_AUTO_OFFSET_RESET")]


def test_other_readers_of_the_table_see_no_deleted_record_either(root, admin):
    with admin:
        deleted(admin, 4)
    rows = Topic("t", conf={"bootstrap.servers": root}).to_arrow()
    assert rows.column("value").to_pylist() == [b"v%d" % number for number in range(4, 10)]
    # What the files hold, whatever the log says about where the partition begins: others read
    # these.
    log = MaintenanceLog(open_store(root), "t")
    log.load()
    assert sum(file.segment.rows for file in log.index.files.values()) == 6


class HookedStore(MemoryStore):
    """A store that calls `at_put` before it puts anything: a rewritten file, since what is produced
    was put before.
    """

    at_put: Callable[[], Any] = staticmethod(lambda: None)

    def put(self, *args: Any, **keywords: Any) -> None:
        self.at_put()
        super().put(*args, **keywords)


def one_file_topics(store: MemoryStore, count: int = 1) -> list[str]:
    """Topics of which each has all its records in one file."""
    conf = {"bootstrap.servers": store.url}
    topics = [f"t{number}" for number in range(count)]
    with (
        AdminClient(conf, store=store) as admin,
        Producer(conf, store=store, linger_ms=60_000) as producer,
    ):
        for future in admin.create_topics([Topic(name, partitions=1) for name in topics]).values():
            future.result(30)
        for name in topics:
            for value in (b"a", b"b", b"c"):
                producer.produce(name, value)
    return topics


def test_delete_records_of_many_topics_returns_before_files_are_rewritten():
    store = HookedStore("slow")
    topics = one_file_topics(store, REQUESTS_MAX + 1)
    may_go_on = Event()
    store.at_put = lambda: may_go_on.wait(30)
    with AdminClient({"bootstrap.servers": store.url}, store=store) as admin:
        futures = admin.delete_records(
            [TopicPartition(name, 0, 1) for name in topics], request_timeout=5
        )
        try:
            assert [future.result(10).low_watermark for future in futures.values()] == [1] * len(
                topics
            )
        finally:
            may_go_on.set()
    for name in topics:
        assert [record[4] for record in seen_by_consumers(store, name)] == [b"b", b"c"]
        log = MaintenanceLog(store, name)
        log.load()
        assert sum(file.segment.rows for file in log.index.files.values()) == 2


def test_records_are_deleted_and_a_warning_logged_if_files_cannot_be_rewritten(caplog):
    store = HookedStore("odd")
    (topic,) = one_file_topics(store)

    def fail() -> None:
        raise RuntimeError("a defect")

    store.at_put = fail
    caplog.set_level(logging.INFO, "deltaq.admin")
    with AdminClient({"bootstrap.servers": store.url}, store=store) as admin:
        future = admin.delete_records([TopicPartition(topic, 0, 1)])[TopicPartition(topic, 0, 1)]
        assert future.result(10).low_watermark == 1
    assert "a defect" in caplog.text
    assert topic in caplog.text
    assert [record[4] for record in seen_by_consumers(store, topic)] == [b"b", b"c"]


def test_program_exit_stops_the_rewrite_of_files_and_waits_for_it(monkeypatch):
    store = HookedStore("ending")
    (topic,) = one_file_topics(store)
    admin = AdminClient({"bootstrap.servers": store.url}, store=store)
    writing, stopped = Event(), Event()
    stop = admin._calls.rewrites.stop

    def is_stopped() -> None:
        stop()
        stopped.set()

    def wait() -> None:
        writing.set()
        stopped.wait(30)

    monkeypatch.setattr(admin._calls.rewrites, "stop", is_stopped)
    store.at_put = wait
    future = admin.delete_records([TopicPartition(topic, 0, 1)])[TopicPartition(topic, 0, 1)]
    assert future.result(10).low_watermark == 1
    assert writing.wait(10)
    before = {entry.key for entry in store.list(names.topic_log(topic))}
    end_threads()
    assert not any(thread.is_alive() for thread in admin._calls._threads)
    assert {entry.key for entry in store.list(names.topic_log(topic))} == before


def test_delete_records_keeps_the_progress_of_key_compaction():
    """Its tombstones would stay for longer, and it would be cleaned again."""
    clock = ManualClock(auto_advance=True)
    topic = WrittenTopic(MemoryStore("test", clock), clock, cleanup_policy="compact,delete")
    topic.append(RowToWrite(b"a", b"1"), RowToWrite(b"b", b"2"), RowToWrite(None, b"3"))
    topic.maintain()
    (cleaned,) = topic.files
    assert cleaned.clean
    topic.log.retain(lambda head: Trimmed((1,), ()), clock.monotonic() + 60)
    trim(topic.store, topic.log, clock, Throttle(clock))
    (trimmed,) = topic.files
    assert (trimmed.segment.rows, trimmed.clean) == (2, cleaned.clean)


def test_partitions_of_several_topics_are_answered_one_by_one(root, admin):
    wanted = [
        TopicPartition("t", 0, 5),
        TopicPartition("t", 1, 1),
        TopicPartition("t", 9, 0),
        TopicPartition("u", 0, 0),
    ]
    futures = admin.delete_records(wanted)
    codes = [(f.exception(30), f) for f in futures.values()]
    assert [None if error is None else error.args[0].code() for error, _ in codes] == [
        None,
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    ]
    assert watermarks(root) == (5, 10)


def test_only_a_topic_that_is_compacted_alone_refuses(root, admin):
    conf = {"bootstrap.servers": root}
    Topic("n", conf=conf, config={"cleanup.policy": ""}).create()
    Topic("c", conf=conf, config={"cleanup.policy": "compact"}).create()
    Topic("b", conf=conf, config={"cleanup.policy": "compact,delete"}).create()
    assert deleted(admin, OFFSET_END, topic="c") == -1000 - KafkaError.POLICY_VIOLATION
    assert [deleted(admin, OFFSET_END, topic=name) for name in ("b", "n")] == [0, 0]


@pytest.mark.parametrize("wrong", [None, "t", [("t", 0, 1)], (TopicPartition("t", 0, 1),)])
def test_an_invalid_list_of_partitions_is_refused_at_once(admin, wrong):
    with pytest.raises(TypeError):
        admin.delete_records(wrong)
    with pytest.raises(ValueError, match="negative"):
        admin.delete_records([TopicPartition("t", -1, 1)])


def test_a_partition_named_twice_is_refused_and_nothing_deleted(root, admin):
    futures = admin.delete_records([TopicPartition("t", 0, 1), TopicPartition("t", 0, 2)])
    assert [f.exception(30).args[0].code() for f in futures.values()] == [KafkaError._INVALID_ARG]
    assert watermarks(root) == (0, 10)


def test_earliest_and_latest_are_answered_from_the_new_start(admin):
    deleted(admin, 7)
    tp = TopicPartition("t", 0)
    assert admin.list_offsets({tp: OffsetSpec.earliest()})[tp].result(30).offset == 7
