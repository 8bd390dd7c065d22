"""`Topic`: a handle that says what a topic is like, begins and ends its life, and shows it as a
table.
"""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pydantic
import pytest

from deltaq import (
    Corrupt,
    InvalidConfig,
    KafkaError,
    OffsetOutOfRange,
    Producer,
    Topic,
    TopicExists,
    UnknownTopic,
)
from deltaq.clock import SYSTEM_CLOCK
from deltaq.names import topic_folder
from deltaq.serde.source import schema_of
from deltaq.store import MemoryStore, ObjectEntry, ObjectMissing, Store, open_store
from deltaq.topics import ranges
from deltaq.topics.lookup import TopicLookup
from tests.doubles.compaction import compact

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Order(pydantic.BaseModel):
    id: int
    place: str | None = None


def write(root: str, topic: str, *flushes: Sequence[tuple[int, int, str | None]]) -> None:
    """Produce (partition, timestamp in ms, value) records; each list becomes a file of its own."""
    with Producer(bootstrap_servers=root, linger_ms=60_000) as producer:
        for records in flushes:
            for partition, timestamp, value in records:
                producer.produce(topic, value, partition=partition, timestamp=timestamp)
            assert producer.flush(30) == 0


def seen(table: pa.Table) -> list[tuple[int, int, bytes | None]]:
    return [(row["_partition"], row["_offset"], row["value"]) for row in table.to_pylist()]


# --- the handle ---


@pytest.mark.fault("K2")
@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "x" * 250])
def test_a_wrong_name_is_refused_at_once(name):
    with pytest.raises(InvalidConfig) as refusal:
        Topic(name)
    assert refusal.value.args[0].code() == KafkaError.TOPIC_EXCEPTION


@pytest.mark.fault("K1")
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ({"partitions": 0}, KafkaError.INVALID_PARTITIONS, '"partitions" value 0 is outside'),
        ({"partitions": 10_001}, KafkaError.INVALID_PARTITIONS, "outside allowed range"),
        ({"config": {"retention.ms": "soon"}}, KafkaError.INVALID_CONFIG, "retention.ms"),
        ({"config": {"retention": 1}}, KafkaError.INVALID_CONFIG, "No such configuration property"),
        (
            {"config": {"partitions": 3}},
            KafkaError.INVALID_CONFIG,
            "pass it as the argument for partitions",
        ),
        ({"schema": pa.schema([("_id", pa.int64())])}, KafkaError._INVALID_ARG, "'_id'"),
        ({"schema": pa.schema([("a", pa.uint64())])}, KafkaError._INVALID_ARG, "uint64"),
        ({"bootstrap_servers": "memory://x", "linger": 1}, KafkaError._INVALID_ARG, "linger"),
    ],
)
def test_an_invalid_topic_definition_is_refused_at_once(arguments, code, message):
    with pytest.raises(InvalidConfig) as refusal:
        Topic("orders", **arguments)
    assert refusal.value.args[0].code() == code
    assert message in str(refusal.value)


def test_handles_with_equal_definitions_are_equal():
    schema = pa.schema([("id", pa.int64())])
    assert Topic("a") == Topic("a")
    assert hash(Topic("a", Order, partitions=2)) == hash(Topic("a", Order, partitions=2))
    assert Topic("a", Order) == Topic("a", Order)
    different = [
        Topic("a"),
        Topic("b"),
        Topic("a", Order),
        Topic("a", schema),
        Topic("a", partitions=2),
    ]
    different += [Topic("a", config={"retention.ms": 1}), Topic("a", store=MemoryStore("x"))]
    assert len(set(different)) == len(different)
    assert Topic("a") != "a"


def test_a_handle_from_another_process_is_equal_to_one_made_here(tmp_path, monkeypatch):
    conf = {"bootstrap.servers": str(tmp_path)}
    pickled = pickle.dumps(Topic("a", Order, conf=conf))
    # Hashes differ between processes, as they do between two classes of the same name.
    monkeypatch.setitem(
        globals(), "Order", pydantic.create_model("Order", __base__=Order, __module__=__name__)
    )
    here, sent = Topic("a", Order, conf=conf), pickle.loads(pickled)
    assert sent == here
    assert hash(sent) == hash(here)
    assert sent.clock is here.clock


def test_a_handle_without_a_root_raises():
    with pytest.raises(InvalidConfig, match="pass bootstrap_servers="):
        Topic("orders").exists()


