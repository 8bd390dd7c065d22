"""The readers as Spark calls them, in this process: what they plan, and what their tasks find."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from deltaq import Corrupt, InvalidConfig, KafkaException, Producer, Topic, UnknownTopic
from deltaq.clock import SYSTEM_CLOCK
from deltaq.spark import source as source_module
from deltaq.spark.data_source import DeltaqDataSource
from deltaq.spark.offsets import from_json, same_place
from deltaq.spark.source import DeltaqStreamReader
from deltaq.store import LocalStore
from deltaq.testing import ManualClock
from tests.doubles.compaction import compact
from tests.doubles.produced_tables import Produce
from tests.security.forged import as_segment, produce_three, replace_file

Row = tuple[int, int, bytes | None]


def source(root: str, **options: str) -> DeltaqDataSource:
    return DeltaqDataSource({"path": root, **options})


def stream(root: str, **options: str) -> DeltaqStreamReader:
    data_source = source(root, **options)
    return data_source.streamReader(data_source.schema())


def batch(root: str, **options: str) -> list[Row]:
    """(partition, offset, value) of a batch read, sorted."""
    data_source = source(root, **options)
    reader = data_source.reader(data_source.schema())
    return rows(reader, reader.partitions())


def rows(reader: DataSourceReader | DataSourceStreamReader, tasks: Any) -> list[Row]:
    found: list[Row] = []
    for task in tasks or [InputPartition(None)]:  # as Spark does
        for records in reader.read(task):
            assert isinstance(records, pa.RecordBatch)
            columns = (
                records.column(name).to_pylist() for name in ("partition", "offset", "value")
            )
            found += zip(*columns, strict=True)
    return sorted(found)


def through_json(offset: Mapping[str, Any]) -> dict[str, Any]:
    """As Spark keeps it between two calls."""
    parsed: dict[str, Any] = json.loads(json.dumps(offset))
    return parsed


def micro_batches(
    reader: DeltaqStreamReader, start: Mapping[str, Any], limit: Any = None
) -> list[list[Row]]:
    """Micro-batch after micro-batch until there is nothing new."""
    found = []
    start = through_json(start)
    while (
        end := through_json(reader.latestOffset(start, limit or reader.getDefaultReadLimit()))
    ) != start:
        found.append(rows(reader, reader.partitions(start, end)))
        start = end
    return found


def begun(reader: DeltaqStreamReader) -> dict[str, Any]:
    """Where a new query stands after its first micro-batch."""
    return through_json(
        reader.latestOffset(through_json(reader.initialOffset()), ReadAllAvailable())
    )


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def expected(first: int, count: int, partition: int = 0) -> list[Row]:
    return [(partition, number, b"%d" % number) for number in range(first, first + count)]


# --- batch ---


def test_a_batch_reads_all_records(root: str, produce: Produce) -> None:
    produce("orders", numbers(0, 5), partitions=2)
    produce("orders", numbers(0, 3), to=1)
    produce("orders", numbers(5, 5))
    assert batch(root, subscribe="orders") == expected(0, 10) + expected(0, 3, partition=1)


def test_a_batch_of_an_empty_topic_has_no_rows(root: str) -> None:
    Topic("orders", bootstrap_servers=root).create()
    assert batch(root, subscribe="orders") == []


@pytest.mark.parametrize(
    ("options", "first", "last"),
    [
        ({"startingOffsets": '{"orders":{"0":3}}'}, 3, 10),
        ({"startingOffsets": '{"orders":{"0":-2}}', "endingOffsets": '{"orders":{"0":7}}'}, 0, 7),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, 0, 10),
        ({"startingTimestamp": "1004", "endingTimestamp": "1008"}, 4, 8),
        ({"endingTimestamp": "5000"}, 0, 10),
        (
            {
                "startingOffsetsByTimestamp": '{"orders":{"0":1003}}',
                "endingOffsetsByTimestamp": '{"orders":{"0":1009}}',
            },
            3,
            9,
        ),
        ({"startingTimestamp": "1010", "startingOffsetsByTimestampStrategy": "latest"}, 10, 10),
    ],
)
def test_a_batch_begins_and_ends_at_the_given_offsets(
    root: str, produce: Produce, options: dict[str, str], first: int, last: int
) -> None:
    produce("orders", numbers(0, 10), timestamps=range(1000, 1010))
    assert batch(root, subscribe="orders", **options) == expected(first, last - first)


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "latest"},
        {"endingOffsets": "earliest"},
        {"startingOffsets": '{"orders":{"0":-1}}'},
        {"endingOffsets": '{"orders":{"0":-2}}'},
    ],
)
def test_a_batch_with_an_empty_range_is_refused(root: str, options: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig, match="would read nothing"):
        batch(root, subscribe="orders", **options)


def test_a_batch_from_a_time_after_the_last_record_is_an_error(root: str, produce: Produce) -> None:
    produce("orders", numbers(0, 10), timestamps=range(1000, 1010))
    with pytest.raises(InvalidConfig, match="partition 0 has no record with the timestamp 1010 ms"):
        batch(root, subscribe="orders", startingTimestamp="1010")
    with pytest.raises(InvalidConfig, match="partition 0 has no record with the timestamp 1010 ms"):
        begun(stream(root, subscribe="orders", startingOffsetsByTimestamp='{"orders":{"0":1010}}'))


def test_a_task_has_no_more_offsets_than_allowed(root: str, produce: Produce) -> None:
    for first in (0, 50):
        produce("orders", numbers(first, 50))
    data_source = source(
        root, subscribe="orders", maxRecordsPerPartition="8", startingOffsets="earliest"
    )
    reader, streaming = (
        data_source.reader(data_source.schema()),
        data_source.streamReader(data_source.schema()),
    )
    for tasks in (
        reader.partitions(),
        streaming.partitions(streaming.initialOffset(), begun(streaming)),
    ):
        assert [len(rows(reader, [task])) for task in tasks] == [8] * 12 + [4]
        assert rows(reader, tasks) == expected(0, 100)


def test_more_tasks_can_be_asked_for(root: str, produce: Produce) -> None:
    produce("orders", numbers(0, 100))
    data_source = source(root, subscribe="orders", minPartitions="7")
    reader = data_source.reader(data_source.schema())
    tasks = reader.partitions()
    assert len(tasks) >= 7
    assert rows(reader, tasks) == expected(0, 100)


def test_assigned_partitions_are_read_and_no_others(root: str, produce: Produce) -> None:
    produce("orders", numbers(0, 4), partitions=3)
    produce("orders", numbers(0, 4), to=2)
    assert batch(root, assign='{"orders":[1,2]}') == expected(0, 4, partition=2)
    with pytest.raises(UnknownTopic, match="partition 3"):
        batch(root, assign='{"orders":[3]}')


def test_a_topic_that_does_not_exist_is_named(root: str) -> None:
    with pytest.raises(UnknownTopic, match="'orders' does not exist: create it"):
        batch(root, subscribe="orders")


def test_a_store_inside_one_process_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="exists in one process only"):
        batch("memory://test", subscribe="orders")


def test_a_relative_root_is_made_absolute_where_the_driver_runs(
    tmp_path: Path, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce("orders", numbers(0, 3))
    monkeypatch.chdir(tmp_path)
    data_source = source("./root", subscribe="orders")
    reader = data_source.reader(data_source.schema())
    tasks = reader.partitions()
    monkeypatch.chdir("/")
    assert rows(reader, tasks) == expected(0, 3)


def test_a_schema_given_by_the_user_picks_columns(root: str, produce: Produce) -> None:
    produce("orders", numbers(0, 2))
    reader = source(root, subscribe="orders").reader(
        StructType().add("offset", LongType()).add("topic", StringType())
    )
    (task,) = reader.partitions()
    (records,) = reader.read(task)
    assert isinstance(records, pa.RecordBatch)
    assert records.to_pydict() == {"offset": [0, 1], "topic": ["orders", "orders"]}


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of each part of a data file that was fetched."""
    sizes: list[int] = []

    def counting(fetch: Any) -> Any:
        def counted(store: LocalStore, key: str, *place: int) -> bytes:
            data: bytes = fetch(store, key, *place)
            if key.endswith(".parquet"):
                sizes.append(len(data))
            return data

        return counted

    for name in ("get", "get_range"):
        monkeypatch.setattr(LocalStore, name, counting(getattr(LocalStore, name)))
    return sizes


