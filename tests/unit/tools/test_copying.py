"""Copies of topics: identical records at identical offsets, whatever the source has been
through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa
import pytest
from pydantic import BaseModel

from deltaq import AdminClient, Consumer, Producer, ShareConsumer, Topic, TopicPartition
from deltaq.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, ResourceType
from deltaq.clock import SYSTEM_CLOCK
from deltaq.errors import KafkaError, KafkaException, UnknownTopic
from deltaq.maintenance import run
from deltaq.maintenance.run import Maintenance
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.names import topic_folder
from deltaq.serde.source import schema_of
from deltaq.store import MemoryStore, forget_memory_store, open_store, serve_memory_store
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule
from deltaq.tools import CopyProgress, CopyReport, copy, diff, offset_ranges
from deltaq.tools.copying import TRIES, TopicCopier
from deltaq.transactions.publication import Publisher

SOURCE, TARGET = "memory://source", "memory://target"
T0 = 1_700_000_000_000


@pytest.fixture(autouse=True)
def roots() -> Iterator[None]:
    yield
    for name in ("source", "target", "third"):
        forget_memory_store(name)


def _copy(**options: Any) -> CopyReport:
    return copy({"bootstrap.servers": SOURCE}, {"bootstrap.servers": TARGET}, **options)


def _produce(topic: str, count: int, root: str = SOURCE, **settings: object) -> None:
    with Producer({"bootstrap.servers": root, "linger.ms": 60_000, **settings}) as producer:
        for number in range(count):
            headers = [("h", b"%d" % number), ("h", None)] if number % 3 == 0 else None
            key = None if number % 7 == 0 else b"k%d" % (number % 5)
            value = None if number % 11 == 0 and key else b"%d" % number
            producer.produce(
                topic, value, key=key, partition=number % 2, timestamp=T0 + number, headers=headers
            )
            if number % 50 == 0:
                producer.flush()


def _everything(topic: str, root: str) -> list[tuple[object, ...]]:
    """All records as a consumer sees them, with their places and times."""
    partitions = AdminClient(bootstrap_servers=root).list_topics(topic).topics[topic].partitions
    found = []
    with Consumer(bootstrap_servers=root, group_id="reader", enable_partition_eof=True) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        ended = 0
        while ended < len(partitions):
            message = consumer.poll(30)
            assert message is not None
            if message.error() is not None:
                assert message.error() == KafkaError._PARTITION_EOF
                ended += 1
            else:
                place = message.partition(), message.offset(), message.timestamp()
                found.append((*place, message.key(), message.value(), message.headers()))
    return sorted(found, key=lambda record: record[:2])


def _offsets(topic: str, root: str) -> tuple[dict[int, int], dict[int, int]]:
    described = Topic(topic, conf={"bootstrap.servers": root}).describe()
    return described.start_offsets, described.next_offsets


def _assert_identical(topic: str) -> None:
    assert _everything(topic, TARGET) == _everything(topic, SOURCE)
    assert _offsets(topic, TARGET) == _offsets(topic, SOURCE)


def _topic(**options: Any) -> Topic:
    return Topic("orders", partitions=2, conf={"bootstrap.servers": SOURCE}, **options).create()


class Few(BaseModel):
    colour: Literal["red"]


class More(BaseModel):
    colour: Literal["red", "blue"]


def test_a_copy_keeps_the_members_of_enums_and_those_that_are_added() -> None:
    for model, value in ((Few, Few(colour="red")), (More, More(colour="blue"))):
        topic = (
            _topic(schema=model)
            if model is Few
            else Topic("orders", model, conf={"bootstrap.servers": SOURCE})
        )
        with Producer({"bootstrap.servers": SOURCE}) as producer:
            producer.produce(topic, value)
        _copy()
        expected, found = (
            topic.describe().schema,
            Topic("orders", conf={"bootstrap.servers": TARGET}).describe().schema,
        )
        assert expected is not None
        assert found is not None
        assert found.members == expected.members == schema_of(model).members
    _assert_identical("orders")
    # The history of the members, too: a program with the earlier model goes on with the copy.
    Topic("orders", Few, conf={"bootstrap.servers": TARGET}).evolve()


def test_a_copy_has_the_same_records_at_the_same_offsets() -> None:
    _topic(config={"retention.ms": 10**15, "max.message.bytes": 5000})
    _produce("orders", 200)
    seen: list[CopyProgress] = []
    report = _copy(notify=seen.append, bytes_at_once=1000)
    assert (report.topics, report.failures) == ({"orders": 200}, {})
    _assert_identical("orders")
    assert len(seen) > 3
    assert (seen[-1].copied, seen[-1].total, seen[0].total) == (200, 200, 200)
    settings = Topic("orders", conf={"bootstrap.servers": TARGET}).describe().settings
    assert (settings.retention_ms, settings.max_message_bytes) == (10**15, 5000)
    assert _copy().topics == {"orders": 0}


def test_a_copy_goes_on_with_what_is_new() -> None:
    _topic()
    _produce("orders", 20)
    _copy()
    _produce("orders", 30)
    admin = AdminClient(bootstrap_servers=SOURCE)
    admin.create_partitions([NewPartitions("orders", 4)])["orders"].result()
    resource = ConfigResource(ResourceType.TOPIC, "orders")
    resource.add_incremental_config(
        ConfigEntry("retention.bytes", "1000000", incremental_operation=AlterConfigOpType.SET)
    )
    admin.incremental_alter_configs([resource])[resource].result()
    with Producer(bootstrap_servers=SOURCE) as producer:
        producer.produce("orders", b"new", partition=3)
    assert _copy().topics == {"orders": 31}
    _assert_identical("orders")
    assert (
        Topic("orders", conf={"bootstrap.servers": TARGET}).describe().settings.retention_bytes
        == 1_000_000
    )


def test_a_copy_begins_where_its_source_was_trimmed() -> None:
    _topic()
    _produce("orders", 40)
    admin = AdminClient(bootstrap_servers=SOURCE)
    for before in (
        [TopicPartition("orders", 0, 7)],
        [TopicPartition("orders", 0, 11), TopicPartition("orders", 1, 20)],
    ):
        for future in admin.delete_records(before).values():
            future.result()
        _copy()
        _assert_identical("orders")
    assert _offsets("orders", TARGET) == ({0: 11, 1: 20}, {0: 20, 1: 20})


def test_a_topic_without_any_record_left_is_copied_with_its_offsets() -> None:
    _topic()
    _produce("orders", 10)
    everything = [TopicPartition("orders", partition, 5) for partition in (0, 1)]
    for future in AdminClient(bootstrap_servers=SOURCE).delete_records(everything).values():
        future.result()
    _copy()
    assert _offsets("orders", TARGET) == ({0: 5, 1: 5}, {0: 5, 1: 5})
    _produce("orders", 10)
    _copy()
    _assert_identical("orders")


def test_gaps_of_key_compaction_are_gaps_of_the_copy() -> None:
    _topic(config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
    for _ in range(3):
        with Producer(bootstrap_servers=SOURCE) as producer:
            for number in range(60):
                producer.produce(
                    "orders", b"%d" % number, key=b"k%d" % (number % 4), timestamp=T0 + number
                )
        run(SOURCE, once=True, settings=MaintenanceSettings(clean_up_grace_s=0))
        _copy(bytes_at_once=500)
    assert len(_everything("orders", SOURCE)) < 120
    offsets = {record[:2] for record in _everything("orders", TARGET)}
    # The copy was taken while the source was compacted, and lacks no record that the source still
    # has.
    assert offsets >= {record[:2] for record in _everything("orders", SOURCE)}
    assert _offsets("orders", TARGET) == _offsets("orders", SOURCE)


def test_the_times_of_log_append_time_are_copied() -> None:
    topic = _topic(config={"message.timestamp.type": "LogAppendTime"})
    _produce("orders", 10)
    resource = ConfigResource(ResourceType.TOPIC, topic.name)
    resource.add_incremental_config(
        ConfigEntry(
            "message.timestamp.type", "CreateTime", incremental_operation=AlterConfigOpType.SET
        )
    )
    AdminClient(bootstrap_servers=SOURCE).incremental_alter_configs([resource])[resource].result()
    _produce("orders", 10)
    _copy()
    _assert_identical("orders")
    kinds = {record[2][0] for record in _everything("orders", TARGET)}  # type: ignore[index]
    assert len(kinds) == 2


def test_a_typed_topic_is_copied_with_its_columns() -> None:
    columns = pa.schema({"id": pa.int64(), "tags": pa.list_(pa.string()), "price": pa.float64()})
    topic = _topic(schema=columns)
    target = Topic("orders", conf={"bootstrap.servers": TARGET})
    for _ in range(2):
        with Producer(bootstrap_servers=SOURCE) as producer:
            for number in range(20):
                value = {"id": number, "tags": ["a"] * (number % 3), "price": float("nan")}
                producer.produce(topic, value, partition=number % 2)
        assert _copy().failures == {}
    assert list(diff(topic, target, offset_ranges(topic), offset_ranges(target))) == []
    assert _offsets("orders", TARGET) == _offsets("orders", SOURCE)
    assert target.describe().schema == topic.describe().schema
    assert repr(target.to_arrow().to_pylist()) == repr(topic.to_arrow().to_pylist())


def test_maintenance_of_a_copy_changes_no_record() -> None:
    _topic(config={"retention.ms": -1})
    _produce("orders", 200)
    _copy(bytes_at_once=500)
    run(TARGET, once=True, settings=MaintenanceSettings(clean_up_grace_s=0))
    _assert_identical("orders")
    _produce("orders", 20)
    _copy()
    _assert_identical("orders")


def test_a_source_that_is_compacted_between_copies_is_continued() -> None:
    _topic(config={"retention.ms": -1})
    _produce("orders", 100)
    _copy()
    _produce("orders", 100)
    # Merges copied and new records.
    run(SOURCE, once=True, settings=MaintenanceSettings(clean_up_grace_s=0))
    assert _copy(bytes_at_once=500).topics == {"orders": 100}
    _assert_identical("orders")


def test_two_copies_at_once_copy_each_record_once() -> None:
    _topic()
    _produce("orders", 100)
    stores = open_store(SOURCE), open_store(TARGET)
    other = TopicCopier(*stores, "orders", SYSTEM_CLOCK, bytes_at_once=700)

    def overtake(_: CopyProgress) -> None:
        other.run()

    TopicCopier(*stores, "orders", SYSTEM_CLOCK, overtake, bytes_at_once=500).run()
    _assert_identical("orders")


def test_lost_answers_of_the_store_double_no_record() -> None:
    _topic()
    _produce("orders", 100)
    lost = Rule("create", "*", Fault.error_after(), times=None, probability=0.5)
    target = FaultyStore(
        open_store(TARGET),
        lost,
        Rule("put", "*", Fault.error_before(), times=None, probability=0.4),
    )
    clock = ManualClock(auto_advance=True)
    TopicCopier(open_store(SOURCE), target, "orders", clock, bytes_at_once=500).run()
    assert target.struck["error_after"] > 2
    assert target.struck["error_before"] > 2
    _assert_identical("orders")


def test_a_topic_that_is_no_copy_is_left_alone() -> None:
    _topic()
    _produce("orders", 10)
    Topic("orders", partitions=2, conf={"bootstrap.servers": TARGET}).create()
    _produce("orders", 4, TARGET)
    (error,) = _copy().failures.values()
    assert (
        "topic 'orders' exists at the target and is no copy of this source: delete it there"
        in str(error)
    )
    assert len(_everything("orders", TARGET)) == 4


def test_a_copy_that_another_program_has_written_is_refused() -> None:
    _topic()
    _produce("orders", 10)
    _copy()
    with Producer(bootstrap_servers=TARGET) as producer:
        producer.produce("orders", b"foreign", partition=0)
    (error,) = _copy().failures.values()
    assert "partition 0 of topic 'orders' ends at 6 at the target, and at 5 at the source" in str(
        error
    )
    _produce("orders", 10)
    (error,) = _copy().failures.values()
    assert "offset 5 of partition 0 of topic 'orders' holds another message at the target" in str(
        error
    )


def test_a_copier_that_goes_on_compares_the_last_records_again() -> None:
    _topic()
    _produce("orders", 10)
    copier = TopicCopier(open_store(SOURCE), open_store(TARGET), "orders", SYSTEM_CLOCK)
    copier.run()
    with Producer(bootstrap_servers=TARGET) as producer:
        producer.produce("orders", b"foreign", partition=0)
    _produce("orders", 10)
    with pytest.raises(
        KafkaException, match="offset 5 of partition 0 of topic 'orders' holds another message"
    ):
        copier.run()


class Target(MemoryStore):
    """The root of a copy. `on_upload` is called after the first upload of a data file; `uploads`
    counts them.
    """

    def __init__(self, clock: ManualClock, on_upload: Callable[[], object]) -> None:
        super().__init__("copies", clock)
        self.uploads = 0
        self._on_upload = on_upload

    def put(self, key: str, data: bytes | memoryview) -> None:
        super().put(key, data)
        if key.startswith(topic_folder("orders")) and key.endswith(".parquet"):
            self.uploads += 1
            assert self.uploads < 10, "the copy does not get on"
            if self.uploads == 1:
                self._on_upload()


def _rounds_of_maintenance(target: Target, clock: ManualClock, after_s: float) -> int:
    """How many files two rounds remove, each after this many seconds."""
    removed = 0
    for _ in range(2):
        clock.advance(after_s)
        removed += Maintenance(target, clock).round()["files deleted"]
    return removed


def _copied_values(target: Target, clock: ManualClock) -> list[tuple[int, int, bytes | None]]:
    rows = (
        Topic("orders", store=target, clock=clock)
        .to_arrow()
        .select(["_partition", "_offset", "value"])
    )
    return sorted(tuple(row.values()) for row in rows.to_pylist())


def test_a_copier_that_slept_for_days_uploads_again_what_was_removed_as_an_orphan() -> None:
    topic = _topic(config={"retention.ms": -1})
    _produce("orders", 20)
    removed: list[int] = []
    clock = ManualClock(auto_advance=True)
    target = Target(
        clock, lambda: removed.append(_rounds_of_maintenance(target, clock, 2 * 86_400.0))
    )
    TopicCopier(open_store(SOURCE), target, "orders", clock).run()
    assert (removed, target.uploads) == ([1], 2)
    expected = topic.to_arrow().select(["_partition", "_offset", "value"]).to_pylist()
    assert _copied_values(target, clock) == sorted(tuple(row.values()) for row in expected)


def test_a_copy_goes_on_after_orphans_were_removed() -> None:
    _topic(config={"retention.ms": -1})
    _produce("orders", 20)
    clock = ManualClock(auto_advance=True)
    target = Target(clock, lambda: None)
    TopicCopier(open_store(SOURCE), target, "orders", clock).run()
    target.put(f"{topic_folder('orders')}orphan.parquet", b"of a writer that was killed")
    assert _rounds_of_maintenance(target, clock, 2 * 86_400.0) == 1
    _produce("orders", 20)
    TopicCopier(open_store(SOURCE), target, "orders", clock).run()
    assert len(_copied_values(target, clock)) == 40


def test_a_source_that_was_created_again_is_no_longer_the_source() -> None:
    _topic()
    _produce("orders", 10)
    _copy()
    AdminClient(bootstrap_servers=SOURCE).delete_topics(["orders"])["orders"].result()
    assert _copy().topics == {}
    _topic()
    assert "is no copy of this source" in str(_copy().failures["orders"])


def test_topics_are_chosen_by_patterns() -> None:
    for name in ("orders", "outbox", "payments"):
        Topic(name, conf={"bootstrap.servers": SOURCE}).create()
    report = _copy(topics=["o*", "missing"])
    assert sorted(report.topics) == ["orders", "outbox"]
    assert isinstance(report.failures["missing"], UnknownTopic)
    assert sorted(AdminClient(bootstrap_servers=TARGET).list_topics().topics) == [
        "orders",
        "outbox",
    ]


def test_a_share_group_is_not_copied_and_named() -> None:
    _topic()
    _produce("orders", 2)
    with ShareConsumer(bootstrap_servers=SOURCE, group_id="mails") as worker:
        worker.subscribe(["orders"])
        worker.poll(0)
    report = _copy(groups=True)
    assert (report.topics, report.groups) == ({"orders": 2}, [])
    assert set(report.failures) == {"group mails"}
    assert "a share group is not copied" in report.failures["group mails"].error.str()


def test_the_committed_offsets_of_groups_are_copied() -> None:
    _topic()
    _produce("orders", 10)
    with Consumer(bootstrap_servers=SOURCE, group_id="billing") as consumer:
        consumer.commit(offsets=[TopicPartition("orders", 0, 3)], asynchronous=False)
    report = _copy(groups=True)
    assert (report.groups, report.failures) == (["billing"], {})
    with Consumer(bootstrap_servers=TARGET, group_id="billing") as consumer:
        assert consumer.committed([TopicPartition("orders", 0)])[0].offset == 3


def test_a_root_is_not_copied_to_itself() -> None:
    with pytest.raises(KafkaException, match="are the same root"):
        copy({"bootstrap.servers": SOURCE}, {"bootstrap.servers": SOURCE})


def test_a_copy_of_a_copy_is_identical_to_both() -> None:
    _topic()
    _produce("orders", 30)
    _copy()
    copy({"bootstrap.servers": TARGET}, {"bootstrap.servers": "memory://third"})
    assert _everything("orders", "memory://third") == _everything("orders", SOURCE)


# --- sources that fail ---


def test_a_group_that_cannot_be_read_is_a_failure_of_the_copy() -> None:
    _topic()
    _produce("orders", 2)
    for group in ("billing", "shipping"):
        with Consumer(bootstrap_servers=SOURCE, group_id=group) as consumer:
            consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
    store = open_store(SOURCE)
    for entry in list(store.list("groups/shipping/_delta_log/")):
        store.put(entry.key, b"{")
    report = _copy(groups=True)
    assert (report.topics, report.groups) == ({"orders": 2}, ["billing"])
    assert "groups/shipping/_delta_log/" in str(report.failures["groups that cannot be read"])


def test_a_failed_copy_reports_what_it_has_copied_before() -> None:
    _topic()
    _produce("orders", 100)
    refused = Rule("put", "topics/orders/*.parquet", Fault.refused(), times=None, nth=4)
    serve_memory_store("target", FaultyStore(open_store(TARGET), refused))
    report = _copy(bytes_at_once=500)
    assert set(report.failures) == {"orders"}
    ends = _offsets("orders", TARGET)[1]
    assert report.topics == {"orders": sum(ends.values())}
    assert 0 < report.topics["orders"] < 100


def test_a_copy_counts_all_offsets_of_a_run_with_failures() -> None:
    _topic()
    _produce("orders", 100)
    serve_memory_store(
        "target",
        FaultyStore(open_store(TARGET), Rule("put", "*.parquet", Fault.error_before(), nth=3)),
    )
    seen: list[CopyProgress] = []
    assert _copy(bytes_at_once=500, notify=seen.append).topics == {"orders": 100}
    assert {progress.total for progress in seen} == {100}
    assert [progress.copied for progress in seen] == sorted({progress.copied for progress in seen})


def test_failures_between_which_records_are_copied_do_not_end_a_copy() -> None:
    _topic()
    _produce("orders", 200)
    target = FaultyStore(open_store(TARGET))
    clock = ManualClock(auto_advance=True)

    def fail_next(_: CopyProgress) -> None:
        target.add(Rule("put", "*.parquet", Fault.error_before()))

    TopicCopier(open_store(SOURCE), target, "orders", clock, fail_next, bytes_at_once=500).run()
    assert target.struck["error_before"] > TRIES
    _assert_identical("orders")


def test_a_round_of_a_copy_splits_no_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that is published while the round goes on is copied by the next one."""
    writer = Producer({"bootstrap.servers": SOURCE}, transactional_id="t", linger_ms=0)
    writer.init_transactions()

    def transact(value: bytes) -> None:
        with writer.transaction():
            for topic in ("a", "b"):
                writer.produce(topic, value)

    def values(topic: str) -> list[bytes]:
        table = Topic(topic, bootstrap_servers=TARGET).to_arrow()
        return [bytes(value) for value in table["value"].to_pylist()]

    transact(b"1")
    run = TopicCopier.run

    def late(self: TopicCopier, *ends: Any) -> None:
        run(self, *ends)
        if self._topic == "a" and values("a") == [b"1"]:
            transact(b"2")  # after the round has copied a, and before b

    monkeypatch.setattr(TopicCopier, "run", late)
    assert not _copy(topics=["a", "b"]).failures
    assert values("a") == values("b") == [b"1"]
    monkeypatch.setattr(TopicCopier, "run", run)
    assert not _copy(topics=["*"]).failures
    assert values("a") == values("b") == [b"1", b"2"]
    writer.close()