@pytest.mark.fault("K5")
def test_the_representation_names_topic_and_place_without_secrets(tmp_path):
    assert repr(Topic("orders")) == "<Topic orders>"
    assert (
        repr(Topic("orders", bootstrap_servers=str(tmp_path)))
        == f"<Topic orders file://{tmp_path}>"
    )


def test_a_plan_has_the_wanted_number_of_partitions_or_the_default():
    assert Topic("a", partitions=3).plan(5).partitions == 3
    assert Topic("a").plan(5).partitions == 5
    assert Topic("a", config={"cleanup.policy": "compact"}).plan(1).properties == {
        "deltaq.cleanup.policy": "compact"
    }


# --- its life ---


def test_a_topic_is_created_described_deleted_and_created_again(root):
    topic = Topic("orders", partitions=3, config={"retention.ms": 5000}, bootstrap_servers=root)
    assert not topic.exists()
    with pytest.raises(UnknownTopic):
        topic.describe()

    assert topic.create() is topic
    assert topic.exists()
    write(root, "orders", [(0, 0, "a"), (2, 0, "b"), (2, 0, "c")])
    first = topic.describe()
    assert first.start_offsets == {0: 0, 1: 0, 2: 0}
    assert first.next_offsets == {0: 1, 1: 0, 2: 2}
    assert (first.name, first.schema, first.files, first.is_internal) == ("orders", None, 1, False)
    assert (first.settings.partitions, first.settings.retention_ms) == (3, 5000)
    store = open_store(root)
    (data,) = [
        entry for entry in store.list(topic_folder("orders")) if entry.key.endswith(".parquet")
    ]
    assert first.bytes == data.size

    topic.delete()
    assert not topic.exists()
    with pytest.raises(UnknownTopic):
        topic.delete()
    with pytest.raises(UnknownTopic):
        topic.to_arrow()

    topic.create()
    again = topic.describe()
    assert again.topic_id != first.topic_id
    assert again.next_offsets == {0: 0, 1: 0, 2: 0}
    assert again.version > first.version
    assert topic.to_arrow().num_rows == 0


def test_a_second_create_is_refused_unless_existing_is_fine(root):
    topic = Topic("orders", partitions=2, bootstrap_servers=root).create()
    with pytest.raises(TopicExists) as refusal:
        topic.create()
    assert refusal.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    assert (
        Topic("orders", partitions=7, bootstrap_servers=root)
        .create(exist_ok=True)
        .describe()
        .settings.partitions
        == 2
    )


def test_an_existing_topic_with_another_schema_is_refused(root):
    Topic("bytes", bootstrap_servers=root).create()
    with pytest.raises(InvalidConfig, match="it holds bytes; use a topic of another name"):
        Topic("bytes", Order, bootstrap_servers=root).create(exist_ok=True)
    Topic("orders", Order, bootstrap_servers=root).create()
    with pytest.raises(InvalidConfig, match="column 'id' is int64 in the topic, not int32"):
        Topic("orders", pa.schema([("id", pa.int32())]), bootstrap_servers=root).create(
            exist_ok=True
        )
    Topic("orders", Order, bootstrap_servers=root).create(exist_ok=True)
    Topic("orders", bootstrap_servers=root).create(exist_ok=True)


def test_the_number_of_partitions_comes_from_the_configuration_if_the_handle_does_not_say(root):
    assert (
        len(Topic("a", bootstrap_servers=root, num_partitions=4).create().describe().partitions)
        == 4
    )


def test_a_typed_topic_shows_its_schema_to_a_handle_that_does_not_know_it(root):
    Topic("orders", Order, bootstrap_servers=root).create()
    schema = Topic("orders", bootstrap_servers=root).describe().schema
    assert schema is not None
    assert schema.arrow.equals(schema_of(Order).arrow, check_metadata=True)


class FoldingStore(MemoryStore):
    """A store that, like some file systems, takes keys that differ in case for the same."""

    case_sensitive = False

    def get(self, key: str, size_max: int | None = None) -> bytes:
        return super().get(key.lower(), size_max)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return super().get_range(key.lower(), start, length)

    def put(self, key: str, data: bytes | memoryview) -> None:
        super().put(key.lower(), data)

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        super().create(key.lower(), data, after.lower())

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        return super().list(prefix.lower(), start_after.lower())