@pytest.mark.parametrize(
    ("schema", "mebibytes"),
    [
        (StructType().add("offset", LongType()).add("topic", StringType()), (0, 0.1)),
        (StructType().add("offset", LongType()).add("key", BinaryType()), (2, 2.2)),
        (StructType().add("value", BinaryType()), (4, 4.2)),
        (StructType().add("value", BinaryType()).add("key", BinaryType()), (6, 6.2)),
    ],
    ids=["place", "key", "value", "both"],
)
def test_a_schema_given_by_the_user_decides_which_bytes_are_fetched(
    root: str,
    produce: Produce,
    fetched: list[int],
    schema: StructType,
    mebibytes: tuple[float, float],
) -> None:
    random = Random(0)
    keys, large = ([random.randbytes(size) for _ in range(2048)] for size in (1024, 2048))
    produce("orders", large, keys=keys)
    reader = source(root, subscribe="orders").reader(schema)
    fetched.clear()
    found = [records for task in reader.partitions() for records in reader.read(task)]
    assert sum(len(records) for records in found if isinstance(records, pa.RecordBatch)) == 2048
    assert mebibytes[0] <= sum(fetched) / 2**20 <= mebibytes[1]


def test_columns_of_a_typed_topic_are_fetched_apart(root: str, fetched: list[int]) -> None:
    random = Random(0)
    table = pa.table(
        {
            name: [random.randbytes(1024) for _ in range(2048)]
            for name in ("first", "second", "third")
        }
    )
    with Producer({"bootstrap.servers": root}) as producer:
        Topic("orders", table.schema, bootstrap_servers=root).create()
        producer.produce_arrow("orders", table)
    data_source = source(root, subscribe="orders", columns="table")
    reader = data_source.reader(StructType([data_source.schema()["third"]]))
    fetched.clear()
    found = [as_batch(records) for task in reader.partitions() for records in reader.read(task)]
    assert [value for records in found for value in records["third"].to_pylist()] == table[
        "third"
    ].to_pylist()
    # Without the column in the middle, but with the first one: it shows that the file is one of the
    # topic.
    assert 4 <= sum(fetched) / 2**20 <= 4.2


