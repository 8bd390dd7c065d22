"""A stored value that no reader can return hurts only its own record."""

from __future__ import annotations

import asyncio
import pickle
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from deltaq import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    DeserializingConsumer,
    KafkaError,
    KafkaException,
    Topic,
    TopicPartition,
)
from deltaq.aio import AsyncDeserializingConsumer
from deltaq.clock import SYSTEM_CLOCK
from deltaq.maintenance import run
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.message import Message
from deltaq.serde import ValueDeserializationError
from deltaq.serde.schema import python_values
from deltaq.store import open_store
from deltaq.topics.log import TopicLog
from tests.doubles.unsound import FAR_TIME, append_unsound, headers_named, text_of

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("s", pa.string()),
        ("t", pa.timestamp("us", "UTC")),
        ("l", pa.list_(pa.string())),
    ]
)
NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)
FOR_EVER = {"retention.ms": -1}
GOOD = {"s": "ä", "t": NOON, "l": ["x"]}


def unsound_rows() -> pa.Table:
    """Five rows, of which the odd ones have a value that no producer accepts."""
    lists = pa.ListArray.from_arrays(
        pa.array(range(6), pa.int32()), text_of(b"x", b"x", b"x", b"\xff", b"x")
    )
    times = pa.array([NOON, NOON, NOON, NOON, NOON], pa.timestamp("us", "UTC"))
    return pa.table(
        {
            "id": pa.array(range(5)),
            "s": text_of("ä".encode(), b"\xfc", *["ä".encode()] * 3),
            "t": times,
            "l": lists,
        }
    )


def topic_of_five(root: str) -> Topic:
    topic = Topic("t", SCHEMA, bootstrap_servers=root).create()
    append_unsound(topic.store, "t", unsound_rows())
    return topic


def conf(root: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": root,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "maintenance.enable": False,
    }


def merge(root: str) -> None:
    """Merge the files of the topic."""
    store = open_store(root)
    run(root, once=True, settings=MaintenanceSettings(merge_files=2))
    log = TopicLog(store, "t", SYSTEM_CLOCK, indexed=True)
    log.load()
    assert len(log.index.files) == 1


def consumed(root: str, count: int) -> list[Message]:
    with Consumer(conf(root)) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        return consumer.consume(count, 20)


def value_or_error(message: Message) -> Any:
    try:
        return message.value()
    except KafkaException as error:
        return error.error.code(), error.error.str()


def test_the_records_beside_it_are_returned_and_its_own_error_names_it(memory_root):
    topic_of_five(memory_root)
    found = [value_or_error(message) for message in consumed(memory_root, 5)]
    assert [found[at] for at in (0, 2, 4)] == [{"id": at} | GOOD for at in (0, 2, 4)]
    code = KafkaError._VALUE_DESERIALIZATION
    place = "(topic 't', partition 0, offset {})"
    assert found[1] == (code, f"column 's' has bytes that are no UTF-8 {place.format(1)}")
    assert found[3] == (code, f"column 'l.element' has bytes that are no UTF-8 {place.format(3)}")


LONG = pa.array([Decimal(1000)], pa.decimal128(4)).view(pa.binary(16)).view(pa.decimal128(3))


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (pa.array([576 * 10**15]).cast(pa.timestamp("us", "UTC")), "outside the years 1 to 9999"),
        (pa.array([-719_163], pa.int32()).cast(pa.date32()), "outside the years 1 to 9999"),
        (LONG, "column 'c' has more digits than decimal128(3, 0) holds"),
        (
            pa.StructArray.from_arrays(
                [pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), LONG)], ["l"]
            ),
            "column 'c.l.element' has more digits",
        ),
        (pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int8())), "has a key twice"),
        (
            pa.array([[{"t": FAR_TIME.value}]]).cast(pa.list_(pa.struct([("t", FAR_TIME.type)]))),
            "outside the years",
        ),
    ],
)
def test_any_value_without_an_equal_in_python_is_the_error_of_its_record(
    memory_root, column, reason
):
    topic = Topic("t", pa.schema([("c", column.type)]), bootstrap_servers=memory_root).create()
    sound = pa.nulls(1, column.type)
    append_unsound(topic.store, "t", pa.table({"c": pa.concat_arrays([sound, column, sound])}))
    found = [value_or_error(message) for message in consumed(memory_root, 3)]
    assert found[0] is None
    assert found[2] is None
    assert reason in found[1][1]


def test_a_time_that_python_has_in_utc_only_is_in_utc():
    last = datetime.max.replace(tzinfo=UTC)
    times = pa.array([NOON, last], pa.timestamp("us", "Asia/Tokyo"))
    assert python_values(pa.record_batch({"t": times})) == [{"t": NOON}, {"t": last}]