@pytest.mark.fault("K2")
def test_names_that_differ_only_in_case_are_kept_apart_or_refused():
    apart: Store = MemoryStore("x")
    Topic("Orders", store=apart).create()
    Topic("orders", store=apart).create()

    folding = FoldingStore("y")
    Topic("Orders", store=folding).create()
    twin = Topic("orders", store=folding)
    for use in (twin.create, twin.exists, twin.delete, twin.describe, twin.to_arrow):
        with pytest.raises(
            InvalidConfig, match="differs only in case from topic 'Orders'"
        ) as refusal:
            use()
        assert refusal.value.args[0].code() == KafkaError.TOPIC_EXCEPTION
    Topic("Orders", store=folding).delete()
    twin.create()
    assert twin.exists()


def test_a_topic_name_in_another_case_is_refused_repeatedly():
    folding = FoldingStore("y")
    Topic("Orders", store=folding).create()
    lookup = TopicLookup(folding, SYSTEM_CLOCK)
    for _ in range(2):
        with pytest.raises(InvalidConfig, match="differs only in case from topic 'Orders'"):
            lookup.head("orders")
    assert lookup.head("Orders").next_offsets == (0,)


# --- the topic as a table ---


def test_records_come_ordered_by_partition_and_offset_with_all_columns_filled_in(root):
    topic = Topic("t", partitions=3, bootstrap_servers=root).create()
    write(
        root,
        "t",
        [(1, 5000, "a"), (0, 6000, "b")],
        [(1, 7000, None), (1, 8000, "d"), (0, 9000, "e")],
    )
    table = topic.to_arrow()
    assert table.schema.names == [
        "_partition",
        "_offset",
        "_timestamp",
        "_key",
        "_headers",
        "value",
    ]
    assert seen(table) == [(0, 0, b"b"), (0, 1, b"e"), (1, 0, b"a"), (1, 1, None), (1, 2, b"d")]
    times = [
        (time - EPOCH) // dt.timedelta(milliseconds=1) for time in table["_timestamp"].to_pylist()
    ]
    assert times == [6000, 9000, 5000, 7000, 8000]


def test_an_empty_topic_is_an_empty_table_of_the_same_columns(root):
    topic = Topic("t", Order, bootstrap_servers=root).create()
    table = topic.to_arrow()
    assert table.num_rows == 0
    assert table.schema.names == [
        "_partition",
        "_offset",
        "_timestamp",
        "_key",
        "_headers",
        "id",
        "place",
    ]
    assert list(topic.to_batches()) == []


def test_a_typed_topic_gives_its_own_columns_and_tombstones_as_nulls(root):
    topic = Topic("t", Order, bootstrap_servers=root).create()
    with Producer(bootstrap_servers=root) as producer:
        producer.produce(topic, Order(id=1, place="Ulm"))
        producer.produce("t", {"id": 2})
        producer.produce(topic, None, key="gone")
    rows = topic.to_arrow().select(["_offset", "_key", "id", "place"]).to_pylist()
    assert rows == [
        {"_offset": 0, "_key": None, "id": 1, "place": "Ulm"},
        {"_offset": 1, "_key": None, "id": 2, "place": None},
        {"_offset": 2, "_key": b"gone", "id": None, "place": None},
    ]


@pytest.fixture
def filled(root) -> Topic:
    """Two partitions of ten records in two files; the time of each is a second per offset."""
    topic = Topic("t", partitions=2, bootstrap_servers=root).create()
    records = [
        [(p, 1000 * o + 1, f"{p}.{o}") for o in offsets for p in (0, 1)]
        for offsets in (range(6), range(6, 10))
    ]
    write(root, "t", *records)
    return topic


def at(seconds: float) -> dt.datetime:
    return EPOCH + dt.timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, {0: range(10), 1: range(10)}),
        ({"partitions": [1]}, {1: range(10)}),
        ({"partitions": iter([1, 1])}, {1: range(10)}),
        ({"partitions": []}, {}),
        ({"start": 7}, {0: range(7, 10), 1: range(7, 10)}),
        ({"end": 0}, {}),
        ({"start": 10}, {}),
        ({"start": {0: 5}, "end": {0: 7}}, {0: range(5, 7), 1: range(10)}),
        ({"partitions": [0], "start": 4, "end": 8}, {0: range(4, 8)}),
        ({"partitions": [0], "start": at(4.001)}, {0: range(4, 10)}),
        ({"partitions": [0], "start": at(4.0011)}, {0: range(5, 10)}),
        ({"partitions": [0], "start": at(2), "end": at(4)}, {0: range(2, 4)}),
        (
            {"partitions": [0], "start": at(4).astimezone(dt.timezone(dt.timedelta(hours=9)))},
            {0: range(4, 10)},
        ),
        ({"start": at(-1), "end": at(10**9)}, {0: range(10), 1: range(10)}),
        ({"start": at(10**9)}, {}),
        ({"partitions": [0], "start": 3, "end": at(5)}, {0: range(3, 5)}),
        ({"start": {0: at(8), 1: 9}}, {0: range(8, 10), 1: range(9, 10)}),
    ],
)
def test_a_range_is_half_open_and_bounded_by_offsets_or_times(filled, arguments, expected):
    table = filled.to_arrow(**arguments)
    assert seen(table) == [
        (p, o, f"{p}.{o}".encode()) for p, offsets in expected.items() for o in offsets
    ]


