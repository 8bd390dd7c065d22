"""`startingOffsetsByGroup`: a query that begins where a consumer group stands."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from deltaq import Consumer, InvalidConfig, KafkaException, Topic
from deltaq.admin import AdminClient, ConsumerGroupTopicPartitions
from deltaq.message import TopicPartition
from deltaq.spark.data_source import DeltaqDataSource
from deltaq.spark.source import DeltaqStreamReader
from tests.doubles.produced_tables import Produce


def commit(root: str, *offsets: tuple[str, int, int]) -> None:
    """Commit (topic, partition, offset) for the group `billing`."""
    wanted = [
        ConsumerGroupTopicPartitions("billing", [TopicPartition(*offset) for offset in offsets])
    ]
    (future,) = (
        AdminClient({"bootstrap.servers": root}).alter_consumer_group_offsets(wanted).values()
    )
    assert [tp.error for tp in future.result().topic_partitions or ()] == [None] * len(offsets)


def source(root: str, **options: str) -> DeltaqDataSource:
    return DeltaqDataSource(
        {"path": root, "subscribe": "orders", "startingOffsetsByGroup": "billing", **options}
    )


def batch(root: str, **options: str) -> list[tuple[int, int]]:
    """(partition, offset) of the records that a batch reads, sorted."""
    data_source = source(root, **options)
    reader = data_source.reader(data_source.schema())
    found: list[tuple[int, int]] = []
    for task in reader.partitions():
        for records in reader.read(task):
            assert isinstance(records, pa.RecordBatch)
            found += zip(
                *(records.column(name).to_pylist() for name in ("partition", "offset")), strict=True
            )
    return sorted(found)


def stream(root: str, **options: str) -> DeltaqStreamReader:
    data_source = source(root, **options)
    return data_source.streamReader(data_source.schema())


def begun(reader: DeltaqStreamReader) -> Mapping[str, Any]:
    """The end of the first micro-batch, as Spark records it."""
    body: Mapping[str, Any] = json.loads(
        json.dumps(reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit()))
    )
    return body


def test_a_batch_reads_on_where_a_consumer_of_the_group_has_stopped(
    root: str, produce: Produce
) -> None:
    produce("orders", [b"x"] * 10)
    conf = {"bootstrap.servers": root, "group.id": "billing", "auto.offset.reset": "earliest"}
    with Consumer(conf) as consumer:
        consumer.subscribe(["orders"])
        assert len(consumer.consume(7, timeout=30)) == 7
        consumer.commit(asynchronous=False)
    assert batch(root) == [(0, 7), (0, 8), (0, 9)]


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({}, 0),
        ({"startingOffsets": '{"orders":{"0":-2,"1":3}}'}, 3),
        ({"startingTimestamp": "1004"}, 4),
    ],
    ids=str,
)
def test_partitions_without_a_committed_offset_follow_the_other_starting_options(
    root: str,
    produce: Produce,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, str],
    first: int,
) -> None:
    for partition in (0, 1):
        produce("orders", [b"x"] * 5, to=partition, partitions=2, timestamps=range(1000, 1005))
    commit(root, ("orders", 0, 2))
    with caplog.at_level(logging.WARNING, "deltaq.spark"):
        found = batch(root, **options)
    assert found == [(0, offset) for offset in range(2, 5)] + [
        (1, offset) for offset in range(first, 5)
    ]
    assert [record.getMessage() for record in caplog.records if record.name == "deltaq.spark"] == [
        "no committed offset group='billing' topic='orders' partition=1"
    ]


def test_a_time_without_a_record_is_no_error_where_the_group_says_the_beginning(
    root: str, produce: Produce
) -> None:
    produce("orders", [b"x"] * 5, timestamps=range(1000, 1005))
    with pytest.raises(InvalidConfig, match="no record with the timestamp"):
        batch(root, startingTimestamp="9000")
    commit(root, ("orders", 0, 4))
    assert batch(root, startingTimestamp="9000") == [(0, 4)]


def test_a_stream_begins_there_and_then_follows_its_checkpoint(root: str, produce: Produce) -> None:
    produce("orders", [b"x"] * 10)
    commit(root, ("orders", 0, 3))
    end = begun(stream(root))
    assert (end["orders"]["first_offsets"], end["orders"]["next_offsets"]) == ({"0": 3}, {"0": 10})
    produce("orders", [b"x"])
    commit(root, ("orders", 0, 1))
    restarted = stream(root)
    assert restarted.latestOffset(dict(end), restarted.getDefaultReadLimit())["orders"][
        "next_offsets"
    ] == {"0": 11}


def test_a_group_that_commits_while_the_query_starts_is_not_ahead_of_it(
    root: str, produce: Produce
) -> None:
    produce("orders", [b"x"] * 3)
    reader = stream(root)
    reader.prepareForTriggerAvailableNow()
    produce("orders", [b"x"] * 3)
    commit(root, ("orders", 0, 5))
    end = begun(reader)
    assert (end["orders"]["first_offsets"], end["orders"]["next_offsets"]) == ({"0": 5}, {"0": 6})


def test_offsets_of_a_deleted_topic_do_not_apply_to_its_successor(
    root: str, produce: Produce
) -> None:
    produce("orders", [b"x"] * 5)
    commit(root, ("orders", 0, 3))
    Topic("orders", bootstrap_servers=root).delete()
    produce("orders", [b"x"] * 5)
    assert batch(root) == [(0, offset) for offset in range(5)]


def test_committed_offsets_that_retention_has_passed_are_data_loss(
    root: str, produce: Produce
) -> None:
    produce("orders", [b"x"] * 5)
    commit(root, ("orders", 0, 1))
    admin = AdminClient({"bootstrap.servers": root})
    for future in admin.delete_records([TopicPartition("orders", 0, 3)]).values():
        future.result()
    with pytest.raises(KafkaException, match='set the option "failOnDataLoss" to false'):
        batch(root)
    assert batch(root, failOnDataLoss="false") == [(0, 3), (0, 4)]


def test_committed_offsets_after_the_end_are_refused(root: str, produce: Produce) -> None:
    produce("orders", [b"x"] * 5)
    commit(root, ("orders", 0, 9))
    with pytest.raises(InvalidConfig, match="partition 0: its start 9 is after its end 5"):
        begun(stream(root))


def test_an_invalid_name_of_a_group_is_refused(root: str) -> None:
    with pytest.raises(InvalidConfig, match=r"group\.id"):
        source(root, startingOffsetsByGroup="a/b").schema()