@pytest.mark.parametrize("is_published", [True, False])
def test_copied_offsets_are_not_ahead_of_the_output(
    monkeypatch: pytest.MonkeyPatch, is_published: bool
) -> None:
    """While the topics are copied, a program copies one more record in a transaction. The one
    before is perhaps published in the group alone, as by a process that was killed.
    """
    conf = {"bootstrap.servers": SOURCE}
    with Producer(conf) as producer:
        for value in (b"1", b"2"):
            producer.produce("in", value)
    consumer = Consumer(conf, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.subscribe(["in"])
    writer = Producer(conf, transactional_id="t", linger_ms=0)
    writer.init_transactions()
    Topic("out", conf=conf).create()

    def copy_one() -> None:
        with writer.transaction(consumer=consumer):
            writer.produce("out", consumer.consume(1, 10)[0].value())

    with monkeypatch.context() as patch:
        if not is_published:
            publish = Publisher.publish
            patch.setattr(
                Publisher,
                "publish",
                lambda self, of, until: publish(self, replace(of, topics=()), until),
            )
        copy_one()

    def late(self: TopicCopier, *ends: Any) -> None:
        run(self, *ends)
        if not is_late:
            is_late.append(True)
            copy_one()

    run, is_late = TopicCopier.run, list[bool]()
    monkeypatch.setattr(TopicCopier, "run", late)
    report = _copy(groups=True)
    writer.close()
    consumer.close()
    assert not report.failures
    assert is_late
    assert report.groups == ["g"]
    with Consumer(bootstrap_servers=TARGET, group_id="g") as there:
        (committed,) = there.committed([TopicPartition("in", 0)])
    assert committed.offset == 1
    output = Topic("out", bootstrap_servers=TARGET).to_arrow()["value"].to_pylist()
    assert [bytes(value) for value in output] == [b"1"]