def test_batches_are_the_same_records_one_partition_at_a_time(filled):
    batches = list(filled.to_batches(start=2, end=9))
    assert len(batches) == 4
    assert all(len(batch.column("_partition").unique()) == 1 for batch in batches)
    whole = pa.Table.from_batches(batches).sort_by(
        [("_partition", "ascending"), ("_offset", "ascending")]
    )
    assert whole.equals(filled.to_arrow(start=2, end=9))


@pytest.mark.parametrize("bounds", [{"start": -1}, {"start": 11}, {"end": 11}, {"start": {1: 11}}])
def test_an_offset_that_the_partition_does_not_have_is_out_of_range(filled, bounds):
    with pytest.raises(OffsetOutOfRange) as refusal:
        filled.to_arrow(**bounds)
    assert (refusal.value.earliest, refusal.value.latest) == (0, 10)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"partitions": [2]}, UnknownTopic, "partition 2"),
        ({"partitions": [-1]}, UnknownTopic, "partition -1"),
        ({"start": {2: 0}}, UnknownTopic, "partition 2"),
        ({"partitions": [0], "end": {1: 0}}, UnknownTopic, "partition 1"),
        ({"start": 5, "end": 4}, InvalidConfig, "start 5 of partition 0 is after end 4"),
        ({"start": dt.datetime(2024, 1, 1)}, InvalidConfig, "has no time zone"),
        ({"start": 1.5}, TypeError, "start must be an offset"),
        ({"end": "now"}, TypeError, "end must be an offset"),
        ({"start": True}, TypeError, "not bool"),
    ],
)
def test_an_invalid_range_is_refused(filled, arguments, error, message):
    with pytest.raises(error, match=message):
        filled.to_batches(**arguments)


def test_a_topic_is_read_to_its_end_during_compaction(filled, root):
    batches = filled.to_batches()
    first = next(batches)
    compact(open_store(root), "t")
    rest = pa.Table.from_batches([first, *batches]).sort_by(
        [("_partition", "ascending"), ("_offset", "ascending")]
    )
    assert seen(rest) == [(p, o, f"{p}.{o}".encode()) for p in (0, 1) for o in range(10)]


def test_offsets_that_compaction_removed_are_gaps(filled, root):
    compact(open_store(root), "t", keep=lambda partition, offset: offset % 3 == 1)
    assert seen(filled.to_arrow(partitions=[0])) == [(0, o, f"0.{o}".encode()) for o in (1, 4, 7)]
    assert seen(filled.to_arrow(partitions=[1], start=2, end=7)) == [(1, 4, b"1.4")]


def test_a_topic_that_is_deleted_while_it_is_read_is_unknown(filled, root, monkeypatch):
    # Or all files would have been read from a remote store.
    monkeypatch.setattr(ranges, "BYTES_AT_ONCE", 0)
    batches = filled.to_batches()
    next(batches)
    store = open_store(root)
    files = [entry.key for entry in store.list(topic_folder("t")) if entry.key.endswith(".parquet")]
    filled.delete()
    filled.create()
    for key in files:
        store.delete(key)
    with pytest.raises(UnknownTopic, match="deleted while it was read"):
        list(batches)


@pytest.mark.fault("B3")
def test_a_live_file_that_is_missing_in_the_store_is_corruption(filled, root):
    store = open_store(root)
    (lost, *_) = [
        entry.key for entry in store.list(topic_folder("t")) if entry.key.endswith(".parquet")
    ]
    store.delete(lost)
    with pytest.raises(ObjectMissing):
        store.get(lost)
    with pytest.raises(Corrupt, match="data file is missing") as damage:
        filled.to_arrow()
    assert damage.value.path == lost
