"""Records are consumed byte for byte as they were produced."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaq import Consumer, KafkaError, Message, MessageTooLarge, Producer, Topic, TopicPartition
from tests.depth import depth

YEAR_2262_MS = 9_223_372_036_854  # the end of 64-bit nanoseconds, on the eleventh of April
CONTENT = (
    st.none()
    | st.binary(max_size=40)
    | st.sampled_from([b"", b"\0", b"\0" * 9, b"\xff\xfe", "é☃".encode()])
)
HEADERS = st.lists(
    st.tuples(
        st.text(st.characters(codec="utf-8"), max_size=8), st.none() | st.binary(max_size=12)
    ),
    min_size=1,
    max_size=5,
)
RECORDS = st.fixed_dictionaries(
    {
        "value": CONTENT,
        "key": CONTENT,
        "headers": st.none() | HEADERS,
        "timestamp": st.sampled_from([1, 999, YEAR_2262_MS]) | st.integers(1, YEAR_2262_MS),
        "partition": st.integers(0, 2),
    }
)
SETTINGS = settings(
    max_examples=depth(15, 40), suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(
    params=[
        "local_root",
        "memory_root",
        pytest.param("s3_server_root", marks=pytest.mark.s3_server),
    ]
)
def root(request: pytest.FixtureRequest) -> str:
    path: str = request.getfixturevalue(request.param)
    return path


def consumed(root: str, topic: str, count: int, partitions: int = 1) -> list[Message]:
    with Consumer({"bootstrap.servers": root, "group.id": uuid.uuid4().hex}) as consumer:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        messages = consumer.consume(count, 20)
    assert [message.error() for message in messages] == [None] * count
    return messages


@pytest.mark.fault("X3")
@SETTINGS
@given(batch=st.lists(RECORDS, min_size=1, max_size=12))
def test_messages_come_back_as_they_were_produced(root, batch):
    name = uuid.uuid4().hex
    Topic(name, partitions=3, conf={"bootstrap.servers": root}).create()
    reports: list[tuple[int, int | None, int | None]] = []

    def reported(number: int, error: KafkaError | None, message: Message) -> None:
        assert error is None
        reports.append((number, message.partition(), message.offset()))

    with Producer({"bootstrap.servers": root, "linger.ms": 1000}) as producer:
        for number, record in enumerate(batch):
            producer.produce(name, **record, on_delivery=partial(reported, number))
    found = {(m.partition(), m.offset()): m for m in consumed(root, name, len(batch), partitions=3)}
    assert [number for number, _, _ in reports] == list(range(len(batch)))
    for number, partition, offset in reports:
        record, message = batch[number], found[partition, offset]
        assert message.error() is None
        assert (message.value(), message.key()) == (record["value"], record["key"])
        assert message.headers() == record["headers"]
        assert message.timestamp() == (1, record["timestamp"])
        assert message.partition() == record["partition"]


@pytest.mark.fault("X3")
@SETTINGS
@given(batch=st.lists(RECORDS, min_size=1, max_size=12))
def test_tables_come_back_as_they_were_produced(root, batch):
    name = uuid.uuid4().hex
    Topic(name, partitions=3, conf={"bootstrap.servers": root}).create()
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    columns = {
        "value": pa.array([r["value"] for r in batch], pa.binary()),
        "key": pa.array([r["key"] for r in batch], pa.binary()),
        "partition": pa.array([r["partition"] for r in batch], pa.int32()),
        "timestamp": pa.array([r["timestamp"] for r in batch], pa.int64()),
        "headers": pa.array(
            [r["headers"] and [{"key": k, "value": v} for k, v in r["headers"]] for r in batch],
            pa.list_(pair),
        ),
    }
    with Producer({"bootstrap.servers": root}) as producer:
        assert producer.produce_arrow(name, pa.table(columns)) == len(batch)
    found: dict[int, list[tuple[object, ...]]] = {0: [], 1: [], 2: []}
    for m in consumed(root, name, len(batch), partitions=3):
        found[m.partition() or 0].append((m.value(), m.key(), m.headers(), m.timestamp()[1]))
    for partition in range(3):
        expected = [r for r in batch if r["partition"] == partition]
        assert found[partition] == [
            (r["value"], r["key"], r["headers"], r["timestamp"]) for r in expected
        ]


@pytest.mark.fault("X3")
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_values_of_a_megabyte_round_trip_with_every_compression(root, compression):
    values = [bytes([number]) * 1_000_000 for number in range(5)] + [uuid.uuid4().bytes * 62_500]
    with Producer({"bootstrap.servers": root, "compression.type": compression}) as producer:
        for value in values:
            producer.produce("large", value)
    assert [message.value() for message in consumed(root, "large", len(values))] == values


def test_the_first_and_the_last_timestamps_come_back(root):
    times = [1, 999, 1000, 1_700_000_000_123, YEAR_2262_MS]
    with Producer({"bootstrap.servers": root}) as producer:
        for time in times:
            producer.produce("times", b"x", timestamp=time)
    assert [message.timestamp() for message in consumed(root, "times", len(times))] == [
        (1, time) for time in times
    ]


def test_a_message_without_a_timestamp_gets_the_time_it_was_produced(root):
    before = int(datetime.now(UTC).timestamp() * 1000)
    with Producer({"bootstrap.servers": root, "linger.ms": 50}) as producer:
        producer.produce("now", b"x")
    after = int(datetime.now(UTC).timestamp() * 1000)
    (message,) = consumed(root, "now", 1)
    # Between two clocks, of which one counts whole milliseconds, one may get lost.
    assert before - 1 <= message.timestamp()[1] <= after


@pytest.mark.fault("X2")
@pytest.mark.parametrize(
    ("value", "key", "headers"),
    [
        (b"x" * 1_000_001, None, None),
        (b"x" * 600_000, b"k" * 400_001, None),
        (None, None, {"h": b"x" * 1_000_000}),
    ],
    ids=["value", "value and key", "headers"],
)
def test_too_large_a_message_is_refused_at_produce(value, key, headers, root):
    with Producer({"bootstrap.servers": root}) as producer:
        with pytest.raises(MessageTooLarge) as caught:
            producer.produce("t", value, key=key, headers=headers)
        assert caught.value.args[0] == KafkaError.MSG_SIZE_TOO_LARGE
        assert len(producer) == 0
        producer.produce("t", b"x" * 1_000_000)
    assert len(consumed(root, "t", 1)[0].value()) == 1_000_000


def test_text_is_sent_as_utf_8_and_comes_back_as_bytes(root):
    with Producer({"bootstrap.servers": root}) as producer:
        producer.produce("t", "Zürich ☃", key="é", headers={"ü": "ß", "none": None})
    (message,) = consumed(root, "t", 1)
    assert (message.value(), message.key()) == ("Zürich ☃".encode(), "é".encode())
    assert message.headers() == [("ü", "ß".encode()), ("none", None)]


def test_repeated_header_names_keep_their_number_and_order(root):
    headers = [("a", b"1"), ("b", None), ("a", b""), ("a", b"1")]
    with Producer({"bootstrap.servers": root}) as producer:
        producer.produce("t", b"x", headers=headers)
        producer.produce("t", b"x", headers=[])
    first, second = consumed(root, "t", 2)
    assert first.headers() == headers
    assert second.headers() is None


def test_the_same_key_always_meets_the_same_partition_and_null_keys_any(root):
    Topic("keyed", partitions=4, conf={"bootstrap.servers": root}).create()
    for _ in range(3):
        with Producer({"bootstrap.servers": root}) as producer:
            for number in range(40):
                producer.produce("keyed", b"x", key=b"k%d" % (number % 10))
    homes: dict[bytes, set[int | None]] = {}
    for message in consumed(root, "keyed", 120, partitions=4):
        homes.setdefault(message.key(), set()).add(message.partition())
    assert {len(partitions) for partitions in homes.values()} == {1}
    assert len(set().union(*homes.values())) == 4


def test_many_megabytes_in_one_flush_become_several_files_in_order(root):
    topic = Topic("t", partitions=2, conf={"bootstrap.servers": root}).create()
    values = [bytes([number]) * 900_000 for number in range(160)]
    with Producer(
        {"bootstrap.servers": root, "linger.ms": 10_000, "batch.size": 10**9}
    ) as producer:
        for number, value in enumerate(values):
            producer.produce("t", value, partition=number % 2)
    assert topic.describe().files >= 2
    found: dict[int, list[bytes]] = {0: [], 1: []}
    for message in consumed(root, "t", len(values), partitions=2):
        found[message.partition() or 0].append(message.value())
    assert found == {0: values[::2], 1: values[1::2]}


def test_a_file_is_plain_parquet_with_the_columns_of_the_specification(tmp_path):
    root = str(tmp_path)
    with Producer(bootstrap_servers=root) as producer:
        producer.produce(
            "t", b"v", b"k", headers=[("a", b"1"), ("a", None)], timestamp=1_700_000_000_123
        )
    (path,) = (tmp_path / "topics" / "t").glob("*.parquet")
    (row,) = pq.read_table(path).to_pylist()
    assert row == {
        "_partition": 0,
        "_offset": None,
        "_timestamp": datetime(2023, 11, 14, 22, 13, 20, 123000, UTC),
        "_key": b"k",
        "_headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
        "value": b"v",
    }