def test_a_merge_of_files_makes_no_readable_record_unreadable(memory_root):
    topic = Topic("t", SCHEMA, config=FOR_EVER, bootstrap_servers=memory_root).create()
    rows = unsound_rows()
    for row in range(5):
        append_unsound(
            topic.store, "t", rows.slice(row, 1), headers=headers_named(b"\xff"), times_ms=[-1]
        )
    before = [value_or_error(message) for message in consumed(memory_root, 5)]
    merge(memory_root)
    assert [value_or_error(message) for message in consumed(memory_root, 5)] == before
    assert [isinstance(value, dict) for value in before] == [True, False, True, False, True]


def test_a_message_with_such_a_value_can_be_changed_compared_and_pickled(memory_root):
    topic_of_five(memory_root)
    bad, twin = (consumed(memory_root, 5)[1] for _ in range(2))
    assert bad == twin
    sent = pickle.loads(pickle.dumps(bad))
    bad.set_key(b"k")
    for message in (sent, bad):
        assert message.value() is None
        assert message.error() == KafkaError._VALUE_DESERIALIZATION
        assert (message.partition(), message.offset()) == (0, 1)


def test_deserializers_lose_no_record_beside_it(memory_root):
    topic_of_five(memory_root)
    with DeserializingConsumer(conf(memory_root)) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        found = consumer.consume(5, 20)
        assert [message.error() is None for message in found] == [True, False, True, False, True]
        assert found[1].error() == KafkaError._VALUE_DESERIALIZATION
        consumer.seek(TopicPartition("t", 0, 1))
        with pytest.raises(ValueDeserializationError, match="no UTF-8"):
            consumer.poll(20)
        following = consumer.poll(20)
        assert following is not None
        assert following.value() == {"id": 2} | GOOD


def test_deserializers_on_an_event_loop_lose_none_either(memory_root):
    topic_of_five(memory_root)

    async def read() -> list[bool]:
        async with AsyncDeserializingConsumer(conf(memory_root)) as consumer:
            await consumer.assign([TopicPartition("t", 0, 0)])
            return [message.error() is None for message in await consumer.consume(5, 20)]

    assert asyncio.run(read()) == [True, False, True, False, True]


def test_arrow_has_what_is_stored(memory_root):
    topic = topic_of_five(memory_root)
    assert topic.to_arrow()["s"].cast(pa.binary()).to_pylist()[1] == b"\xfc"
    with Consumer(conf(memory_root)) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        batch = consumer.consume_arrow(5, timeout=20)
    assert batch is not None
    assert batch.column("s").cast(pa.binary()).to_pylist()[1] == b"\xfc"


# --- what is beside the value ---


def test_a_header_name_that_is_no_text_stops_neither_its_record_nor_others(memory_root):
    topic = Topic("t", config=FOR_EVER, bootstrap_servers=memory_root).create()
    append_unsound(
        topic.store, "t", [b"a", b"b", b"c"], headers=headers_named(b"h", b"n\xfc", None)
    )
    append_unsound(topic.store, "t", [b"d"])
    found = consumed(memory_root, 4)
    assert [message.error() for message in found] == [None] * 4
    assert [message.value() for message in found] == [b"a", b"b", b"c", b"d"]
    assert [message.headers() for message in found] == [
        [("h", b"x")],
        [("n\\xfc", b"x")],
        [("", b"x")],
        None,
    ]
    merge(memory_root)
    assert [message.headers() for message in consumed(memory_root, 4)] == [
        message.headers() for message in found
    ]


def test_a_missing_header_is_one_without_name_and_content(memory_root):
    topic = Topic("t", config=FOR_EVER, bootstrap_servers=memory_root).create()
    pairs = pa.array([[{"key": "h", "value": b"x"}, None]], headers_named(b"h").type)
    append_unsound(topic.store, "t", [b"a"], headers=pairs)
    (message,) = consumed(memory_root, 1)
    assert message.headers() == [("h", b"x"), ("", None)]


@pytest.mark.parametrize(
    "time_ms", [-1, -62_135_596_800_001, 9_223_372_036_855, (2**63 - 1) // 1000]
)
def test_a_stored_time_that_no_message_can_have_is_no_timestamp(memory_root, time_ms):
    topic = Topic("t", config=FOR_EVER, bootstrap_servers=memory_root).create()
    append_unsound(topic.store, "t", [b"a", b"b", b"c"], times_ms=[5, time_ms, 0])
    append_unsound(topic.store, "t", [b"d"], times_ms=[7])
    expected = [
        (TIMESTAMP_CREATE_TIME, 5),
        (TIMESTAMP_NOT_AVAILABLE, -1),
        (TIMESTAMP_CREATE_TIME, 0),
        (TIMESTAMP_CREATE_TIME, 7),
    ]
    assert [message.timestamp() for message in consumed(memory_root, 4)] == expected
    merge(memory_root)
    assert [message.timestamp() for message in consumed(memory_root, 4)] == expected
    assert [message.value() for message in consumed(memory_root, 4)] == [b"a", b"b", b"c", b"d"]