def as_batch(records: object) -> pa.RecordBatch:
    assert isinstance(records, pa.RecordBatch)
    return records


def test_a_schema_that_the_topic_does_not_have_is_refused(root: str, produce: Produce) -> None:
    produce("orders", numbers(0, 2))
    with pytest.raises(
        InvalidConfig, match="column 'amount' as int64: in the topic it does not exist"
    ):
        source(root, subscribe="orders").reader(StructType().add("amount", LongType())).partitions()
    with pytest.raises(
        InvalidConfig, match="column 'offset' as string: in the topic it has type int64"
    ):
        source(root, subscribe="orders").reader(
            StructType().add("offset", StringType())
        ).partitions()


# --- stream ---


def test_a_stream_begins_with_new_records_by_default(root: str, produce: Produce) -> None:
    produce("orders", numbers(0, 5))
    latest = stream(root, subscribe="orders")
    earliest = stream(root, subscribe="orders", startingOffsets="earliest")
    chosen = stream(root, subscribe="orders", startingOffsets='{"orders":{"0":2}}')
    starts = [(reader, reader.initialOffset()) for reader in (latest, earliest, chosen)]
    assert [micro_batches(*start) for start in starts] == [[[]], [expected(0, 5)], [expected(2, 3)]]
    positions = [(reader, begun(reader)) for reader in (latest, earliest, chosen)]
    produce("orders", numbers(5, 5))
    assert [micro_batches(*position) for position in positions] == [[expected(5, 5)]] * 3


def test_a_stream_follows_the_log_and_plans_each_record_once(root: str, produce: Produce) -> None:
    reader = None
    found: list[Row] = []
    start: dict[str, Any] = {}
    for first in range(0, 50, 5):
        produce("orders", numbers(first, 5))
        if reader is None:
            reader = stream(root, subscribe="orders", startingOffsets="earliest")
            start = through_json(reader.initialOffset())
        end = through_json(reader.latestOffset(start, ReadAllAvailable()))
        found += rows(reader, reader.partitions(start, end))
        assert same_place(from_json(reader.reportLatestOffset() or {}), from_json(end))
        start = end
    assert found == expected(0, 50)


def test_a_limit_cuts_the_backlog_into_micro_batches(root: str, produce: Produce) -> None:
    produce("orders", numbers(0, 20))
    reader = stream(root, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger="8")
    assert reader.getDefaultReadLimit() == ReadMaxRows(8)
    assert micro_batches(reader, reader.initialOffset()) == [
        expected(0, 8),
        expected(8, 8),
        expected(16, 4),
    ]
    assert micro_batches(reader, reader.initialOffset(), ReadAllAvailable()) == [expected(0, 20)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock by which micro-batches are delayed."""
    clock = ManualClock()
    monkeypatch.setattr(source_module, "_CLOCK", clock)
    return clock


def test_a_minimum_delays_micro_batches_until_there_are_enough_records(
    root: str, produce: Produce, clock: ManualClock
) -> None:
    produce("orders", numbers(0, 2))
    reader = stream(
        root,
        subscribe="orders",
        startingOffsets="earliest",
        minOffsetsPerTrigger="4",
        maxTriggerDelay="60s",
    )
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(4)
    first = through_json(reader.latestOffset(reader.initialOffset(), limit))
    # At once.
    assert rows(reader, reader.partitions(reader.initialOffset(), first)) == expected(0, 2)
    produce("orders", numbers(2, 3))
    clock.advance(59.5)
    assert reader.latestOffset(first, limit) == first
    produce("orders", numbers(5, 1))
    second = through_json(reader.latestOffset(first, limit))
    assert rows(reader, reader.partitions(first, second)) == expected(2, 4)
    produce("orders", numbers(6, 1))
    clock.advance(59.5)
    assert reader.latestOffset(second, limit) == second
    clock.advance(0.5)
    third = through_json(reader.latestOffset(second, limit))
    assert rows(reader, reader.partitions(second, third)) == expected(6, 1)
    produce("orders", numbers(7, 1))
    assert reader.latestOffset(third, limit) == third
    assert micro_batches(reader, third, ReadAllAvailable()) == [expected(7, 1)]


def test_a_restarted_query_does_not_wait_for_its_first_micro_batch(
    root: str, produce: Produce, clock: ManualClock
) -> None:
    options = {"subscribe": "orders", "minOffsetsPerTrigger": "4", "maxOffsetsPerTrigger": "5"}
    produce("orders", numbers(0, 2))
    start = begun(stream(root, **options))
    produce("orders", numbers(2, 8))
    reader = stream(root, **options)
    assert reader.getDefaultReadLimit() == ReadMaxRows(5)
    assert micro_batches(reader, start) == [expected(2, 5)]
    clock.advance(15 * 60)
    assert micro_batches(reader, begun_at(reader, 7)) == [expected(7, 3)]


def begun_at(reader: DeltaqStreamReader, offset: int) -> dict[str, Any]:
    """A position in the topic `orders`."""
    topic_id = (reader.reportLatestOffset() or {})["orders"]["topic_id"]
    return {"orders": {"topic_id": topic_id, "next_offsets": {"0": offset}}}


def test_available_now_leaves_nothing_behind_whatever_the_minimum(
    root: str, produce: Produce, clock: ManualClock
) -> None:
    produce("orders", numbers(0, 10))
    reader = stream(
        root,
        subscribe="orders",
        startingOffsets="earliest",
        minOffsetsPerTrigger="5",
        maxOffsetsPerTrigger="6",
    )
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    assert micro_batches(reader, start) == [expected(0, 6), expected(6, 4)]


def test_available_now_ends_where_the_topic_ended_at_its_start(root: str, produce: Produce) -> None:
    produce("orders", numbers(0, 10))
    reader = stream(root, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger="6")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    produce("orders", numbers(10, 10))
    assert micro_batches(reader, start) == [expected(0, 6), expected(6, 4)]


def test_a_restarted_query_plans_its_last_micro_batch_the_same(root: str, produce: Produce) -> None:
    produce("orders", numbers(0, 10))
    reader = stream(root, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger="4")
    start = through_json(reader.initialOffset())
    end = through_json(reader.latestOffset(start, ReadMaxRows(4)))
    produce("orders", numbers(10, 10))
    restarted = stream(root, subscribe="orders")
    assert rows(restarted, restarted.partitions(start, end)) == expected(0, 4)


def test_topics_that_a_pattern_matches_later_are_read_from_their_beginning(
    root: str, produce: Produce
) -> None:
    produce("orders-eu", numbers(0, 2))
    produce("payments", numbers(0, 9))
    start = begun(stream(root, subscribePattern="orders-.*"))
    produce("orders-us", numbers(0, 3))
    restarted = stream(root, subscribePattern="orders-.*")
    assert micro_batches(restarted, start) == [expected(0, 3)]


def test_a_pattern_passes_by_a_folder_that_no_topic_can_have(root: str, produce: Produce) -> None:
    produce("orders-eu", numbers(0, 2))
    foreign = Path(root, "topics", "orders-eu (old)")
    foreign.mkdir()
    (foreign / "notes.txt").touch()
    assert batch(root, subscribePattern="orders-.*") == expected(0, 2)


def test_a_stream_of_a_topic_that_does_not_exist_is_refused_at_its_start(root: str) -> None:
    with pytest.raises(UnknownTopic, match="'orders' does not exist"):
        begun(stream(root, subscribe="orders"))


def test_a_stream_has_no_end_to_be_set(root: str) -> None:
    with pytest.raises(InvalidConfig, match="a stream has no end"):
        stream(root, subscribe="orders", endingOffsets="latest")


def test_a_stream_that_would_begin_behind_the_end_is_refused(root: str, produce: Produce) -> None:
    produce("orders", numbers(0, 5))
    begun(stream(root, subscribe="orders", startingOffsets='{"orders":{"0":5}}'))
    with pytest.raises(InvalidConfig, match="partition 0: its start 6 is after its end 5"):
        begun(
            stream(
                root,
                subscribe="orders",
                startingOffsets='{"orders":{"0":6}}',
                failOnDataLoss="false",
            )
        )


def test_a_checkpoint_without_first_offsets_is_refused(root: str, produce: Produce) -> None:
    produce("orders", numbers(0, 5))
    reader = stream(root, subscribe="orders")
    end = begun(reader)
    del end["orders"]["first_offsets"]
    with pytest.raises(InvalidConfig, match="set another checkpointLocation"):
        reader.partitions(reader.initialOffset(), end)


# --- a topic that is written all the time ---


class Query:
    """The calls that Spark's micro-batch engine makes, in its order, and what its checkpoint keeps
    of the answers.

    A record is appended before each call. `restart` is a crash: the new reader has only the
    checkpoint.
    """

    def __init__(self, root: str, producer: Producer, **options: str) -> None:
        self._root, self._producer, self._options = root, producer, options
        self._planned: list[str] = []
        self._committed = 0
        self.written = 0
        self.rows: list[Row] = []
        self.restart()

    def restart(self) -> None:
        self._reader = stream(self._root, subscribe="orders", **self._options)

    @property
    def reader(self) -> DeltaqStreamReader:
        """The reader, for one call."""
        self._producer.produce("orders", b"%d" % self.written, timestamp=1000 + self.written)
        self._producer.flush()
        self.written += 1
        return self._reader

    def start(self) -> dict[str, Any]:
        if self._committed:
            return through_json(json.loads(self._planned[self._committed - 1]))
        return through_json(self.reader.initialOffset())

    def plan(self) -> bool:
        """Choose the end of the next micro-batch, unless that was done before a restart. Whether
        there is one.
        """
        if len(self._planned) == self._committed:
            end = json.dumps(
                self.reader.latestOffset(self.start(), self._reader.getDefaultReadLimit())
            )
            if end in self._planned[-1:]:
                return False
            self._planned.append(end)
        return True

    def read(self) -> list[Row]:
        """The rows of the planned micro-batch."""
        start, end = self.start(), json.loads(self._planned[self._committed])
        return rows(self._reader, self.reader.partitions(start, end))

    def finish(self) -> None:
        """Note that the planned micro-batch was processed."""
        self.rows += self.read()
        self._committed += 1

    def available_now(self) -> int:
        """Run with this trigger. Returns how many records were there when it began."""
        self.restart()
        self.reader.prepareForTriggerAvailableNow()
        written = self.written
        while self.plan():
            self.finish()
        return written


@pytest.fixture
def orders(root: str) -> Iterator[Producer]:
    """A producer for the topic `orders`, which is empty."""
    Topic("orders", bootstrap_servers=root).create()
    with Producer({"bootstrap.servers": root}) as producer:
        yield producer


STARTS = [
    {},
    {"startingOffsets": '{"orders":{"0":-1}}'},
    {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "2"},
    {"startingTimestamp": "1001", "maxOffsetsPerTrigger": "1", "minOffsetsPerTrigger": "1"},
    {"startingTimestamp": "999999", "startingOffsetsByTimestampStrategy": "latest"},
]


def first_of(options: Mapping[str, str], written: int) -> int:
    """Where a query begins that was first planned when so many records were there."""
    if "earliest" in options.values():
        return 0
    return 1 if "1001" in options.values() else written


@pytest.mark.parametrize("crash", ["never", "before a plan", "before reading", "after reading"])
@pytest.mark.parametrize("options", STARTS, ids=str)
def test_a_query_on_a_busy_topic_reads_each_record_once_from_its_start(
    root: str, orders: Producer, options: dict[str, str], crash: str
) -> None:
    query = Query(root, orders, **options)
    if crash == "before a plan":
        for _ in range(3):
            query.start()
            query.restart()
    query.start()
    query.plan()
    begin = first_of(options, query.written)
    if crash == "before reading":
        query.restart()
    first = query.read()
    if crash == "after reading":
        query.restart()
        assert query.read() == first
    while len(query.rows) < 10 and query.plan():
        query.finish()
    assert query.rows == expected(begin, len(query.rows))
    assert len(query.rows) >= 10


@pytest.mark.parametrize("options", STARTS, ids=str)
def test_available_now_on_a_busy_topic_ends_where_the_topic_ended_at_its_start(
    root: str, orders: Producer, options: dict[str, str]
) -> None:
    query = Query(root, orders, **options)
    for _ in range(3):
        query.start()
    begin = first_of(options, query.written + 1)
    for _ in range(3):
        written = query.available_now()
        assert query.rows == expected(begin, written - begin)
    assert query.rows


# --- loss ---


def recreate(root: str) -> None:
    topic = Topic("orders", bootstrap_servers=root)
    topic.delete()
    topic.create()


def test_a_recreated_topic_ends_the_query_or_is_read_from_its_beginning(
    root: str, produce: Produce, caplog: pytest.LogCaptureFixture
) -> None:
    produce("orders", numbers(0, 5))
    reader = stream(root, subscribe="orders", startingOffsets="earliest")
    start = begun(reader)
    recreate(root)
    produce("orders", numbers(0, 2))
    with pytest.raises(KafkaException, match="deleted and created again"):
        micro_batches(reader, start)
    with caplog.at_level(logging.WARNING, "deltaq.spark"):
        assert micro_batches(stream(root, subscribe="orders", failOnDataLoss="false"), start) == [
            expected(0, 2)
        ]
    assert "deleted and created again" in caplog.text


def test_a_deleted_topic_ends_the_query_or_is_left_out(root: str, produce: Produce) -> None:
    produce("orders", numbers(0, 5))
    produce("payments", numbers(0, 5))
    reader = stream(root, subscribe="orders,payments")
    start = begun(reader)
    Topic("orders", bootstrap_servers=root).delete()
    produce("payments", numbers(5, 2))
    with pytest.raises(KafkaException, match="was deleted"):
        micro_batches(reader, start)
    tolerant = stream(root, subscribe="orders,payments", failOnDataLoss="false")
    assert micro_batches(tolerant, start) == [expected(5, 2)]


def data_files(root: str, topic: str) -> list[Path]:
    return sorted(Path(root, "topics", topic).glob("*.parquet"))


def test_a_task_finds_records_that_were_compacted_after_they_were_planned(
    root: str, produce: Produce
) -> None:
    produce("orders", numbers(0, 5), partitions=2)
    produce("orders", numbers(0, 5), to=1)
    produce("orders", numbers(5, 5))
    data_source = source(root, subscribe="orders", startingOffsets='{"orders":{"0":3,"1":0}}')
    reader = data_source.reader(data_source.schema())
    tasks = reader.partitions()
    compact(LocalStore(root, SYSTEM_CLOCK), "orders")
    assert rows(reader, tasks) == expected(3, 7) + expected(0, 5, partition=1)


def test_offsets_that_key_compaction_removed_are_gaps_and_no_loss(
    root: str, produce: Produce
) -> None:
    produce("orders", numbers(0, 10))
    compact(
        LocalStore(root, SYSTEM_CLOCK), "orders", keep=lambda partition, offset: offset % 3 == 0
    )
    reader = stream(root, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger="4")
    found = micro_batches(reader, reader.initialOffset())
    assert [[offset for _, offset, _ in records] for records in found] == [[0, 3], [6], [9]]


@pytest.mark.fault("X4")
def test_a_task_refuses_a_file_whose_columns_are_not_those_of_the_table(root: str) -> None:
    store = LocalStore(root)
    produce_three(store)
    replace_file(store, as_segment(pa.table({"value": [7]}), 1), 1)
    with pytest.raises(Corrupt, match="column 'value' is int64 instead of binary"):
        batch(root, subscribe="t")


def test_a_task_of_a_deleted_topic_raises(root: str, produce: Produce) -> None:
    produce("orders", numbers(0, 10))
    readers = [stream(root, subscribe="orders", failOnDataLoss=fail) for fail in ("true", "false")]
    offsets = {"topic_id": Topic("orders", bootstrap_servers=root).describe().topic_id}
    start, end = ({"orders": {**offsets, "next_offsets": {"0": at}}} for at in (0, 10))
    plans = [(reader, reader.partitions(start, end)) for reader in readers]
    Topic("orders", bootstrap_servers=root).delete()
    for file in data_files(root, "orders"):
        file.unlink()
    with pytest.raises(KafkaException, match="deleted before it was read"):
        rows(*plans[0])
    assert rows(*plans[1]) == []


# --- columns ---


def test_a_record_keeps_all_its_produced_fields(root: str, produce: Produce) -> None:
    headers = [[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None]
    produce(
        "orders",
        [b"x", None],
        keys=[b"k", None],
        timestamps=[1_700_000_000_123, 0],
        headers=headers,
    )
    data_source = source(root, subscribe="orders", includeHeaders="true")
    reader = data_source.reader(data_source.schema())
    (records,) = reader.read(*reader.partitions())
    assert isinstance(records, pa.RecordBatch)
    assert records.schema.names == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers",
    ]  # fmt: skip
    first, second = records.to_pylist()
    assert (first["key"], first["value"], first["topic"], first["timestampType"]) == (
        b"k",
        b"x",
        "orders",
        0,
    )
    assert first["timestamp"].timestamp() == 1_700_000_000.123
    assert [first["headers"], second["headers"]] == headers
    assert (second["key"], second["value"], second["offset"]) == (None, None, 1)


def test_log_append_times_are_distinguished_from_create_times(root: str, produce: Produce) -> None:
    config = {"message.timestamp.type": "LogAppendTime"}
    Topic("orders", config=config, bootstrap_servers=root).create()
    produce("orders", [b"x"], timestamps=[1000])
    data_source = source(root, subscribe="orders")
    reader = data_source.reader(data_source.schema())
    (records,) = reader.read(*reader.partitions())
    assert isinstance(records, pa.RecordBatch)
    (row,) = records.to_pylist()
    assert row["timestampType"] == 1
    assert row["timestamp"].timestamp() > 1000


TYPED = pa.schema(
    [
        pa.field("item", pa.string(), nullable=False),
        pa.field("prices", pa.list_(pa.decimal128(10, 2))),
    ]
)


def test_a_typed_topic_is_read_as_its_own_columns(root: str) -> None:
    Topic("sales", TYPED, bootstrap_servers=root).create()
    data_source = source(root, subscribe="sales", columns="table")
    schema = data_source.schema()
    assert schema.simpleString() == (
        "struct<_topic:string,_partition:int,_offset:bigint,_timestamp:timestamp,_key:binary,"
        "_headers:array<struct<key:string,value:binary>>,item:string,prices:array<decimal(10,2)>>"
    )
    with Producer({"bootstrap.servers": root}) as producer:
        producer.produce(
            "sales", {"item": "tea", "prices": [Decimal("2.50"), None]}, key="k", timestamp=5
        )
    reader = data_source.reader(schema)
    (records,) = reader.read(*reader.partitions())
    assert isinstance(records, pa.RecordBatch)
    (row,) = records.to_pylist()
    assert row.pop("_timestamp").timestamp() == 0.005
    assert row == {
        "_topic": "sales",
        "_partition": 0,
        "_offset": 0,
        "_key": b"k",
        "_headers": None,
        "item": "tea",
        "prices": [Decimal("2.50"), None],
    }


def test_a_typed_topic_has_no_kafka_value_column(root: str) -> None:
    Topic("sales", TYPED, bootstrap_servers=root).create()
    data_source = source(root, subscribe="sales")
    reader = data_source.reader(data_source.schema())
    assert list(reader.partitions()) == []  # nothing there, nothing wrong
    with Producer({"bootstrap.servers": root}) as producer:
        producer.produce("sales", {"item": "tea", "prices": None})
    with pytest.raises(InvalidConfig, match='set option "columns" to "table"'):
        reader.partitions()


def test_topics_with_different_columns_are_not_read_together(root: str, produce: Produce) -> None:
    Topic("sales", TYPED, bootstrap_servers=root).create()
    Topic("orders", bootstrap_servers=root).create()
    with pytest.raises(InvalidConfig, match="cannot be read with column"):
        source(root, subscribe="sales,orders", columns="table").schema()


def test_a_pattern_without_topics_has_no_columns_yet(root: str) -> None:
    with pytest.raises(InvalidConfig, match="no topic matches"):
        source(root, subscribePattern="sales-.*", columns="table").schema()


def test_a_topic_with_large_messages_is_refused(root: str) -> None:
    with Producer({"bootstrap.servers": root, "large.message.enabled": True}) as producer:
        producer.produce("orders", b"x" * 1_500_000)
    with pytest.raises(
        InvalidConfig, match=r"topic 'orders' has messages in pieces .*, which Spark does not join"
    ):
        batch(root, subscribe="orders")
    streaming = stream(root, subscribe="orders", startingOffsets="earliest")
    with pytest.raises(InvalidConfig, match="topic 'orders' has messages in pieces"):
        streaming.partitions(streaming.initialOffset(), begun(streaming))
